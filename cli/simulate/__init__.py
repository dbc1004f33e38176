"""``octavo simulate``: the real KV manager under drawn or traced requests, beside contiguous allocators.

- ``command``: the options; ``choices`` holds them checked, ``reports`` says what is printed and drawn
- ``lengths``, ``workload``, ``traces``: what arrives
- ``scheduling``: a worker without a model, whose clock the cost model (``costs``) moves; ``jobs``: what it schedules
- ``paged``: memory of the manager's blocks, through ``manager_port``; ``beams``: which of them live on
- ``contiguous``: memory of contiguous regions
- ``measuring``, ``experiments``: averages and timelines of a run
- ``paper``, ``hours``: the published figures, and a trace over time
- ``prefix_cache``, ``eviction``, ``hit_curve``: what prompts share, by capacity and policy
- ``tables``, ``plots``, ``progress``: what people see
"""

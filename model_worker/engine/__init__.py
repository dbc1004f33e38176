"""The batch engine: who runs in the next step, on which blocks, and what comes out.

- ``sequence``: one generation, its tokens and its block table
- ``group``: several samples of one prompt
- ``queue``: who waits for blocks, and in which order
- ``batch``: what a step holds, and what one may hold
- ``scheduler``: the pure core: queue and running set in, ``StepRequest`` out; ``StepResponse`` in, ``Batch`` out
- ``planning``: building the ``StepRequest``
- ``answer``: booking the ``StepResponse``
- ``recovery``: without a manager: what still runs, and what the next one may adopt
- ``wire``: pieces of messages
- ``manager_client``: the way to the KV manager, over gRPC or in-process
- ``host_tier``: the swaps of a step
- ``runner``: a batch through the model and the sampler
- ``decode_graphs``: decoding by CUDA graphs
- ``progress``: what a step brought its callers
- ``rates``: measured speeds, for the manager's prices
- ``engine``: the thread that owns the device and drives all of them
- ``statistics``: counters for GetStats and metrics
"""

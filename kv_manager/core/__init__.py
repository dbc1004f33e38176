"""The deterministic core: ``apply(state, request) -> response`` with no clock, no I/O and no randomness.

- ``manager``: pools by name, epochs, and every call of the service as a method
- ``pool``: one pool's state and the order of a step (design 3.5, rule 3)
- ``validation``: whole-request validation before anything changes (rule 2)
- ``growth``, ``forks``, ``admission``, ``resumption``, ``room``: how the items of a request are served
- ``hits``, ``windows``, ``quotas``: what the cache gives, what slides out of a window, what a tenant may use
- ``capacity``, ``preemption``, ``host_tier``: who gives way when blocks are short, and where the victims are parked
- ``adoption``, ``lease``: a worker's live tables taken over, and how long a pool outlives its worker
- ``step_notes``, ``events``, ``entries``, ``journal``, ``watching``: what a step changed, noted then and told later
- ``block_pool``, ``prefix_index``, ``prefix``: blocks, who holds which digest, and how digests are made
- ``sequence``: what is remembered of a sequence
- ``integrity``, ``views``: the invariants, and what people see
- ``errors``: refusals, by name
"""

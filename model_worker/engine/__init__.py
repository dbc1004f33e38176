"""The batch engine: who runs in the next step, on which blocks, and what comes out.

- ``sequence``: one generation, its tokens and its block table
- ``batch``: what a step holds, and what one may hold
- ``scheduler``: the pure core: queue and running set in, ``StepRequest`` out; ``StepResponse`` in, ``Batch`` out
- ``answer``: booking the ``StepResponse``
- ``recovery``: without a manager: what still runs, and what the next one may adopt
- ``wire``: pieces of messages
- ``manager_client``: the way to the KV manager, over gRPC or in-process
- ``runner``: a batch through the model and the sampler
- ``engine``: the thread that owns the device and drives all of them
- ``statistics``: counters for GetStats and metrics
"""

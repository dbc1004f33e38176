"""A second face of the worker: ``vllm.grpc.engine.VllmEngine``, so that gateways made for that service drive it.

Every call becomes one of ``WorkerService``, and its answer is put into the other words: a request is checked, queued
and run in one way, whoever sends it. What the service has and this worker lacks is refused by name.
"""

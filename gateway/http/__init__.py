"""OpenAI's HTTP API beside gRPC: the same models, the same table of parameters, the same errors in another spelling.

- ``server``, ``patience``, ``app``: uvicorn in the gateway's event loop, its connections, and the routes
- ``generating``: the calls that generate; ``pages``: models, health, metrics
- ``lingering``: reads on behind an answer that came before its request's body was read
- ``body``, ``fields``, ``conversation``, ``completion_prompts``: from bytes to parameters and prompts
- ``echo``, ``logprob_shapes``: a prompt before its answer, and log-probabilities
- ``fan_out``: several prompts as one stream, and the end of one whose client left
- ``shapes``, ``sse``: from pieces to objects and events; pure but for the writing
- ``errors``: the one table from gRPC codes to HTTP; ``request_ids``: a name per request
"""

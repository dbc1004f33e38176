"""Text in, text out: what clients touch. It owns no tensors and no blocks.

- ``text``: tokenizer, chat template, incremental detokenizer, stop strings; pure
- ``parameters``: the one table of request parameters, for every surface
- ``json_words``: what errors call a value
- ``prompts``: a prompt or a conversation becomes token ids that fit the model
- ``streams``: worker tokens become pieces of text; pure
- ``workers``: connections to workers, their health, and which one serves a request
- ``watching``: tasks that run as long as what they watch
- ``generation``: one request on one worker, from its tokens to its pieces
- ``runs``: a generation timed and logged, the same for every surface
- ``servicer``: the gRPC surface; ``http``: OpenAI's HTTP API beside it
- ``settings``, ``metrics``, ``app``: configuration, Prometheus, start and drain
"""

import service  # noqa: F401 - before gRPC, as it says there

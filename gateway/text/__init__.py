"""Text in, text out: tokenizer, chat template, incremental detokenizer and stop strings. Pure; no torch, no gRPC."""

import os

# The tokenizers library warns, and switches its thread pool off, when a process forks after using the pool. A gateway
# encodes one prompt per call, so the pool would gain nothing: it is off unless the operator asks for it.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

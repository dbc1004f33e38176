"""What every service shares: start-up and drain, errors, TLS, settings, logs. It imports none of them.

- ``errors``: domain errors and the one place where they become gRPC status codes
- ``trailers``: how much of an error travels
- ``serving``: a gRPC server with health, reflection, signals and a drain; ``health``: what it says of itself
- ``listening``: the one line for an address that cannot be listened on
- ``channels``: client channels with the same limits and keepalive, and the files of TLS
- ``settings``: flag > environment > ``octavo.toml`` for a frozen dataclass, standard library only
- ``model_settings``: the same for a pydantic model; not imported by the KV manager, which stays small without it
- ``logs``: JSON lines, or plain ones on a terminal
- ``request_ids``: the name of the request at hand, in its log lines, errors and answer
- ``tracing``, ``traced_calls``: OpenTelemetry, off unless asked for
- ``process``: the ready line and the parent-death signal
"""

import os

# Read when gRPC is loaded, so this package comes before it. By default its core writes a raw line about everyone who
# calls a TLS port in plain text, between the JSON of our logs; what it calls an error it still writes.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

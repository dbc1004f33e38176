"""The KV manager: it owns block pools and decides who may write where. It never sees a tensor or a text.

- ``core``: the deterministic state machine, messages in, messages out; also used in-process
- ``servicer``: the thin gRPC skin over it, with streams, leases and the clock
- ``metrics``: Prometheus text made on the event loop, so that every scrape balances
- ``clock``: the ticks of the leases
- ``recording``, ``replay``: ``--record FILE``, and ``python -m kv_manager.replay FILE`` to play it against any manager
- ``settings``: flags, environment, ``octavo.toml``
"""

import service  # noqa: F401 - before gRPC, as it says there

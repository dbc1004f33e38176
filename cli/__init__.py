"""The ``octavo`` command, and the only place that may put services together.

- ``main``: the one place where errors become a line and an exit status; ``commands`` lists the commands
- ``serve``: gateway, worker and manager on this machine; ``stack`` says how each is started, ``supervisor`` runs them
- ``generate``, ``chat``: text from a gateway
- ``models``: model folders on this disk
- ``calls``: calls to a service, by TLS and with a key where asked for; ``api_key``
- ``inspection``: a manager's pools, tables and blocks; ``live``: as they change
- ``check``, ``cache_reset``, ``drain``, ``abort``, ``gateway_lists``: what operators ask
- ``pools``, ``waiting``: which pools a command means, and looking again until something is so
- ``playback``: a manager's record, played back
- ``estimate``: how much memory a model's keys and values take
- ``tour``: the pages at work, scene by scene
- ``simulate``: the KV manager under drawn or traced requests, beside contiguous allocators
- ``amounts``, ``foreign``, ``printing``: numbers, names and tables on their way to a terminal or a pipe
- ``readers``: whoever reads a pipe may leave
- ``embedded_worker``: a model worker with the KV manager in its own process
"""

"""The compile gate needs Triton's compiler, which a process with TRITON_INTERPRET=1 does not have.

pytest -m aot tests/kernels/aot
"""

import os

collect_ignore_glob = ["test_*.py"] if os.environ.get("TRITON_INTERPRET") == "1" else []

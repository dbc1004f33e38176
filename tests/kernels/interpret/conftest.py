"""Triton reads TRITON_INTERPRET when it is imported: these tests have a process of their own.

TRITON_INTERPRET=1 pytest -m interpret tests/kernels/interpret
"""

import os

import torch

if os.environ.get("TRITON_INTERPRET") == "1":
    # Repaired for every test of this folder, those with kernels of their own included.
    import kernels.triton  # noqa: F401

    torch.set_num_threads(1)
else:
    collect_ignore_glob = ["test_*.py"]

"""The CUDA driver as the moves need it: CuPy compiles the kernels at first use, launches them and copies bytes."""

import functools
from pathlib import Path
from typing import Any, Protocol

import numpy as np

SOURCE = Path(__file__).parent / "block_moves.cu"


class Driver(Protocol):
    """Launches and copies on the stream it was made for. Addresses are raw: no library exchanges tensors."""

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, arguments: tuple[np.generic, ...]) -> None:
        """Runs a kernel of `block_moves.cu`; `arguments` have the very types of its parameters, uint64 for pointers."""

    def copy(self, destination: int, source: int, num_bytes: int) -> None:
        """Copies bytes between any two addresses, device or host; pinned host memory is copied asynchronously."""


@functools.cache
def unavailable() -> str | None:
    """Why CuPy cannot be used, in one line; None when it can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed (pip install 'octavo[cuda]'): {error}"
    if not cupy.cuda.is_available():
        return "CuPy finds no CUDA device or no driver for it"
    return None


class CupyDriver:
    """CuPy on one device and one stream, given as the raw handle that torch has."""

    def __init__(self, device: int, stream: int) -> None:
        self._device = device
        self._stream = stream

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, arguments: tuple[np.generic, ...]) -> None:
        import cupy

        with cupy.cuda.Device(self._device), cupy.cuda.Stream.from_external(_Handle(self._stream)):
            _module(self._device).get_function(kernel)(grid, (threads,), arguments)

    def copy(self, destination: int, source: int, num_bytes: int) -> None:
        import cupy

        with cupy.cuda.Device(self._device):
            kind = cupy.cuda.runtime.memcpyDefault
            cupy.cuda.runtime.memcpyAsync(destination, source, num_bytes, kind, self._stream)


class _Handle:
    """A stream by the protocol that CuPy reads: torch's own streams speak it only in later versions."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._stream)


@functools.cache
def _module(device: int) -> Any:
    import cupy

    return cupy.RawModule(code=SOURCE.read_text(), options=("--std=c++17",))

"""CUDA C++ to cubin and PTX by NVRTC's C interface: no driver, no GPU, no binding needed."""

import ctypes
import functools
from importlib import metadata
from pathlib import Path


@functools.cache
def _library() -> ctypes.CDLL:
    """libnvrtc of the PyPI distribution nvidia-cuda-nvrtc."""
    files = metadata.files("nvidia-cuda-nvrtc") or []
    paths = {file.name: Path(file.locate()) for file in files}
    # NVRTC opens its builtins by name only: loaded before, they are found.
    for start in ("libnvrtc-builtins.so.", "libnvrtc.so."):
        library = ctypes.CDLL(str(next(path for name, path in paths.items() if name.startswith(start))))
    return library


def _check(code: int) -> None:
    if code:
        text = _library().nvrtcGetErrorString
        text.restype = ctypes.c_char_p
        raise RuntimeError(text(code).decode())


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(_library(), f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def compile_cuda(source: str, architecture: str, *options: str) -> bytes:
    """The cubin for "sm_90", the PTX for "compute_90". RuntimeError with the compiler's log if it refuses."""
    program = ctypes.c_void_p()
    _check(_library().nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"source.cu", 0, None, None))
    try:
        every = [f"--gpu-architecture={architecture}", "--std=c++17", *options]
        array = (ctypes.c_char_p * len(every))(*(option.encode() for option in every))
        if _library().nvrtcCompileProgram(program, len(every), array):
            raise RuntimeError(_read(program, "ProgramLog").decode())
        return _read(program, "CUBIN" if architecture.startswith("sm_") else "PTX")
    finally:
        _library().nvrtcDestroyProgram(ctypes.byref(program))

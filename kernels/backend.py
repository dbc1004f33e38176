"""Which implementation serves a device's tensors: decided here, once per process, and explained.

A backend is a module whose functions have the names and signatures of the public ones. What it does not define comes
from the plain torch reference, and a function may hand on to the reference what it does not cover (a dtype, say).

`OCTAVO_KERNELS` names one backend to use; if that one cannot run, nothing else runs in its place.
"""

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

VARIABLE = "OCTAVO_KERNELS"
REFERENCE = "reference"


class BackendError(RuntimeError):
    """The backend that OCTAVO_KERNELS asks for cannot serve these tensors."""


@dataclass(frozen=True, slots=True)
class Backend:
    """An implementation. Nothing of it is imported before it is considered."""

    name: str
    module: str
    devices: frozenset[str]
    """Types of torch device whose tensors it takes; empty: all."""
    available: Callable[[], str | None]
    """None when it can run here, otherwise one line that says why not and what would help."""
    describe: Callable[[], str] = lambda: ""
    """What there is to say about it when it runs, such as its instruction set."""
    automatic: bool = True
    """Whether it is considered without being asked for."""

    def takes(self, device: str) -> bool:
        return not self.devices or device in self.devices


def _probe(module: str, function: str) -> Callable[[], Any]:
    def call() -> Any:
        return getattr(importlib.import_module(module), function)()

    return call


def _needs_cuda() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return _needs_triton()


def _needs_triton() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None


def _needs_interpreter() -> str | None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "TRITON_INTERPRET=1 must be set before triton is imported"
    return _needs_triton()


BACKENDS: list[Backend] = [
    Backend("triton", "kernels.triton", frozenset({"cuda"}), _needs_cuda),
    Backend("interpret", "kernels.triton", frozenset({"cpu"}), _needs_interpreter, automatic=False),
    Backend(
        "cpu",
        "kernels.cpu",
        frozenset({"cpu"}),
        _probe("kernels.cpu.library", "why_not"),
        _probe("kernels.cpu.library", "describe"),
    ),
    Backend(REFERENCE, "kernels.reference", frozenset(), lambda: None),
]
"""In the order of preference."""


class Choice(NamedTuple):
    """The backend that serves one type of device."""

    name: str
    device: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} kernels on {self.device}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Serving:
    choice: Choice
    module: ModuleType
    operations: dict[str, Callable[..., Any]]


_serving: dict[str, _Serving] = {}


def backend(device: "str | torch.device" = "cpu") -> Choice:
    """The backend for tensors on this device ("cuda", "cuda:0", a torch.device), with the reason.

    BackendError as `operation`.
    """
    return _serve(str(device).partition(":")[0]).choice


def operation(name: str, device: str) -> Callable[..., Any]:
    """The implementation of one public function for tensors on this type of device.

    BackendError when OCTAVO_KERNELS names a backend that is unknown, unavailable or not for this device.
    """
    serving = _serving.get(device) or _serve(device)
    found = serving.operations.get(name)
    if found is None:
        found = getattr(serving.module, name, None) or getattr(importlib.import_module("kernels.reference"), name)
        serving.operations[name] = found
    return found


def reset() -> None:
    """Forgets all choices, so that the next call reads OCTAVO_KERNELS again. For tests and benchmarks."""
    _serving.clear()


def _serve(device: str) -> _Serving:
    serving = _serving.get(device)
    if serving is None:
        chosen, reason = _choose(device)
        choice = Choice(chosen.name, device, reason)
        serving = _serving[device] = _Serving(choice, importlib.import_module(chosen.module), {})
        # Falling back is worth a person's attention: it is the difference between a fast worker and a slow one.
        passed_over = chosen.name == REFERENCE and not os.environ.get(VARIABLE)
        logger.log(logging.WARNING if passed_over else logging.INFO, "%s", choice)
    return serving


def _choose(device: str) -> tuple[Backend, str]:
    if wanted := os.environ.get(VARIABLE):
        named = next((one for one in BACKENDS if one.name == wanted), None)
        if named is None:
            raise BackendError(f"{VARIABLE}={wanted}: no such backend; there are {', '.join(b.name for b in BACKENDS)}")
        why_not = named.available() if named.takes(device) else f"it does not take tensors on {device}"
        if why_not:
            raise BackendError(f"{VARIABLE}={wanted}: {why_not}")
        return named, _joined(f"asked for by {VARIABLE}", named.describe())
    passed_over: list[str] = []
    for candidate in BACKENDS:
        if not candidate.automatic or not candidate.takes(device):
            continue
        why_not = candidate.available()
        if why_not is None:
            return candidate, _joined(*passed_over, candidate.describe()) or "nothing faster is known for this device"
        passed_over.append(f"not {candidate.name}, because {why_not}")
    raise AssertionError("the reference takes every device")


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)

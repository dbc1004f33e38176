"""What a step costs: a roofline, simple enough to be stated in one line.

    seconds = max(weight bytes / bandwidth, 2 * parameters * new tokens / arithmetic) + KV bytes read / bandwidth

Both speeds are the device's peaks times ``EFFICIENCY``. Time between steps, sampling and text cost nothing: throughput
figures compare allocators under one model, they do not predict a machine.
"""

from dataclasses import dataclass

EFFICIENCY = 0.6
WEIGHT_BYTES = 2
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as its costs need it.

    Attributes:
        parameters: those that every token meets.
        kv_bytes: keys and values of one token, all layers, 16-bit.
        max_tokens: the longest sequence, prompt and output.
    """

    name: str
    parameters: float
    kv_bytes: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks of a device: bytes a second from its memory, 16-bit dense operations a second."""

    name: str
    bandwidth: float
    arithmetic: float


# 40 layers of 5,120 and 32 layers of 8 heads of 128, two bytes, K and V.
OPT_13B = Shape("opt-13b", 12.85e9, 2 * 40 * 5_120 * 2, 2_048)
LLAMA_31_8B = Shape("llama-3.1-8b", 8.03e9, 2 * 32 * 8 * 128 * 2, 131_072)
SHAPES = {shape.name: shape for shape in (OPT_13B, LLAMA_31_8B)}

A100_40 = Device("a100-40gb", 1.555e12, 312e12)
A100_80 = Device("a100-80gb", 2.039e12, 312e12)
H100 = Device("h100-80gb", 3.35e12, 989e12)
DEVICES = {device.name: device for device in (A100_40, A100_80, H100)}


@dataclass(frozen=True, slots=True)
class Costs:
    """A model on a device."""

    shape: Shape
    device: Device

    def seconds(self, new_tokens: int, context_tokens: int) -> float:
        """One step.

        Args:
            new_tokens: computed by the step, of prompts and of running sequences.
            context_tokens: lengths of the running sequences together; each reads its own keys and values.
        """
        bandwidth = self.device.bandwidth * EFFICIENCY
        weights = self.shape.parameters * WEIGHT_BYTES / bandwidth
        arithmetic = 2 * self.shape.parameters * new_tokens / (self.device.arithmetic * EFFICIENCY)
        return max(weights, arithmetic) + context_tokens * self.shape.kv_bytes / bandwidth

    def slots(self, gib: float) -> int:
        """Tokens whose keys and values fit."""
        return int(gib * GIB) // self.shape.kv_bytes

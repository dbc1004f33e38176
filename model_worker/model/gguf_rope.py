"""Llama 3's rope scaling out of a GGUF file, which stores one divisor per frequency and not the parameters."""

from dataclasses import replace
from typing import Any

import torch

from model_worker.model.errors import UnsupportedModelError
from model_worker.model.rope import RopeConfig, inverse_frequencies

# Every published Llama 3.1, 3.2 and 3.3 was made with these; only the factor differs.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192


def llama3_scaling(divisors: torch.Tensor, theta: float, head_dim: int) -> dict[str, Any]:
    """The `rope_scaling` of config.json whose frequencies are the unscaled ones over `divisors` [head_dim / 2].

    The longest wavelength is divided by the whole factor. Raises UnsupportedModelError when Llama 3's other parameters
    do not reproduce the divisors.
    """
    factor = float(divisors.max())
    plain = RopeConfig("default", theta)
    scaled = replace(
        plain,
        rope_type="llama3",
        factor=factor,
        low_freq_factor=_LOW,
        high_freq_factor=_HIGH,
        original_max_context=_ORIGINAL,
    )
    expected = inverse_frequencies(plain, head_dim) / inverse_frequencies(scaled, head_dim)
    if divisors.shape != expected.shape or not torch.allclose(divisors, expected, rtol=1e-3):
        raise UnsupportedModelError("rope_freqs in the GGUF file are not those of Llama 3, which alone are supported")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }

"""The `rope_scaling` of config.json out of a GGUF file.

Llama 3 and LongRoPE are stored as tensors of divisors, one for each frequency, the others as metadata.
"""

from dataclasses import replace
from typing import Any

import torch

from model_worker.model.errors import UnsupportedModelError
from model_worker.model.gguf_file import GgufFile, dequantised, shortest
from model_worker.model.rope import RopeConfig, inverse_frequencies

_LLAMA3, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
# Every published Llama 3.1, 3.2 and 3.3 was made with these; only the factor differs.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192


def rope_scaling(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any] | None:
    """None when frequencies are not scaled. Raises UnsupportedModelError for a scaling that is not known."""
    if _LLAMA3 in file.stored:
        return llama3_scaling(dequantised(file.stored[_LLAMA3]), theta, head_dim)
    if _LONG in file.stored and _SHORT in file.stored:
        return _longrope(file)
    kind = file.optional("rope.scaling.type", "none")
    match kind:
        case "none":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": shortest(file.required("rope.scaling.factor"))}
        case "yarn":
            return {
                "rope_type": "yarn",
                "factor": shortest(file.required("rope.scaling.factor")),
                "original_max_position_embeddings": int(file.required("rope.scaling.original_context_length")),
            }
        case _:
            raise UnsupportedModelError(
                f"GGUF rope scaling {kind!r} is not supported; supported: none, linear, yarn, llama3, longrope"
            )


def _longrope(file: GgufFile) -> dict[str, Any]:
    attention_factor = file.optional("rope.scaling.attn_factor", None)
    return {
        "rope_type": "longrope",
        "long_factor": [shortest(divisor) for divisor in dequantised(file.stored[_LONG]).tolist()],
        "short_factor": [shortest(divisor) for divisor in dequantised(file.stored[_SHORT]).tolist()],
        "original_max_position_embeddings": int(file.required("rope.scaling.original_context_length")),
        **({} if attention_factor is None else {"attention_factor": shortest(attention_factor)}),
    }


def llama3_scaling(divisors: torch.Tensor, theta: float, head_dim: int) -> dict[str, Any]:
    """The `rope_scaling` whose frequencies are the unscaled ones over `divisors` [head_dim / 2].

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

"""Shapes known by name, from the config.json files their makers published."""

import difflib

from cli.estimate.shape import Latent, ModelShape

MLA_UNSERVED = "the worker does not run MLA: its pool holds keys and values, not latents (docs/models.md)"


def _decoder(
    name: str,
    layers: int,
    heads: tuple[int, int],
    head_dim: int,
    context: int,
    windows: tuple[int | None, ...] = (),
) -> ModelShape:
    """``heads``: query heads and KV heads."""
    return ModelShape(name, layers, *heads, head_dim, windows, context)


def _gemma3(name: str, layers: int, heads: tuple[int, int], head_dim: int, context: int, window: int) -> ModelShape:
    """The last of every six layers sees everything, the others a window."""
    windows = tuple(window if (index + 1) % 6 else None for index in range(layers))
    return _decoder(name, layers, heads, head_dim, context, windows)


def _deepseek(name: str, layers: int, heads: int) -> ModelShape:
    """Keys of 128 + 64 and values of 128 per head, kept as a latent of 512 and a rotated key of 64."""
    return ModelShape(
        name, layers, heads, heads, 128, (), 163_840, Latent(512, 64, (128 + 64) + 128), unserved=MLA_UNSERVED
    )


SHAPES: dict[str, ModelShape] = {
    shape.name.lower(): shape
    for shape in (
        _decoder("SmolLM2-135M", 30, (9, 3), 64, 8_192),
        _decoder("Llama-2-7B", 32, (32, 32), 128, 4_096),
        _decoder("Llama-3.2-1B", 16, (32, 8), 64, 131_072),
        _decoder("Llama-3.2-3B", 28, (24, 8), 128, 131_072),
        _decoder("Llama-3.1-8B", 32, (32, 8), 128, 131_072),
        _decoder("Llama-3.1-70B", 80, (64, 8), 128, 131_072),
        _decoder("Mistral-7B-v0.1", 32, (32, 8), 128, 32_768, (4_096,) * 32),
        _decoder("Mistral-7B-v0.3", 32, (32, 8), 128, 32_768),
        _decoder("OPT-13B", 40, (40, 40), 128, 2_048),
        _decoder("Qwen3-0.6B", 28, (16, 8), 128, 40_960),
        _decoder("Qwen3-8B", 36, (32, 8), 128, 40_960),
        _decoder("Qwen3-32B", 64, (64, 8), 128, 40_960),
        _gemma3("Gemma-3-1B", 26, (4, 1), 256, 32_768, 512),
        _gemma3("Gemma-3-4B", 34, (8, 4), 256, 131_072, 1_024),
        _gemma3("Gemma-3-12B", 48, (16, 8), 256, 131_072, 1_024),
        _gemma3("Gemma-3-27B", 62, (32, 16), 128, 131_072, 1_024),
        _deepseek("DeepSeek-V2-Lite", 27, 16),
        _deepseek("DeepSeek-V2", 60, 128),
        _deepseek("DeepSeek-V3", 61, 128),
    )
}
"""By lower-case name."""
ALIASES = {"mistral-7b": "mistral-7b-v0.3", "gemma-3": "gemma-3-4b"}


def built_in(name: str) -> ModelShape | None:
    """The shape of that name, whatever its case."""
    return SHAPES.get(ALIASES.get(name.lower(), name.lower()))


def like(name: str) -> list[str]:
    """Names of built-in shapes that somebody may have meant, best first: of ``owner/name`` the name counts."""
    return difflib.get_close_matches(name.rpartition("/")[2].lower(), SHAPES, n=3, cutoff=0.5)

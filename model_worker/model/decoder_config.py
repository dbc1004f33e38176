"""The configuration of the native forward pass, read from config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from model_worker.model.activations import ACTIVATIONS
from model_worker.model.config import ModelConfig, architecture_of, common_window, read_ids, read_positive, read_size
from model_worker.model.errors import CheckpointError, UnsupportedModelError
from model_worker.model.families import FAMILIES, Family, Windows, layer_windows
from model_worker.model.rope import RopeConfig, inverse_frequencies
from model_worker.model.rope_config import Contexts, parameters, read_rope

_LOCAL_THETA = 10000.0
# What comes of fields that are rarely read, where they are not what they should be.
NONSENSE = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)


class ExpertsConfig(NamedTuple):
    """A mixture of experts in some of the layers."""

    total: int
    chosen: int
    """Experts per token."""
    width: int
    normalised: bool
    """The weights of a token's experts add up to 1."""
    layers: tuple[int, ...]
    """The layers that have experts; the others are dense."""


@dataclass(frozen=True, slots=True)
class DecoderConfig(ModelConfig):
    """Sizes and constants of a decoder of one of the native families."""

    hidden_size: int
    ffn_size: int
    rms_eps: float
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    activation: str
    scale: float
    """Of the scores q.k."""
    windows: Windows
    """One for each layer."""
    ropes: tuple[RopeConfig, ...]
    layer_ropes: tuple[int, ...]
    """For each layer, which of `ropes`."""
    attention_cap: float | None = None
    logits_cap: float | None = None
    experts: ExpertsConfig | None = None

    @property
    def family(self) -> Family:
        return FAMILIES[self.architecture]


def read_decoder_config(
    raw: Mapping[str, Any], generation: Mapping[str, Any], max_context: int | None = None
) -> DecoderConfig:
    """From the contents of config.json and generation_config.json (may be empty), to serve up to `max_context`.

    Raises CheckpointError when a field is missing or makes no sense, or sizes contradict each other,
    UnsupportedModelError for what the forward pass does not have.
    """
    architecture = architecture_of(raw)
    try:
        config = _read(architecture, raw, generation, max_context)
        for rope in config.ropes:
            inverse_frequencies(rope, config.head_dim)  # what cannot be computed is refused before weights are read
    except NONSENSE as error:
        raise CheckpointError(f"config.json makes no {architecture}: {type(error).__name__}: {error}") from error
    return config


def _read(
    architecture: str, raw: Mapping[str, Any], generation: Mapping[str, Any], max_context: int | None
) -> DecoderConfig:
    family = FAMILIES[architecture]
    activation = raw.get(family.activation) or raw.get("hidden_act") or "silu"
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        supported = ", ".join(map(repr, ACTIVATIONS))
        raise UnsupportedModelError(f"activation {activation!r} is not supported; supported: {supported}")
    hidden_size, num_heads = read_size(raw, "hidden_size"), read_size(raw, "num_attention_heads")
    num_kv_heads = read_size(raw, "num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(f"{num_heads} attention heads cannot share {num_kv_heads} KV heads evenly")
    head_dim = read_size(raw, "head_dim", default=hidden_size // num_heads)
    vocab_size, num_layers = read_size(raw, "vocab_size"), read_size(raw, "num_hidden_layers")
    made_for = read_size(raw, "max_position_embeddings")
    # A window of the whole context, as Phi-3.5 has, is none.
    windows = tuple(
        None if window is None or window >= made_for else window for window in layer_windows(family, raw, num_layers)
    )
    biased = bool(raw.get("attention_bias", False))
    ropes = _ropes(family, raw, Contexts(made_for, max_context or made_for), head_dim)
    return DecoderConfig(
        architecture=architecture,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_context=_served(ropes[0], made_for, max_context),
        window=common_window(windows),
        bos_token_id=next(iter(read_ids(raw, generation, "bos_token_id", vocab_size)), None),
        eos_token_ids=read_ids(raw, generation, "eos_token_id", vocab_size),
        hidden_size=hidden_size,
        ffn_size=read_size(raw, "intermediate_size"),
        rms_eps=read_positive(raw, "rms_norm_eps", 1e-6),
        tied_embeddings=bool(raw.get("tie_word_embeddings", family.tied_embeddings)),
        qkv_bias=biased if family.qkv_bias is None else family.qkv_bias,
        output_bias=biased if family.qkv_bias is None else False,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        activation=activation,
        scale=read_positive(raw, "query_pre_attn_scalar", head_dim) ** -0.5,
        windows=windows,
        ropes=ropes,
        layer_ropes=tuple(int(window is not None) if len(ropes) > 1 else 0 for window in windows),
        attention_cap=_cap(family, raw, "attn_logit_softcapping"),
        logits_cap=_cap(family, raw, "final_logit_softcapping"),
        experts=_experts(family, raw, num_layers),
    )


def _served(rope: RopeConfig, made_for: int, wanted: int | None) -> int:
    """The positions that are served.

    yarn reaches `factor` times its original context, whatever max_position_embeddings says. dynamic reaches as far, but
    turns other than the model was trained to, so only when it is asked to.
    """
    match rope.rope_type:
        case "yarn":
            longest = max(made_for, int(rope.factor * rope.original_max_context))
            return min(wanted or longest, longest)
        case "dynamic":
            return min(wanted or made_for, int(rope.factor * made_for))
        case _:
            return min(wanted or made_for, made_for)


def _ropes(family: Family, raw: Mapping[str, Any], contexts: Contexts, head_dim: int) -> tuple[RopeConfig, ...]:
    """One for all layers, or one for layers that see everything and one for those with a window."""
    given = parameters(raw)
    if not family.local_rope:
        return (read_rope(given, raw, contexts, head_dim),)
    if "full_attention" in given:
        kinds = (given["full_attention"], given["sliding_attention"])
    else:
        kinds = (given, {"rope_theta": raw.get("rope_local_base_freq", _LOCAL_THETA)})
    return tuple(read_rope(kind, raw, contexts, head_dim) for kind in kinds)


def _cap(family: Family, raw: Mapping[str, Any], name: str) -> float | None:
    return read_positive(raw, name) if family.soft_caps and raw.get(name) is not None else None


def _experts(family: Family, raw: Mapping[str, Any], num_layers: int) -> ExpertsConfig | None:
    names = family.experts
    if names is None:
        return None
    every, dense = read_size(raw, "decoder_sparse_step", default=1), raw.get("mlp_only_layers") or []
    # One number under two names, whichever family it is.
    count = read_size(raw, "num_experts" if "num_experts" in raw else "num_local_experts")
    chosen = read_size(raw, "num_experts_per_tok", default=2)
    if chosen > count:
        raise CheckpointError(f"{chosen} experts per token of {count}")
    return ExpertsConfig(
        total=count,
        chosen=chosen,
        width=read_size(raw, names.width),
        normalised=bool(raw.get("norm_topk_prob", names.normalised)),
        layers=tuple(index for index in range(num_layers) if (index + 1) % every == 0 and index not in dense),
    )

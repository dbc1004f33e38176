"""Which tensors of a checkpoint make up the matrices and norms of a decoder: names and shapes, in one place."""

from typing import NamedTuple

from model_worker.model.decoder_config import DecoderConfig
from model_worker.model.families import ExpertNames

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT = "lm_head.weight"


class Matrix(NamedTuple):
    """A matrix of the forward pass: the checkpoint's modules one above the other."""

    modules: tuple[str, ...]
    rows: tuple[int, ...]
    """Of each module."""
    columns: int
    bias: bool = False

    def weights(self) -> tuple[str, ...]:
        return tuple(f"{module}.weight" for module in self.modules)

    def biases(self) -> tuple[str, ...]:
        return tuple(f"{module}.bias" for module in self.modules) if self.bias else ()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            **{name: (rows, self.columns) for name, rows in zip(self.weights(), self.rows, strict=True)},
            **({name: (rows,) for name, rows in zip(self.biases(), self.rows, strict=True)} if self.bias else {}),
        }


class FeedForward(NamedTuple):
    """A dense block, or one expert."""

    gate_up: Matrix
    down: Matrix


class Experts(NamedTuple):
    router: Matrix
    experts: tuple[FeedForward, ...]


class Norms(NamedTuple):
    """Names of a layer's norms; None where the family has none."""

    attention: str
    after_attention: str | None
    ffn: str
    after_ffn: str | None
    query: str | None
    key: str | None


class LayerTensors(NamedTuple):
    qkv: Matrix
    """Rows of q, then k, then v."""
    attention_out: Matrix
    ffn: FeedForward | Experts
    norms: Norms


def layer_tensors(config: DecoderConfig, index: int) -> LayerTensors:
    """What layer `index` is made of."""
    prefix, family, hidden = f"model.layers.{index}", config.family, config.hidden_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = f"{prefix}.self_attn"
    if family.fused:
        qkv = Matrix((f"{attention}.qkv_proj",), (q + 2 * kv,), hidden, config.qkv_bias)
    else:
        qkv = Matrix(tuple(f"{attention}.{part}_proj" for part in "qkv"), (q, kv, kv), hidden, config.qkv_bias)
    norms = Norms(
        attention=f"{prefix}.input_layernorm.weight",
        after_attention=f"{prefix}.post_attention_layernorm.weight" if family.sandwich_norms else None,
        ffn=f"{prefix}.{'pre_feedforward' if family.sandwich_norms else 'post_attention'}_layernorm.weight",
        after_ffn=f"{prefix}.post_feedforward_layernorm.weight" if family.sandwich_norms else None,
        query=f"{attention}.q_norm.weight" if family.qk_norm else None,
        key=f"{attention}.k_norm.weight" if family.qk_norm else None,
    )
    output = Matrix((f"{attention}.o_proj",), (hidden,), q, config.output_bias)
    return LayerTensors(qkv, output, _ffn(config, prefix, index), norms)


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint, by its Hugging Face name, in the order of the layers."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        layer = layer_tensors(config, index)
        for matrix in (layer.qkv, layer.attention_out, *_matrices(layer.ffn)):
            shapes |= matrix.shapes()
        for role, name in layer.norms._asdict().items():
            if name is not None:
                shapes[name] = (config.head_dim,) if role in ("query", "key") else (config.hidden_size,)
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tied_embeddings:
        shapes[OUTPUT] = (config.vocab_size, config.hidden_size)
    return shapes


def _ffn(config: DecoderConfig, prefix: str, index: int) -> FeedForward | Experts:
    names, mixture = config.family.experts, config.experts
    if names is not None and mixture is not None and index in mixture.layers:
        block = f"{prefix}.{names.block}"
        experts = (_expert(names, f"{block}.experts.{number}", config) for number in range(mixture.total))
        return Experts(Matrix((f"{block}.gate",), (mixture.total,), config.hidden_size), tuple(experts))
    mlp, width, hidden = f"{prefix}.mlp", config.ffn_size, config.hidden_size
    if config.family.fused:
        gate_up = Matrix((f"{mlp}.gate_up_proj",), (2 * width,), hidden, config.mlp_bias)
    else:
        gate_up = Matrix((f"{mlp}.gate_proj", f"{mlp}.up_proj"), (width, width), hidden, config.mlp_bias)
    return FeedForward(gate_up, Matrix((f"{mlp}.down_proj",), (hidden,), width, config.mlp_bias))


def _expert(names: ExpertNames, prefix: str, config: DecoderConfig) -> FeedForward:
    assert config.experts is not None
    width, hidden = config.experts.width, config.hidden_size
    gate_up = Matrix((f"{prefix}.{names.gate}", f"{prefix}.{names.up}"), (width, width), hidden)
    return FeedForward(gate_up, Matrix((f"{prefix}.{names.down}",), (hidden,), width))


def _matrices(ffn: FeedForward | Experts) -> list[Matrix]:
    if isinstance(ffn, FeedForward):
        return [ffn.gate_up, ffn.down]
    return [ffn.router, *(matrix for expert in ffn.experts for matrix in (expert.gate_up, expert.down))]

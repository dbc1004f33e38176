"""What GGUF files of each architecture hold: the Hugging Face names of their tensors, and what writers changed."""

from dataclasses import dataclass, field

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """One architecture of GGUF."""

    hf_name: str
    model_type: str
    names: dict[str, str] = field(default_factory=dict)
    """Of a layer's modules, where they differ from Llama's."""
    interleaved: bool = False
    """Rows of q and k are stored as rotary pairs."""
    norms_plus_one: bool = False
    """Norms are stored as 1 + weight."""
    activation: str = "silu"
    scalar_by_heads: int | None = None
    """The number of layers of the one size whose scores are scaled by hidden size / heads and not by head dim."""

    def layer_name(self, module: str) -> str | None:
        """The Hugging Face name of a layer's module."""
        return self.names.get(module) or _LAYER_NAMES.get(module)


def _gemma(hf_name: str, model_type: str, large: int) -> GgufArchitecture:
    return GgufArchitecture(
        hf_name,
        model_type,
        names=_SANDWICH,
        norms_plus_one=True,
        activation="gelu_pytorch_tanh",
        scalar_by_heads=large,
    )


ARCHITECTURES = {
    "llama": GgufArchitecture("LlamaForCausalLM", "llama", interleaved=True),
    "qwen2": GgufArchitecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": GgufArchitecture("Qwen3ForCausalLM", "qwen3"),
    "gemma2": _gemma("Gemma2ForCausalLM", "gemma2", large=46),
    "gemma3": _gemma("Gemma3ForCausalLM", "gemma3_text", large=62),
    "phi3": GgufArchitecture(
        "Phi3ForCausalLM", "phi3", names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
    ),
}
"""By `general.architecture`. Mistral's files say llama."""

"""What a model keeps of every token: keys and values per layer, or latents."""

from dataclasses import dataclass

from cli.amounts import counted
from cli.failures import CliError

KV_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
"""Bytes of an element of the pool, by its type."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Per token and layer one compressed vector and one rotated key, shared by all heads, instead of keys and values.

    Attributes:
        rank: elements of the compressed vector, ``kv_lora_rank``.
        rope_dim: elements of the rotated key, ``qk_rope_head_dim``.
        head_elements: what one head's key and value would take uncompressed; None when not told.
    """

    rank: int
    rope_dim: int
    head_elements: int | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder that its KV cache depends on.

    Attributes:
        name: what to call it.
        num_heads: query heads; as many as KV heads when nobody told.
        head_dim: elements of one head's key, and of its value.
        windows: for each layer how many last tokens it attends to, None for all of them.
        max_context: positions it was made for; None when not told.
        latent: set for multi-head latent attention; then ``num_kv_heads`` and ``head_dim`` allocate nothing.
        unserved: why the worker does not run such a model, None when nothing here speaks against it.
    """

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...] = ()
    max_context: int | None = None
    latent: Latent | None = None
    unserved: str | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise CliError(f"{self.name}: {name} must be at least 1, found {getattr(self, name)}")
        if self.latent is None and self.num_heads % self.num_kv_heads:
            raise CliError(
                f"{self.name}: {self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly"
            )

    @property
    def kind(self) -> str:
        """MHA, GQA, MQA or MLA."""
        if self.latent is not None:
            return "MLA"
        if self.num_kv_heads == self.num_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    @property
    def layer_elements(self) -> int:
        """Elements that one layer keeps of a token."""
        if self.latent is not None:
            return self.latent.rank + self.latent.rope_dim
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def layer_formula(self) -> str:
        """``layer_elements`` as it is counted."""
        if self.latent is not None:
            return f"({self.latent.rank} latent + {self.latent.rope_dim} rotated key)"
        return f"2 (K, V) x {counted(self.num_kv_heads, 'KV head')} x {self.head_dim}"

    def token_bytes(self, itemsize: int) -> int:
        """Bytes that all layers keep of a token."""
        return self.num_layers * self.layer_elements * itemsize

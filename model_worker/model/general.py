"""The general path: transformers' own modules with the paged pool behind their attention."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kernels import RaggedBatch
from model_worker.model import general_attention
from model_worker.model.checkpoint import Checkpoint
from model_worker.model.config import ModelConfig, architecture_of, read_ids
from model_worker.model.errors import CheckpointError
from model_worker.model.general_attention import Step, running
from model_worker.model.general_probe import layer_windows, refusal, sets_attention

MAX_SAID = 300


@dataclass(frozen=True, slots=True)
class GeneralConfig(ModelConfig):
    """Sizes of a model of transformers."""

    described: str
    """Everything that its config.json says and the rotary embedding made of it, as JSON."""


class GeneralModel:
    """A model of transformers whose attention reads and writes the pool. `load` makes one."""

    def __init__(self, model: PreTrainedModel, config: GeneralConfig, windows: tuple[int | None, ...]) -> None:
        self.config = config
        self.dtype = model.dtype
        self.device = model.device
        self._model = model
        self._windows = windows
        self._selects = _accepts(type(model), "logits_to_keep")

    @property
    def capturable(self) -> bool:
        """As transformers says of the class, that it compiles whole; not with frequencies that follow the positions."""
        whole = bool(getattr(self._model, "_can_compile_fullgraph", False))
        return whole and not _rope_types(self._model.config) & {"dynamic", "longrope"}

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: RaggedBatch,
        pool: torch.Tensor,
        logits_at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `DecoderModel.forward`. All sequences are one row of tokens: only attention tells them apart."""
        selects = self._selects and logits_at is not None
        arguments: dict[str, Any] = {"logits_to_keep": logits_at} if selects else {}
        with running(Step(self._windows, slots, batch, pool)):
            output = self._model(
                input_ids=token_ids[None],
                position_ids=positions[None],
                attention_mask=None,
                use_cache=False,
                return_dict=True,
                **arguments,
            )
        logits: torch.Tensor = output.logits[0]
        return (logits if selects or logits_at is None else logits.index_select(0, logits_at)).float()


def read_general_config(checkpoint: Checkpoint, folder: Path, max_context: int | None) -> GeneralConfig:
    """The configuration of a folder, without its weights. Raises as `load_general`, as far as it can be known."""
    config, _ = _configured(checkpoint, folder, max_context)
    return config


def load_general(
    checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, device: torch.device, max_context: int | None
) -> GeneralModel:
    """Loads a folder with transformers.

    Raises UnsupportedModelError when transformers does not know the architecture or its attention cannot be served
    from the pool, CheckpointError when weights are missing.
    """
    config, hf_config = _configured(checkpoint, folder, max_context)
    hf_logging: Any = transformers.utils.logging
    hf_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=hf_config, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except Exception as error:
        raise CheckpointError(f"transformers cannot load {folder}: {_said(error)}") from error
    model, report = loaded
    if wrong := sorted(map(str, (*report["missing_keys"], *report["mismatched_keys"]))):
        raise CheckpointError(f"the weights do not match config.json: missing or misshapen {wrong[0]}")
    model = model.to(device).eval()
    windows = layer_windows(model, config)
    sets_attention(model, general_attention.NAME)
    return GeneralModel(model, config, windows)


def _configured(
    checkpoint: Checkpoint, folder: Path, max_context: int | None
) -> tuple[GeneralConfig, PretrainedConfig]:
    raw = checkpoint.config()
    architecture = architecture_of(raw)
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        if raw.get("auto_map"):
            raise refusal(architecture, "needs code of its own, which is not run")
        kind = "is no language model of" if hasattr(transformers, architecture) else "is not known to"
        raise refusal(architecture, f"{kind} transformers {transformers.__version__}")
    try:
        hf_config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # its checks raise classes of their own
        raise CheckpointError(f"transformers cannot read {folder}: {_said(error)}") from error
    expected = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(hf_config.model_type)
    if architecture != expected:
        raise CheckpointError(
            f"config.json names {architecture}, but its model_type {hf_config.model_type!r} is run by {expected}"
        )
    _check_class(architecture, hf_config)
    sizes = _sizes(hf_config, architecture)
    _pin_long_rope(hf_config, served := min(max_context or sizes.positions, sizes.positions))
    values, generation = hf_config.to_dict(), checkpoint.generation_config()
    config = GeneralConfig(
        architecture=architecture,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocab,
        max_context=served,
        window=None,
        bos_token_id=next(iter(read_ids(values, generation, "bos_token_id", sizes.vocab)), None),
        eos_token_ids=read_ids(values, generation, "eos_token_id", sizes.vocab),
        described=json.dumps([raw, getattr(hf_config, "rope_parameters", None)], sort_keys=True),
    )
    return config, hf_config


def _said(error: Exception) -> str:
    """An error of a library in one line: its own first lines may say only where, as "Validation error for field"."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_SAID]


class _Sizes(NamedTuple):
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int


def _sizes(hf_config: PretrainedConfig, architecture: str) -> _Sizes:
    """transformers knows these under one name, whatever config.json calls them."""
    try:
        heads = hf_config.num_attention_heads
        kv_heads = getattr(hf_config, "num_key_value_heads", None) or heads
        sizes = _Sizes(
            layers=hf_config.num_hidden_layers,
            heads=heads,
            kv_heads=1 if getattr(hf_config, "multi_query", False) else kv_heads,
            head_dim=getattr(hf_config, "head_dim", None) or hf_config.hidden_size // heads,
            vocab=hf_config.vocab_size,
            positions=hf_config.max_position_embeddings,
        )
    except (AttributeError, RuntimeError, TypeError, ZeroDivisionError) as error:
        raise refusal(architecture, f"has no one size of its layers: {str(error).splitlines()[0]}") from error
    for name, value in sizes._asdict().items():
        if not isinstance(value, int) or value < 1:
            raise refusal(architecture, f"does not say its number of {name} in config.json")
    return sizes


def _check_class(architecture: str, hf_config: PretrainedConfig) -> None:
    """Asks the class, on a copy without weights, before gigabytes are read."""
    model_class: type[PreTrainedModel] = getattr(transformers, architecture)
    if not _accepts(model_class, "position_ids"):
        raise refusal(architecture, "takes no position_ids, so that its tokens cannot be told where they stand")
    try:
        with torch.device("meta"):
            model = model_class(hf_config)
    except Exception as error:  # modules raise what they please when a configuration makes no sense to them
        raise CheckpointError(f"config.json makes no {architecture}: {_said(error)}") from error
    if not sets_attention(model, general_attention.NAME):
        raise refusal(architecture, "does not call its attention through the attention interface")


def _accepts(model_class: type[PreTrainedModel], name: str) -> bool:
    """Whether the class's forward takes an argument of this name."""
    return name in inspect.signature(model_class.forward).parameters


def _rope_types(hf_config: PretrainedConfig) -> set[str]:
    """The types of its rotary embeddings: of all layers, or by their kind."""
    rope: Mapping[str, Any] = getattr(hf_config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, Mapping))]
    return {str(kind.get("rope_type", "default")) for kind in kinds}


def _pin_long_rope(hf_config: PretrainedConfig, served: int) -> None:
    """longrope divides frequencies by one list or another, by the longest sequence of a step. Keys outlive their step,
    so the list is chosen once, for the context served."""
    rope: Mapping[str, Any] = getattr(hf_config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        chosen = "long_factor" if served > rope["original_max_position_embeddings"] else "short_factor"
        hf_config.rope_parameters = {**rope, "short_factor": rope[chosen], "long_factor": rope[chosen]}

"""A tiny Llama checkpoint whose greedy text is arithmetic: it writes the successor of the last token.

    a b c ... z space a ...      letters
    F0 9F A6 8A F0 ...           the bytes of a fox, one token each
    anything else -> a           so that every conversation is answered by "abcdef..."

Attention and MLP run and add nothing: their output projections are zero. Tokens have orthogonal embeddings, one for all
that are "anything else", so the logit of the successor is 10 and that of every other token 0: greedy text is certain,
and sampled text has a choice. 64 equal signs are one token, which makes prompts that are large in bytes and small in
tokens. A wide MLP takes time and changes nothing else: it makes generations that last.
"""

import json
from pathlib import Path

import numpy as np
from byte_vocabulary import byte_level
from safetensors.numpy import save_file
from tokenizers import Tokenizer

END, TURN = "</s>", "<|turn|>"
LETTERS = "abcdefghijklmnopqrstuvwxyz "
FOX = "🦊"
RUN = 64
"""Equal signs that are one token."""

CONTEXT = 16_384
HIDDEN, HEADS, KV_HEADS, HEAD = 96, 3, 1, 32
INTERMEDIATE = 64
SUCCESSOR_LOGIT = 10.0

TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}:{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)


def _tokenizer() -> Tokenizer:
    runs = ["=" * length for length in (1, 2, 4, 8, 16, 32, RUN)]
    return byte_level([END, TURN], runs[1:], [(run, run) for run in runs[:-1]])


def _successors(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The successor of each token, and the tokens that have one of their own."""
    cycles = [tokenizer.encode(text).ids for text in (LETTERS, FOX)]
    successors = [cycles[0][0]] * tokenizer.get_vocab_size()
    for ids in cycles:
        for token, following in zip(ids, [*ids[1:], ids[0]], strict=True):
            successors[token] = following
    return successors, [token for ids in cycles for token in ids]


def _weights(successors: list[int], scripted: list[int], intermediate: int) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(6)

    def drawn(*shape: int) -> np.ndarray:
        return dice.standard_normal(shape).astype(np.float32)

    # Rows of length sqrt(HIDDEN): the norm keeps them as they are, and a row times itself is HIDDEN.
    rows = np.linalg.qr(drawn(HIDDEN, HIDDEN))[0].astype(np.float32) * np.sqrt(HIDDEN)
    embedding = np.repeat(rows[:1], len(successors), axis=0)
    embedding[scripted] = rows[1 : 1 + len(scripted)]
    head = np.zeros_like(embedding)
    for row in rows[: 1 + len(scripted)]:
        (tokens,) = np.nonzero((embedding == row).all(axis=1))
        head[successors[tokens[0]]] += row * (SUCCESSOR_LOGIT / HIDDEN)
    layer = "model.layers.0"
    return {
        "model.embed_tokens.weight": embedding,
        f"{layer}.self_attn.q_proj.weight": drawn(HEADS * HEAD, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": drawn(KV_HEADS * HEAD, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": drawn(KV_HEADS * HEAD, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": np.zeros((HIDDEN, HEADS * HEAD), np.float32),
        f"{layer}.mlp.gate_proj.weight": drawn(intermediate, HIDDEN),
        f"{layer}.mlp.up_proj.weight": drawn(intermediate, HIDDEN),
        f"{layer}.mlp.down_proj.weight": np.zeros((HIDDEN, intermediate), np.float32),
        f"{layer}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
        f"{layer}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": head,
    }


def write(folder: Path, intermediate_size: int = INTERMEDIATE) -> Path:
    """Write the checkpoint; returns the folder.

    Args:
        folder: made where it is not there.
        intermediate_size: of the MLP; 1,152 bytes of weights each, all of them read in every step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    successors, scripted = _successors(tokenizer)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(successors),
        "hidden_size": HIDDEN,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.token_to_id(END),
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    weights = _weights(successors, scripted, intermediate_size)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

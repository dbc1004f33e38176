"""A tokenizer whose tokens are single bytes, so that a test knows every token: text of n bytes is n tokens.

ids 0..255   the bytes, in the order of the byte-level alphabet
id  256      </s>, special
id  257      <|turn|>, special
"""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = "</s>"
TURN = "<|turn|>"
END_ID = 256
VOCAB_SIZE = 258

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.content == 'refuse me' %}{{ raise_exception('this template refuses') }}{% endif %}"
    "<|turn|>{{ message.role }}:{{ message.content }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
    "{% if aside is defined %}{{ aside.text * 2 }}{% endif %}"
)


def tokenizer_files() -> dict[str, bytes]:
    """The files of a model folder that a gateway needs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: id_ for id_, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken(TURN, special=True)])
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": END}).encode(),
        "chat_template.jinja": TEMPLATE.encode(),
    }

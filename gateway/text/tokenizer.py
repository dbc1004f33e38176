"""A model's tokenizer, read from the files a Hugging Face model folder carries.

Encoding and decoding are those of transformers' `AutoTokenizer` on the same files, without importing transformers.

Threads: a loaded `Tokenizer` never changes, so any number of threads may use it at once. `encode` and `decode` release
the GIL while they work; a prompt of megabytes takes seconds, so an event loop calls them from a worker thread.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from gateway.text.decode_plan import SPACE_CLEAN_UP, DecodePlan

TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"
MODEL_CONFIG = "config.json"

# What a worker hands out so that a gateway needs no shared folder. Only tokenizer.json must exist.
TOKENIZER_FILES = (TOKENIZER_JSON, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, CHAT_TEMPLATE, GENERATION_CONFIG, MODEL_CONFIG)

_EXTRA_TOKENS = ("extra_special_tokens", "additional_special_tokens")


class TokenizerError(Exception):
    """The tokenizer files are missing, unreadable or contradict each other; the message names the file."""


class Tokenizer:
    """Text to token ids and back.

    Attributes:
        vocab_size: every token id is below it; ids of the vocabulary and of added tokens.
        bos_token_id: the token that begins a text, or None.
        eos_token_ids: the tokens that end a generation: those of generation_config.json, else of config.json, else the
            tokenizer's own (the order transformers' generate uses).
        special_tokens: named special tokens as text, such as {"bos_token": "<s>"}; chat templates read them.
        added_ids: ids of tokens that are added to the vocabulary, which texts are cut at before anything else.
        special_ids: those of them that `skip_special_tokens` leaves out.
        chat_template: one template, several by name, or None.
    """

    def __init__(self, files: Mapping[str, bytes]):
        """Read the files, a mapping from the names of `TOKENIZER_FILES` to contents; other names are ignored.

        Raises TokenizerError.
        """
        config = _json_object(files, TOKENIZER_CONFIG)
        if "added_tokens_decoder" not in config:
            # Older folders, whose configuration lists no added tokens, name the special ones in a file of their own.
            config |= _json_object(files, SPECIAL_TOKENS_MAP)
        self._backend = _load_backend(files)
        self.special_tokens = _named_tokens(config)
        self._add_tokens(config)

        added = self._backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self.vocab_size = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.bos_token_id = self.id_of(self.special_tokens.get("bos_token"))
        self.eos_token_ids = self._eos_ids(files)
        self.chat_template = _chat_template(files, config)

        # The clean-up was made for WordPiece; on a BPE vocabulary it would remove spaces the model wrote, so
        # transformers leaves it out there whatever the configuration says.
        self._clean_up = bool(config.get("clean_up_tokenization_spaces", False)) and not isinstance(
            self._backend.model, tokenizers.models.BPE
        )
        decoder = self._backend.decoder
        self.plan = DecodePlan(None if decoder is None else json.loads(decoder.__getstate__()), self._clean_up)
        self._tokens: dict[int, str] = {}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Read a model folder. Raises TokenizerError."""
        folder = Path(folder)
        if not folder.is_dir():
            raise TokenizerError(f"{folder} is not a folder")
        try:
            return cls({name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()})
        except OSError as error:
            raise TokenizerError(f"{error.filename}: {error.strerror}") from error
        except TokenizerError as error:
            raise TokenizerError(f"{folder}: {error}") from error

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Special tokens written out in the text become their ids. `add_special_tokens` lets the tokenizer put its own
        around the text, such as bos; a rendered chat template already holds them, so pass False there.
        Raises ValueError for a text that is no Unicode (a lone surrogate).
        """
        try:
            # A batch of one: the library's single encode holds the GIL, and this one keeps no character offsets either.
            encoding = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        except (TypeError, UnicodeEncodeError) as error:
            raise ValueError("text is not valid Unicode: it holds a lone surrogate") from error
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids. Ids that name no token are left out."""
        # A batch of one, as in `encode`.
        text: str = self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]
        if self._clean_up:
            for pattern, replacement in SPACE_CLEAN_UP:
                text = text.replace(pattern, replacement)
        return text

    def token(self, id_: int) -> str | None:
        """The vocabulary entry of an id, such as `Ġthe`, or None when the id names no token."""
        try:
            return self._tokens[id_]
        except KeyError:
            token: str | None = self._backend.id_to_token(id_)
            if token is not None:  # else clients could fill it
                self._tokens[id_] = token
            return token

    def token_bytes(self, id_: int) -> bytes:
        """The bytes of one token inside a text, behind other tokens; empty for an id that names no token.

        Over the tokens of a text they concatenate to its UTF-8, also where a character is spread over tokens. Exempt
        are what a decoder does across tokens: the space some remove from the very beginning of a text, the space
        clean-up, and word ends of `BPEDecoder`.
        """
        known = self._bytes.get(id_)
        if known is None:
            known = self._bytes[id_] = self._token_bytes(id_)
        return known

    def _token_bytes(self, id_: int) -> bytes:
        token = self.token(id_)
        if token is None:
            return b""
        raw = self.plan.raw_bytes(token)
        if raw is not None:
            return raw
        if not self.plan.streamable:
            return self.decode([id_]).encode()
        machine = self.plan.machine()
        machine.push("x")
        machine.settle()
        return (machine.push(token) + machine.finish()).encode()

    def _add_tokens(self, config: Mapping[str, Any]) -> None:
        """Add what tokenizer_config.json knows beyond tokenizer.json, as transformers does."""
        present = {token.content for token in self._backend.get_added_tokens_decoder().values()}
        listed: list[tokenizers.AddedToken] = []
        try:
            entries = config.get("added_tokens_decoder") or {}
            for _, entry in sorted(entries.items(), key=lambda item: int(item[0])):
                listed.append(tokenizers.AddedToken(**{k: v for k, v in entry.items() if not k.startswith("__")}))
        except (AttributeError, TypeError, ValueError) as error:
            raise TokenizerError(f"{TOKENIZER_CONFIG}: added_tokens_decoder is malformed: {error}") from error
        special = [*self.special_tokens.values(), *_extra_tokens(config)]
        listed += [tokenizers.AddedToken(content, special=True, normalized=False) for content in special]
        for token in listed:
            if token.content not in present:
                present.add(token.content)
                token.special = token.special or token.content in special
                self._backend.add_tokens([token])

    def id_of(self, token: str | None) -> int | None:
        """The id of a token by its name in the vocabulary; None for one that is not there."""
        id_: int | None = None if token is None else self._backend.token_to_id(token)
        return id_

    def _eos_ids(self, files: Mapping[str, bytes]) -> tuple[int, ...]:
        for name in (GENERATION_CONFIG, MODEL_CONFIG):
            match _json_object(files, name).get("eos_token_id"):
                case int(id_):
                    return (id_,)
                case [*ids] if ids and all(isinstance(id_, int) for id_ in ids):
                    return tuple(ids)
                case None | []:
                    continue
                case other:
                    raise TokenizerError(f"{name}: eos_token_id is {other!r}, not an id or a list of ids")
        own = self.id_of(self.special_tokens.get("eos_token"))
        return () if own is None else (own,)


def _load_backend(files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    if TOKENIZER_JSON not in files:
        raise TokenizerError(f"{TOKENIZER_JSON} is missing (a SentencePiece or GGUF vocabulary has to be converted)")
    try:
        backend = tokenizers.Tokenizer.from_str(files[TOKENIZER_JSON].decode())
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{TOKENIZER_JSON} is not UTF-8: {error}") from error
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{TOKENIZER_JSON} is not a tokenizer: {error}") from error
    # Settings of the training run that some folders carry; a prompt is neither cut nor padded.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _json_object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """A JSON file's object; empty when the file is absent."""
    if name not in files:
        return {}
    try:
        value = json.loads(files[name])
    except ValueError as error:
        raise TokenizerError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{name} holds no JSON object")
    return value


def _content(token: object) -> str | None:
    """The text of a token given as a string or as an object with its `content`."""
    match token:
        case str(content) | {"content": str(content)}:
            return content
    return None


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Entries such as bos_token and eos_token, and those that extra_special_tokens names."""
    entries = {key: value for key, value in config.items() if key.endswith("_token")}
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        entries |= extra
    return {name: content for name, value in entries.items() if (content := _content(value)) is not None}


def _extra_tokens(config: Mapping[str, Any]) -> list[str]:
    for key in _EXTRA_TOKENS:
        if isinstance(config.get(key), list):
            return [content for token in config[key] if (content := _content(token)) is not None]
    return []


def _chat_template(files: Mapping[str, bytes], config: Mapping[str, Any]) -> str | dict[str, str] | None:
    if CHAT_TEMPLATE in files:
        try:
            return files[CHAT_TEMPLATE].decode()
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{CHAT_TEMPLATE} is not UTF-8: {error}") from error
    match config.get("chat_template"):
        case None:
            return None
        case str(template):
            return template
        case dict(named) if all(isinstance(template, str) for template in named.values()):
            return dict(named)
        case [*named]:
            try:
                return {str(entry["name"]): str(entry["template"]) for entry in named}
            except (KeyError, TypeError):
                pass
    raise TokenizerError(f"{TOKENIZER_CONFIG}: chat_template is neither a text nor a list of name and template")

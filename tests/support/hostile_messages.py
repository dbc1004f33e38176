"""Messages that nobody means well with: any field of a protobuf type with any value that the wire allows, and bytes
that are hardly a message.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

_INT32 = st.sampled_from([0, 1, -1, 2, 7, 2**31 - 1, -(2**31)]) | st.integers(-300, 300)
_INT64 = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1]) | st.integers(-300, 300)
_UINT32 = st.sampled_from([0, 1, 2**31, 2**32 - 1]) | st.integers(0, 300)
_UINT64 = st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 300)
_FLOATS = st.sampled_from([0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324])
_WORDS = [
    "",
    "\0",
    "a",
    "user",
    "assistant",
    "tool",
    "</s>",
    "<|turn|>",
    "refuse me",
    "{{",
    "\u202e",
    "\ufeff",
    "x" * 200,
]
_LONG = st.sampled_from(["x" * 70_000, "\U0001f600" * 5_000, "[" * 5_000, "{% for x in y %}" * 300, "\r\n\r\n" * 500])
_TEXTS = (
    st.sampled_from(_WORDS) | st.text(max_size=12) | _LONG | st.sampled_from(["{}", "[]", '{"type":"object"}', "{"])
)

_OF_TYPE: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: _INT32,
    FieldDescriptor.CPPTYPE_INT64: _INT64,
    FieldDescriptor.CPPTYPE_UINT32: _UINT32,
    FieldDescriptor.CPPTYPE_UINT64: _UINT64,
    FieldDescriptor.CPPTYPE_DOUBLE: _FLOATS | st.floats(),
    FieldDescriptor.CPPTYPE_FLOAT: _FLOATS | st.floats(width=32),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_ENUM: _INT32,
}

MAX_DEPTH = 4


def messages(kind: Descriptor, depth: int = 0) -> st.SearchStrategy[Message]:
    """Any message of a type: some have nearly all of their fields, most have few, which go further before a refusal."""

    @st.composite
    def made(draw: Callable[..., Any]) -> Message:
        message = GetMessageClass(kind)()
        fields_in_ten = draw(st.sampled_from([1, 1, 2, 5, 9]))
        for field in kind.fields:
            if draw(st.integers(0, 9)) < fields_in_ten:
                _fill(draw, message, field, depth)
        return message

    return made()


def _fill(draw: Callable[..., Any], message: Any, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        for _ in range(draw(st.integers(0, 3))):
            getattr(message, field.name)[draw(_scalars(key))] = draw(_scalars(value))
    elif field.message_type is not None:
        if depth == MAX_DEPTH:
            return
        inner = messages(field.message_type, depth + 1)
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(inner, max_size=3)))
        else:
            getattr(message, field.name).CopyFrom(draw(inner))
    elif field.is_repeated:
        size = draw(st.sampled_from([0, 1, 2, 3, 17, 200, 5_000]))
        few = draw(st.lists(_scalars(field), min_size=1, max_size=4))
        # 200 long texts would only measure how fast the wire is.
        size = size if field.cpp_type != FieldDescriptor.CPPTYPE_STRING else min(size, 17)
        getattr(message, field.name).extend((few * size)[:size])
    else:
        setattr(message, field.name, draw(_scalars(field)))


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=40)
    return _TEXTS if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else _OF_TYPE[field.cpp_type]


def broken_bytes(kind: Descriptor) -> st.SearchStrategy[bytes]:
    """What is no message of a type, or a strange one: cut, spliced, with wrong lengths, tags and UTF-8."""
    whole = messages(kind).map(lambda message: message.SerializeToString()[:100_000])
    numbers = [field.number for field in kind.fields] or [1]
    tags = st.builds(lambda number, wire: _varint(number << 3 | wire), st.sampled_from(numbers), st.integers(0, 7))
    far = st.sampled_from([2**29 - 1, 2**29, 19_000, 0]).map(lambda number: _varint(number << 3 | 2) + b"\x01x")
    endless = st.sampled_from(
        [b"\xff" * 11, b"\x80" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\xff\xff\xff\xff\xff\x7f"]
    )
    no_text = st.sampled_from(
        [b"\x12\x01\xff", b"\x12\x03\xed\xa0\x80", b"\x0a\x02\xc0\x80", b"\x12\x04\xf8\x88\x80\x80"]
    )
    deep = st.sampled_from([b"\x0b" * 5_000, b"\x0b" * 99 + b"\x0c" * 99])
    scraps = st.binary(max_size=30) | tags | far | endless | no_text | deep
    cut = st.builds(lambda data, share: data[: int(len(data) * share)], whole, st.floats(0, 1))
    spliced = st.builds(lambda first, scrap, last: first + scrap + last, cut, scraps, cut)
    return cut | spliced | scraps


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)

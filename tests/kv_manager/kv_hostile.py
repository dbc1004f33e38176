"""Hostile protobuf messages: valid ones with a few fields bent, whatever their type, and bytes that are no message.

The mutator knows nothing of the contract: it walks the descriptors. So a field added tomorrow is bent too.
"""

import math
import random
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

MAX_UINT32, MAX_UINT64 = 2**32 - 1, 2**64 - 1

UINT32 = (0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**31, MAX_UINT32 - 1, MAX_UINT32)
UINT64 = (*UINT32, 2**32, 2**53 + 1, 2**63 - 1, 2**63, MAX_UINT64 - 1, MAX_UINT64)
"""Zero, and what a careless client makes of -1, -2 and -2**31 or -2**63."""
INT32 = (0, 1, -1, 2**31 - 1, -(2**31))
DOUBLES = (0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308)
STRINGS = ("", "\0", "\n", "pool", "other", "é" * 128, "x" * 257, "%s%n{}", "x" * 20_000)
BYTES = (b"", b"\0", b"\xff" * 3, b"\xff" * 4, bytes(5), b"\x01\0\0\0" * 3, bytes(64 * 1024))

SAMPLES: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_UINT32: UINT32,
    FieldDescriptor.TYPE_UINT64: UINT64,
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_DOUBLE: DOUBLES,
    FieldDescriptor.TYPE_STRING: STRINGS,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_ENUM: (0, 1, 2, 3, 99, -1),
}
LARGEST = {
    FieldDescriptor.TYPE_UINT32: MAX_UINT32,
    FieldDescriptor.TYPE_UINT64: MAX_UINT64,
    FieldDescriptor.TYPE_INT32: 2**31 - 1,
}

Site = tuple[Message, FieldDescriptor]


def bend(dice: random.Random, message: Message, times: int = 1) -> Message:
    """A copy of ``message`` with ``times`` fields bent."""
    bent = type(message)()
    bent.CopyFrom(message)
    for _ in range(times):
        sites = list(_sites(bent))
        if sites:
            owner, field = dice.choice(sites)
            _bend_field(dice, owner, field)
    return bent


def damage(dice: random.Random, message: Message) -> bytes:
    """Bytes made from a message's: cut, a byte flipped, doubled, or noise of any length."""
    data = bytearray(message.SerializeToString())
    kind = dice.randrange(4)
    if kind == 0 or not data:
        return dice.randbytes(dice.choice((1, 2, 7, 64, 1_000)))
    if kind == 1:
        return bytes(data[: dice.randrange(len(data))])
    if kind == 2:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        return bytes(data)
    return bytes(data + data)


def _sites(message: Message) -> list[Site]:
    """Every field of the message, of the messages it holds, and of those it could hold but does not."""
    found: list[Site] = []
    for field in message.DESCRIPTOR.fields:
        found.append((message, field))
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        value = getattr(message, field.name)
        if _repeated(field):
            for item in value:
                found += _sites(item)
        elif message.HasField(field.name):
            found += _sites(value)
    return found


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _bend_field(dice: random.Random, owner: Message, field: FieldDescriptor) -> None:
    if _repeated(field):
        dice.choice(COLUMN_TRICKS)(dice, getattr(owner, field.name), field)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if owner.HasField(field.name) and dice.random() < 0.5:
            owner.ClearField(field.name)
        else:
            getattr(owner, field.name).SetInParent()
    elif dice.random() < 0.1:
        owner.ClearField(field.name)
    else:
        setattr(owner, field.name, _value(dice, field, getattr(owner, field.name)))


def _value(dice: random.Random, field: FieldDescriptor, current: Any) -> Any:
    """A hostile value, or one beside the current one."""
    largest = LARGEST.get(field.type)
    if largest is not None and dice.random() < 0.4:
        return max(0, min(largest, current + dice.choice((-1, 1, -16, 16))))
    if field.type == FieldDescriptor.TYPE_BYTES and dice.random() < 0.5:
        return current[: dice.randrange(len(current) + 1)]
    return dice.choice(SAMPLES[field.type])


def _drop(dice: random.Random, column: Any, field: FieldDescriptor) -> None:
    if column:
        del column[dice.randrange(len(column))]


def _double(dice: random.Random, column: Any, field: FieldDescriptor) -> None:
    """Somebody named twice: the same item again, at the end."""
    if column:
        column.append(column[dice.randrange(len(column))])


def _append(dice: random.Random, column: Any, field: FieldDescriptor) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        column.add()
    else:
        column.append(_value(dice, field, SAMPLES[field.type][0]))


def _replace(dice: random.Random, column: Any, field: FieldDescriptor) -> None:
    if not column or field.type == FieldDescriptor.TYPE_MESSAGE:
        _append(dice, column, field)
    else:
        place = dice.randrange(len(column))
        column[place] = _value(dice, field, column[place])


def _swap(dice: random.Random, column: Any, field: FieldDescriptor) -> None:
    items = list(column)
    dice.shuffle(items)
    del column[:]
    column.extend(items)


COLUMN_TRICKS: tuple[Callable[[random.Random, Any, FieldDescriptor], None], ...] = (
    _drop,
    _double,
    _append,
    _replace,
    _replace,
    _swap,
)

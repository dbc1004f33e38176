"""The words that errors have for values. Clients wrote JSON, or what their library makes of it, and never Python. Pure.

No text that a user wrote is among them: errors are logged.
"""

import math
from collections.abc import Mapping, Sequence

# As many as a client's own mistake may have, and few enough for an error.
MAX_DIGITS = 40


def kind(value: object) -> str:
    """The type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case Sequence():
            return "array"
    return "object"


def number(value: float) -> str:
    """A number, digit by digit where it is a whole one of a usual length."""
    if isinstance(value, int):
        return str(value) if abs(value) < 10**MAX_DIGITS else f"a number of more than {MAX_DIGITS} digits"
    return "a number beyond 1.79e308" if math.isinf(value) else repr(value).removesuffix(".0")

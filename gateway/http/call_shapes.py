"""Calls of tools in the shapes of OpenAI's API. Pure."""

from collections.abc import Iterable
from typing import Any

from gateway.tools.reader import CallPiece, WholeCall


def whole_call(call: WholeCall) -> dict[str, Any]:
    """As a message has it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def call_deltas(pieces: Iterable[CallPiece]) -> list[dict[str, Any]]:
    """As a chunk has them: one entry per call, the first of a call with its id and name."""
    deltas: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if piece.complete is not None:
            continue
        delta = deltas.setdefault(piece.index, {"index": piece.index, "function": {"arguments": ""}})
        if piece.id:
            delta |= {"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": ""}}
        delta["function"]["arguments"] += piece.arguments
    return [*deltas.values()]

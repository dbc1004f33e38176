"""One answer's text becomes text and calls, piece by piece. Pure but for the ids of calls."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.tools.parser import Argued, Begun, Broken, Ended, Event, Parser, Said


@dataclass(frozen=True, slots=True)
class CallPiece:
    """News of a call, counted from 0 within its answer.

    Attributes:
        id: of the call; set in its first piece, as the name is.
        name: the function.
        arguments: more of them, in JSON.
        complete: None while the call goes on; whether it is one when it has ended. The text of one that is none comes
            as text, all of it.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    complete: bool | None = None


@dataclass(frozen=True, slots=True)
class WholeCall:
    """A complete call; ``arguments`` are a JSON object as the model wrote it."""

    id: str
    name: str
    arguments: str


class CallCollector:
    """Whole calls out of the pieces of one answer."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, str]] = {}
        self._arguments: dict[int, list[str]] = {}

    def add(self, pieces: Iterable[CallPiece]) -> list[WholeCall]:
        """Take pieces; returns the calls that are complete with them."""
        complete: list[WholeCall] = []
        for piece in pieces:
            if piece.id:
                self._names[piece.index] = piece.id, piece.name
            arguments = self._arguments.setdefault(piece.index, [])
            arguments.append(piece.arguments)
            if piece.complete is not None:
                id_, name = self._names.pop(piece.index)
                del self._arguments[piece.index]
                if piece.complete:
                    complete.append(WholeCall(id_, name, "".join(arguments)))
        return complete


class CallReader:
    """Reads one answer.

    Args:
        parser: at the start of the answer.
        call_id: makes ids.
        most: calls after which the answer is over; None for any number.

    Attributes:
        called: whether a call is complete.
        over: whether nothing may follow.
    """

    def __init__(self, parser: Parser, call_id: Callable[[], str], most: int | None = None) -> None:
        self.called = False
        self.over = False
        self._parser = parser
        self._call_id = call_id
        self._left = most
        self._pieces: list[CallPiece] = []

    def push(self, text: str) -> str:
        """Take the next text; returns what of it, and of text held back, is no call."""
        return "" if self.over else self._read(self._parser.push(text))

    def finish(self) -> str:
        """Say that no text follows; returns the rest."""
        return "" if self.over else self._read(self._parser.finish())

    def take(self) -> tuple[CallPiece, ...]:
        """The news of calls since the last time."""
        pieces, self._pieces = tuple(self._pieces), []
        return pieces

    def _read(self, events: Iterable[Event]) -> str:
        texts: list[str] = []
        for event in events:
            match event:
                case Said(text):
                    texts.append(text)
                case Begun(index, name):
                    self._pieces.append(CallPiece(index, id=self._call_id(), name=name))
                case Argued(index, text):
                    self._pieces.append(CallPiece(index, arguments=text))
                case Broken(index, text):
                    texts.append(text)
                    self._pieces.append(CallPiece(index, complete=False))
                case Ended(index):
                    self._pieces.append(CallPiece(index, complete=True))
                    self.called = True
                    if self._left is not None:
                        self._left -= 1
                        if self._left == 0:
                            self.over = True
                            break
        return "".join(texts)

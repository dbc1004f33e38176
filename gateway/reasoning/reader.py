"""One answer's text becomes content, and reasoning beside it."""

from gateway.reasoning.splitter import Phase, ReasoningSplitter


class ReasoningReader:
    """Reads one answer.

    Args:
        splitter: at the start of the answer.
        told: whether somebody wants to hear the reasoning.
    """

    def __init__(self, splitter: ReasoningSplitter, *, told: bool) -> None:
        self._splitter = splitter
        self._told = told
        self._reasoning: list[str] = []

    @property
    def reasons(self) -> bool:
        """Whether the next token is one of the reasoning."""
        return self._splitter.phase in (Phase.BEGINS, Phase.REASONS)

    def push(self, text: str) -> str:
        """Take the next text; returns what of it, and of text held back, is content."""
        reasoning, content = self._splitter.push(text)
        self._reasoning.append(reasoning)
        return content

    def finish(self) -> str:
        """Say that no text follows; returns the rest of the content."""
        reasoning, content = self._splitter.finish()
        self._reasoning.append(reasoning)
        return content

    def take(self) -> str:
        """The reasoning since the last time; empty where nobody wants to hear it."""
        reasoning = "".join(self._reasoning) if self._told else ""
        self._reasoning.clear()
        return reasoning

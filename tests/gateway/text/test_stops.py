"""Stop strings: the text ends before the one that completes first, however the text arrives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.stops import MAX_STOP_CHARACTERS, StopAutomaton, StopScanner


def scan(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    """Everything a client would be sent, piece by piece, and the stop."""
    scanner = StopScanner(StopAutomaton(stops))
    sent = []
    for piece in pieces:
        text, stop = scanner.push(piece)
        sent.append(text)
        if stop is not None:
            return sent, stop
    return [*sent, scanner.finish()], None


def slow(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition: try every end from the left, and at an end the longest stop first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@pytest.mark.unit
@pytest.mark.parametrize(
    ("stops", "text", "kept", "by"),
    [
        (["own fox"], "the brown fox jumps", "the br", "own fox"),
        (["ab", "abc"], "xabc", "x", "ab"),
        (["abc", "ab"], "xabc", "x", "ab"),
        (["bc", "abc"], "xabc", "x", "abc"),
        (["bc", "abcd"], "xabcd", "xa", "bc"),
        (["the"], "the fox", "", "the"),
        (["🙂"], "smile 🙂 end", "smile ", "🙂"),
        (["👩‍💻"], "a 👩 b 👩‍💻 c", "a 👩 b ", "👩‍💻"),
        (["aab"], "aaab", "a", "aab"),
        (["\n\n"], "one\n\ntwo", "one", "\n\n"),
        (["fox"], "the fo", "the fo", None),
        ([], "anything", "anything", None),
    ],
)
def test_cut(stops: list[str], text: str, kept: str, by: str | None) -> None:
    """B59: the text ends right before the first stop string to be complete."""
    for pieces in ([text], list(text), [text[:4], text[4:]]):
        sent, stop = scan(stops, pieces)
        assert ("".join(sent), stop) == (kept, by)


@pytest.mark.unit
def test_holds_back_only_what_can_become_a_stop() -> None:
    scanner = StopScanner(StopAutomaton(["own fox", "wnd"]))
    # After "w" and "n" the held text is "ow" and "own"; "e" ends every match, so all of it is shown.
    assert [scanner.push(character).text for character in "br owne"] == ["b", "r", " ", "", "", "", "owne"]
    # "own" then "d": the first stop is given up for the second, of which "wn" is already held, so "o" is cut loose.
    assert scanner.push("own") == ("", None)
    assert scanner.push("d") == ("o", "wnd")


@pytest.mark.unit
def test_nothing_follows_a_stop() -> None:
    scanner = StopScanner(StopAutomaton(["."]))
    assert scanner.push("a.b") == ("a", ".")
    assert scanner.push("c") == ("", ".")
    assert scanner.finish() == ""


@pytest.mark.property
@given(
    stops=st.lists(st.text("ab🙂", min_size=1, max_size=4), max_size=6),
    pieces=st.lists(st.text("ab🙂c", max_size=6), max_size=8),
)
def test_a_stop_that_is_shown_ends_the_text(stops: list[str], pieces: list[str]) -> None:
    scanner = StopScanner(StopAutomaton(stops), shown=True)
    scanned = [scanner.push(piece) for piece in pieces]
    cut, stop = slow(stops, "".join(pieces))
    assert "".join(one.text for one in scanned) + scanner.finish() == cut + (stop or "")


@pytest.mark.unit
def test_prompt_is_not_scanned() -> None:
    """The prompt ends in "own f": an answer "ox" completes the word, but the stop is not in the answer."""
    assert scan(["own fox"], ["ox and more"]) == (["ox and more", ""], None)


@pytest.mark.unit
@pytest.mark.parametrize("stop", ["", "x" * (MAX_STOP_CHARACTERS + 1)])
def test_refuses_what_cannot_be_a_stop(stop: str) -> None:
    with pytest.raises(ValueError, match=r"stop\[1\] has \d+ characters, allowed are 1 to 1024"):
        StopAutomaton(["fine", stop])


@pytest.mark.property
@settings(max_examples=500, deadline=None)
@given(
    stops=st.lists(st.text("ab🙂", min_size=1, max_size=4), max_size=16),
    pieces=st.lists(st.text("ab🙂c", max_size=6), max_size=8),
)
def test_streaming_equals_the_definition(stops: list[str], pieces: list[str]) -> None:
    """B59: however the text is cut."""
    sent, stop = scan(stops, pieces)
    assert ("".join(sent), stop) == slow(stops, "".join(pieces))


@pytest.mark.property
@settings(max_examples=300, deadline=None)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=6),
    pieces=st.lists(st.text("abc", max_size=6), max_size=8),
)
def test_shows_all_it_can(stops: list[str], pieces: list[str]) -> None:
    """What is held back is exactly the longest end of the text that begins a stop string."""
    scanner = StopScanner(StopAutomaton(stops))
    sent, text = "", ""
    for piece in pieces:
        text += piece
        scanned = scanner.push(piece)
        sent += scanned.text
        if scanned.stop is not None:
            return
        held = max(n for n in range(len(text) + 1) if any(s.startswith(text[len(text) - n :]) for s in stops))
        assert sent == text[: len(text) - held]

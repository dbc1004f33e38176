"""How much of an error travels.

It goes in HTTP/2 trailers, of which clients accept 8 KiB: of more gRPC makes an error of its own, RESOURCE_EXHAUSTED,
which hides the code and its details. The message is in there twice, as gRPC's own, where each byte that is not
printable ASCII takes three, and inside of the details, which are in base64:

    MESSAGE_BYTES + 4 / 3 * (MESSAGE_BYTES + FIELD_BYTES + METADATA_BYTES + what frames them) < 8 KiB
"""

from collections.abc import Mapping

MESSAGE_BYTES = 1_536
FIELD_BYTES = 1_536
"""Of all fields together, their names included."""
METADATA_BYTES = 768

_MORE = "..."


def cut(text: str, most: int) -> str:
    """A text that takes at most so many bytes as gRPC's message; one that is longer says by its end that it was."""
    left, fits = most, 0
    for place, character in enumerate(text):
        left -= _bytes(character)
        if left < 0:
            return text[:fits] + _MORE
        if left >= len(_MORE):
            fits = place + 1
    return text


def first_of(facts: Mapping[str, str], most: int) -> dict[str, str]:
    """The first of some named texts, as many as fit; the last one may be cut."""
    kept: dict[str, str] = {}
    for name, text in facts.items():
        most -= sum(map(_bytes, name))
        if most <= len(_MORE):
            break
        kept[name] = cut(text, most)
        most -= sum(map(_bytes, kept[name]))
    return kept


def _bytes(character: str) -> int:
    return 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="surrogatepass"))

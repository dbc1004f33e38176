"""Strings that others chose, such as the names of pools and tenants, on their way to a terminal."""

import unicodedata

LAYOUT = "\n\t"
"""What a text of several lines keeps."""


def printable(text: str, keep: str = "") -> str:
    """``text`` with everything escaped that a terminal would obey instead of showing it.

    Control characters begin the sequences that move its cursor and change its title; directional overrides and other
    format characters make a name look like another one.

    Args:
        keep: what passes nevertheless, such as newlines.
    """
    if text.isprintable():
        return text
    return "".join(char if _shows(char) or char in keep else _escape(char) for char in text)


def _shows(char: str) -> bool:
    # Python calls no space but the ASCII one printable; names in some scripts hold others.
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")

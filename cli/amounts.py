"""Amounts with their nouns."""


def counted(number: int, noun: str) -> str:
    """``1 block``, ``2,000 blocks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

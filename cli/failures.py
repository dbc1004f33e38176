"""The errors that end a command. Imports nothing, so that ``octavo --help`` stays fast."""


class CliError(Exception):
    """Ends a command with exit status 1 and its message, one line where possible, on stderr."""


def refusal(error: ValueError | OverflowError) -> str:
    """Why a value cannot travel, in one line. Bytes that are no UTF-8 reach Python's strings as lone surrogates."""
    if isinstance(error, UnicodeEncodeError):
        code = ord(error.object[error.start])
        found = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"U+{code:04X}"
        return f"text must be UTF-8, found {found} at character {error.start}"
    return f"{error}"

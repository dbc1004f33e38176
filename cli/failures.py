"""The error that ends a command. Imports nothing, so that ``octavo --help`` stays fast."""


class CliError(Exception):
    """Ends a command with exit status 1 and its message, one line where possible, on stderr."""

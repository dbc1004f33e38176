"""Settings for a frozen dataclass: flag > environment > ``octavo.toml`` > default. Standard library only.

    @dataclass(frozen=True, slots=True)
    class Settings:
        listen: str = setting("127.0.0.1:50052", "address to serve gRPC on, host:port")

    settings = load(Settings, program="kv_manager", table="kv_manager", prefix="OCTAVO_KV_")

A field ``max_pools`` is the flag ``--max-pools``, the variable ``OCTAVO_KV_MAX_POOLS`` and the key ``max_pools`` of the
table ``[kv_manager]``. Types: str, int, float, bool, Path, and any of these or None. What is unknown is an error in
a file or a flag, and a warning in the environment (``service.unknown_settings``).
"""

import argparse
import dataclasses
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from service.unknown_settings import warn_of_unknown

CONFIG_VARIABLE = "OCTAVO_CONFIG"
DEFAULT_CONFIG = "octavo.toml"
TABLES = ("gateway", "kv_manager", "worker")
"""What a configuration file has at its top: it is read by all services, each its own table."""
MAX_PORT = 65_535

Settings = TypeVar("Settings")


class SettingsError(ValueError):
    """A setting is unknown or has a wrong value; the message names it and where it came from."""


def setting(default: Any, help_text: str) -> Any:
    """A dataclass field with a help line."""
    return dataclasses.field(default=default, metadata={"help": help_text})


def check_address(value: str) -> str:
    """``host:port`` as it is. The host may be a gRPC target: ``dns:///name:port``.

    Raises:
        ValueError: it is no such address.
    """
    host, _, port = value.rpartition(":")
    if not re.fullmatch(r"\S+", host) or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > MAX_PORT:
        raise ValueError(f"must be host:port, port 0 to {MAX_PORT}")
    if not host.startswith(("ipv4:", "ipv6:")):
        try:
            host.rpartition("/")[2].encode("idna")  # as sockets do, whose error here is no OSError
        except UnicodeError:
            raise ValueError("must be host:port, each part of the host's name of 1 to 63 characters") from None
    return value


def read_table(path: Path | None, table: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The table of the configuration file: ``path``, else ``$OCTAVO_CONFIG``, else ``octavo.toml`` if it exists.

    Raises:
        SettingsError: a file that was asked for is missing, or the file is no TOML or has a table of no service.
    """
    environ = os.environ if environ is None else environ
    named = path or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    file = named or Path(DEFAULT_CONFIG)
    if not file.is_file():
        if named is not None:
            raise SettingsError(f"configuration file {named} does not exist")
        return {}
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:  # of UTF-8 or TOML
        raise SettingsError(f"{file}: {error}") from error
    if unknown := sorted(set(document) - set(TABLES)):
        allowed = ", ".join(f"[{name}]" for name in TABLES)
        raise SettingsError(f"{file}: {', '.join(unknown)}: no table of a service; there are {allowed}")
    found = document.get(table, {})
    if not isinstance(found, dict):
        raise SettingsError(f"{file}: [{table}] must be a table")
    return found


def load(
    kind: type[Settings],
    *,
    program: str,
    table: str,
    prefix: str,
    arguments: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    description: str | None = None,
) -> Settings:
    """Read all sources; print usage and exit with status 2 when one is wrong, as command lines do."""
    environ = os.environ if environ is None else environ
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        usage=f"python -m {program} [options]",
        description=description,
        allow_abbrev=False,  # an unknown flag is refused, and no value is repeated beside those it might stand for
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"default: {DEFAULT_CONFIG} if it exists")
    hints = typing.get_type_hints(kind)
    for field in fields:
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            metavar=_base_type(hints[field.name]).__name__.upper(),
            help=f"{field.metadata.get('help', '')} (default: {field.default}; ${prefix}{field.name.upper()})",
        )
    given = parser.parse_args(arguments)
    try:
        rows = read_table(given.config, table, environ)
        unknown = sorted(set(rows) - {field.name for field in fields})
        if unknown:
            raise SettingsError(f"[{table}] has no setting named {', '.join(unknown)}")
        values: dict[str, Any] = {}
        for field in fields:
            variable = f"{prefix}{field.name.upper()}"
            if (flag := getattr(given, field.name)) is not None:
                source, value = f"--{field.name.replace('_', '-')}", flag
            elif variable in environ:
                source, value = variable, environ[variable]
            elif field.name in rows:
                source, value = f"[{table}] {field.name}", rows[field.name]
            else:
                continue
            values[field.name] = _convert(value, hints[field.name], source)
        return kind(**values)
    except (SettingsError, ValueError) as error:
        parser.error(str(error))


def warn_of_variables(kind: type[Settings], prefix: str, environ: Mapping[str, str] | None = None) -> None:
    """Log which variables begin with ``prefix`` and set nothing; once at start, when the log is set up."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = os.environ if environ is None else environ
    warn_of_unknown(names, prefix, [f"{prefix}{field.name.upper()}" for field in fields])


def _base_type(hint: Any) -> type[Any]:
    if isinstance(hint, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))  # type: ignore[no-any-return]
    return hint  # type: ignore[no-any-return]


def _convert(value: Any, hint: Any, source: str) -> Any:
    kind = _base_type(hint)
    if isinstance(value, str) and value == "" and kind is not hint:
        return None
    if kind is bool:
        if isinstance(value, bool):
            return value
        words = {
            "true": True,
            "1": True,
            "yes": True,
            "on": True,
            "false": False,
            "0": False,
            "no": False,
            "off": False,
        }
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise SettingsError(f"{source}: {value!r} is no boolean (true or false)")
    # A whole number is not cut from another one: of a file's 1.5 the half would be lost without a word.
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float)
        or (kind is int and isinstance(value, float))
    ):
        raise SettingsError(f"{source}: {value!r} is no {kind.__name__}")
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise SettingsError(f"{source}: {value!r} is no {kind.__name__}") from None

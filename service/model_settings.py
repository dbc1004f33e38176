"""Settings as a pydantic model: flag > environment > ``octavo.toml`` > default, for services that install pydantic.

    class WorkerSettings(ServiceSettings, env_prefix="OCTAVO_WORKER_"):
        listen: Annotated[str, Field(description="address to serve gRPC on")] = "127.0.0.1:50051"

    settings = load(WorkerSettings, program="model_worker", table="worker")

The rules are those of ``service.settings``; pydantic adds ranges, choices and nested environment variables (``__``).
"""

import argparse
import os
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from service.channels import TlsFiles
from service.settings import CONFIG_VARIABLE, DEFAULT_CONFIG, SettingsError, check_address, read_table
from service.unknown_settings import warn_of_unknown

OptionalValue = BeforeValidator(lambda value: None if value == "" else value)
"""An empty flag or variable switches an optional setting off."""

Address = Annotated[str, AfterValidator(check_address)]
"""host:port; port 0 picks one where it is listened on."""
OptionalAddress = Annotated[str, AfterValidator(lambda value: value and check_address(value))]
OptionalPath = Annotated[Path | None, OptionalValue]
NaturalInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def split_list(value: object) -> object:
    """``"a:1, b:2"`` from a flag or a variable; a TOML array passes through."""
    return [part for item in value.split(",") if (part := item.strip())] if isinstance(value, str) else value


Addresses = Annotated[tuple[Address, ...], NoDecode, BeforeValidator(split_list)]
"""host:port,host:port"""


def _check_token(value: str) -> str:
    if not re.fullmatch(r"(\S{16,})?", value):
        raise ValueError("must be 16 characters or more, none of them a space")
    return value


class Secret:
    """Marks a setting whose value is never repeated: errors go to logs."""


Token = Annotated[str, AfterValidator(_check_token), Secret()]
"""A secret that two services share, 16 characters or more. Flags are seen by other users: best by the environment."""


class ServiceSettings(BaseSettings):
    """Base of a service's settings, with those of its own server's TLS and of tracing. Unknown keys are errors."""

    model_config = SettingsConfigDict(env_nested_delimiter="__", extra="forbid", frozen=True, protected_namespaces=())

    either: ClassVar[Sequence[tuple[str, str]]] = ()
    """Settings of which one says all. One source may overrule the other of a weaker source, but not say both."""

    tls_certificate: Annotated[OptionalPath, Field(description="serve TLS: PEM certificate")] = None
    tls_key: Annotated[OptionalPath, Field(description="serve TLS: PEM key")] = None
    tls_client_ca: Annotated[OptionalPath, Field(description="demand client certificates signed by this CA")] = None

    tracing: Annotated[
        bool, Field(description="send OpenTelemetry traces, as the OTEL_* variables say; needs octavo[otel]")
    ] = False

    @model_validator(mode="after")
    def _server_files(self) -> Self:
        # Half of a pair must not end in plain text without a word.
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        return self

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        for first, second in self.either:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(f"{_flag(first)} and {_flag(second)} say the same in two ways: give one of them")
        return self

    @property
    def server_tls(self) -> TlsFiles | None:
        """TLS of the own server, None for plain text."""
        if self.tls_certificate is None:
            return None
        return TlsFiles(self.tls_client_ca, self.tls_certificate, self.tls_key)

    def _peer_tls(self, peer: str) -> TlsFiles | None:
        """TLS towards ``peer``, from its fields ``<peer>_ca``, ``_certificate`` and ``_key``; None for plain text."""
        ca, certificate, key = (getattr(self, f"{peer}_{name}") for name in ("ca", "certificate", "key"))
        return None if ca is None else TlsFiles(ca, certificate, key)

    def _check_peer(self, peer: str) -> None:
        """Refuse half of a pair, and a pair that would not be used."""
        ca, certificate, key = (getattr(self, f"{peer}_{name}") for name in ("ca", "certificate", "key"))
        if (certificate is None) != (key is None):
            raise ValueError(f"{peer}_certificate and {peer}_key go together")
        if certificate is not None and ca is None:
            raise ValueError(f"{peer}_certificate needs {peer}_ca")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the constructor is given: ``load`` merges the sources, and a test's settings are what it wrote."""
        return (init_settings,)


Settings = TypeVar("Settings", bound=ServiceSettings)


def load(kind: type[Settings], *, program: str, table: str, arguments: Sequence[str] | None = None) -> Settings:
    """Read all sources; print usage and what is wrong, and exit with status 2, when something is."""
    prefix = kind.model_config.get("env_prefix", "")
    command = f"python -m {program}"
    parser = argparse.ArgumentParser(
        prog=command, usage=f"{command} [options]", description=kind.__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"${CONFIG_VARIABLE}, else {DEFAULT_CONFIG} if it exists"
    )
    for name, field in kind.model_fields.items():
        shown = f"{field.description} ({_default(field)}; ${prefix}{name.upper()})"
        parser.add_argument(_flag(name), dest=name, metavar=_metavar(field), help=shown.replace("%", "%%"))
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        # Their values may be secrets: a flag is misspelled as easily as any other word.
        names = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        parser.error(f"unrecognized arguments: {' '.join(names) or 'words without a flag'}")
    flags = {name: value for name, value in vars(given).items() if value is not None}
    config = flags.pop("config", None)
    try:
        rows = read_table(config, table)
        environment = EnvSettingsSource(kind)()
        return kind.model_validate(_merged([rows, environment, flags], kind.either))
    except SettingsError as error:
        parser.error(str(error))
    except ValidationError as error:
        spelled = {name: f"[{table}] {name}" for name in rows}
        spelled |= {name: f"${prefix}{name.upper()}" for name in environment}
        spelled |= {name: _flag(name) for name in flags}
        secret = {name for name, field in kind.model_fields.items() if is_secret(field)}
        parser.error("; ".join(_describe(item, spelled, table, prefix, secret) for item in error.errors()))


def warn_of_variables(kind: type[ServiceSettings]) -> None:
    """Log which variables begin as a service's settings do and set nothing; once at start, when the log is set up."""
    prefix = kind.model_config.get("env_prefix", "")
    # Upper case, as the names are read in any.
    names = {name.upper() for name in os.environ}
    warn_of_unknown(names, prefix, [f"{prefix}{name.upper()}" for name in kind.model_fields])


def is_secret(field: FieldInfo) -> bool:
    """Whether a setting's value is never repeated."""
    return any(isinstance(mark, Secret) for mark in field.metadata)


def _merged(sources: Sequence[Mapping[str, Any]], either: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The values of all sources, the strongest of which is last."""
    merged: dict[str, Any] = {}
    for source in sources:
        given = {name for name, value in source.items() if value not in (None, "")}
        for first, second in either:
            for name, other in ((first, second), (second, first)):
                if name in given:
                    merged.pop(other, None)
        merged.update(source)
    return merged


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    return f"default: {'none' if default in (None, '') else default}"


def _metavar(field: FieldInfo) -> str:
    annotation = field.annotation
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(str(choice) for choice in typing.get_args(annotation))
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    return {int: "N", float: "X", str: "TEXT", Path: "PATH"}.get(typing.cast(type, annotation), "TEXT,TEXT")


def _describe(error: Any, spelled: dict[str, str], table: str, prefix: str, secret: Collection[str]) -> str:
    """One line for one pydantic error, naming the setting as its writer spelled it."""
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"[{table}] has no setting named {name}"
    if error["type"] == "missing":
        return f"{_flag(name)} is required, as is or by ${prefix}{name.upper()}"
    said = f"{spelled.get(name, name)}: {str(error['msg']).removeprefix('Value error, ')}"
    return said if name in secret else f"{said}, found {error['input']!r}"

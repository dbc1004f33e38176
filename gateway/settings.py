"""The gateway's settings: flag > environment > ``octavo.toml`` table ``[gateway]`` > default.

A field ``max_prompt_bytes`` is the flag ``--max-prompt-bytes``, the variable ``OCTAVO_GATEWAY_MAX_PROMPT_BYTES`` and
the key ``max_prompt_bytes`` of the table.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from service.channels import TlsFiles
from service.settings import CONFIG_VARIABLE, DEFAULT_CONFIG, SettingsError, read_table

TABLE = "gateway"
PREFIX = "OCTAVO_GATEWAY_"


def _split(value: object) -> object:
    """``"a:1, b:2"`` from a flag or a variable; a TOML array passes through."""
    return [part for item in value.split(",") if (part := item.strip())] if isinstance(value, str) else value


def _none_if_empty(value: object) -> object:
    """An empty flag or variable switches an optional setting off."""
    return None if value == "" else value


Address = Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")]
OptionalPath = Annotated[Path | None, BeforeValidator(_none_if_empty)]


class GatewaySettings(BaseSettings):
    """Serve text over gRPC from one or more model workers."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    listen: Annotated[Address, Field(description="address to serve gRPC on, host:port; port 0 picks one")] = (
        "127.0.0.1:50050"
    )
    workers: Annotated[
        tuple[Address, ...],
        NoDecode,
        BeforeValidator(_split),
        Field(min_length=1, description="model workers, host:port,host:port"),
    ] = ("127.0.0.1:50051",)
    tokenizer: Annotated[OptionalPath, Field(description="folder with tokenizer.json; unset: asked of the workers")] = (
        None
    )
    default_max_tokens: Annotated[
        int, Field(ge=1, description="tokens generated when a request does not say, cut at the context's end")
    ] = 512
    max_prompt_bytes: Annotated[
        int, Field(ge=1, le=32 << 20, description="largest prompt or conversation, in bytes of UTF-8")
    ] = 4 << 20
    grace_seconds: Annotated[float, Field(ge=0, description="seconds that running streams get at SIGTERM")] = 30.0
    metrics: Annotated[
        Annotated[str, Field(pattern=r"^(\S+:\d{1,5})?$")],
        Field(description="address of the Prometheus page; empty: none"),
    ] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Field(description="least severe log")] = "info"
    tls_certificate: Annotated[OptionalPath, Field(description="serve TLS: PEM certificate")] = None
    tls_key: Annotated[OptionalPath, Field(description="serve TLS: PEM key")] = None
    tls_client_ca: Annotated[OptionalPath, Field(description="demand client certificates signed by this CA")] = None
    worker_ca: Annotated[OptionalPath, Field(description="reach the workers by TLS, verified by this CA")] = None
    worker_certificate: Annotated[OptionalPath, Field(description="client certificate for the workers")] = None
    worker_key: Annotated[OptionalPath, Field(description="client key for the workers")] = None

    @model_validator(mode="after")
    def _pairs(self) -> "GatewaySettings":
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        if (self.worker_certificate is None) != (self.worker_key is None):
            raise ValueError("worker_certificate and worker_key go together")
        if self.worker_certificate is not None and self.worker_ca is None:
            raise ValueError("worker_certificate needs worker_ca")
        return self

    @property
    def server_tls(self) -> TlsFiles | None:
        """TLS of the own server, None for plain text."""
        if self.tls_certificate is None:
            return None
        return TlsFiles(self.tls_client_ca, self.tls_certificate, self.tls_key)

    @property
    def worker_tls(self) -> TlsFiles | None:
        """TLS towards the workers, None for plain text."""
        if self.worker_ca is None:
            return None
        return TlsFiles(self.worker_ca, self.worker_certificate, self.worker_key)

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


def load(arguments: Sequence[str] | None = None) -> GatewaySettings:
    """Read all sources; print usage and what is wrong, and exit with status 2, when something is."""
    parser = argparse.ArgumentParser(prog="python -m gateway", description=GatewaySettings.__doc__)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"${CONFIG_VARIABLE}, else {DEFAULT_CONFIG} if it exists"
    )
    for name, field in GatewaySettings.model_fields.items():
        parser.add_argument(_flag(name), dest=name, metavar=_metavar(name, field), help=_help(name, field))
    flags = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    config = flags.pop("config", None)
    try:
        table = read_table(config, TABLE)
        return GatewaySettings.model_validate({**table, **EnvSettingsSource(GatewaySettings)(), **flags})
    except SettingsError as error:
        parser.error(str(error))
    except ValidationError as error:
        parser.error("; ".join(_describe(item, flags) for item in error.errors()))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _metavar(name: str, field: FieldInfo) -> str:
    if field.annotation in (int, float):
        return "N"
    if field.annotation is not str and name != "workers":
        return "LEVEL" if name == "log_level" else "PATH"
    return "HOST:PORT"


def _help(name: str, field: FieldInfo) -> str:
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    shown = "none" if default in (None, "") else default
    return f"{field.description} (default: {shown}; ${PREFIX}{name.upper()})"


def _describe(error: Any, flags: dict[str, Any]) -> str:
    """One line for one pydantic error, naming the setting as its writer spelled it."""
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"[{TABLE}] has no setting named {name}"
    spelled = _flag(name) if name in flags else name
    return f"{spelled}: {error['msg']}, found {error['input']!r}"

"""Settings as a pydantic model: flag > environment > ``octavo.toml`` > default, for services that install pydantic.

    class WorkerSettings(ServiceSettings, env_prefix="OCTAVO_WORKER_"):
        listen: Annotated[str, Field(description="address to serve gRPC on")] = "127.0.0.1:50051"

    settings = load(WorkerSettings, program="model_worker", table="worker")

The rules are those of ``service.settings``; pydantic adds ranges, choices and nested environment variables (``__``).
"""

import argparse
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from service.settings import DEFAULT_CONFIG, SettingsError, read_table


class ServiceSettings(BaseSettings):
    """Base of a service's settings. Unknown keys are errors."""

    model_config = SettingsConfigDict(env_nested_delimiter="__", extra="forbid", frozen=True, protected_namespaces=())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """``load`` merges flags, environment and file by itself."""
        return (init_settings,)


Settings = TypeVar("Settings", bound=ServiceSettings)


def load(kind: type[Settings], *, program: str, table: str, arguments: Sequence[str] | None = None) -> Settings:
    """Read all sources; print usage and exit with status 2 when one is wrong, as command lines do."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", usage=f"python -m {program} [options]", description=kind.__doc__
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"default: {DEFAULT_CONFIG} if it exists")
    prefix = kind.model_config.get("env_prefix", "")
    for name, field in kind.model_fields.items():
        parser.add_argument(
            _flag(name),
            dest=name,
            metavar=_metavar(field.annotation),
            help=f"{field.description} ({_default(field)}${prefix}{name.upper()})".replace("%", "%%"),
        )
    given = vars(parser.parse_args(arguments))
    config = given.pop("config")
    flags = {name: value for name, value in given.items() if value is not None}
    try:
        rows = read_table(config, table)
        environment = EnvSettingsSource(kind)()
        merged = {**rows, **environment, **flags}
        return kind(
            **{name: None if value == "" and _optional(kind, name) else value for name, value in merged.items()}
        )
    except ValidationError as error:
        parser.error("; ".join(_describe(kind, detail) for detail in error.errors()))
    except SettingsError as error:
        parser.error(str(error))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required; "
    return "" if field.default is None else f"default: {str(field.default) or 'empty'}; "


def _metavar(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(str(choice) for choice in typing.get_args(annotation))
    if isinstance(annotation, types.UnionType):
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
    return str(getattr(annotation, "__name__", annotation)).upper()


def _optional(kind: type[ServiceSettings], name: str) -> bool:
    field = kind.model_fields.get(name)
    return field is not None and type(None) in typing.get_args(field.annotation)


def _describe(kind: type[ServiceSettings], detail: Any) -> str:
    """One line: which setting, and what is wrong with it."""
    name = str(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        return f"there is no setting named {name}"
    if detail["type"] == "missing":
        return f"{_flag(name)} is required (or ${kind.model_config.get('env_prefix', '')}{name.upper()})"
    return f"{_flag(name)}: {detail['msg'].lower()}, got {detail['input']!r}"

"""The tenants file: TOML in, tenants out, or one error that names every wrong key and repeats no value.

[defaults]                       # for every tenant that does not say otherwise
requests_per_second = 20

[tenants.acme]
keys = ["<SHA-256 of a key, 64 hexadecimal digits>"]
weight = 2
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.parameters import INT32_MAX
from gateway.tenancy.tenant import Limits, Tenant
from service.settings import SettingsError
from service.tenants import digest_root_of, kv_quotas, of_file, read_document

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

# A value may be a key that somebody pasted: of what is wrong only the place and the rule are told.
_MAX_PROBLEMS = 8


def _check_name(value: str) -> str:
    if not re.fullmatch(NAME, value):
        raise ValueError("must be 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first")
    return value


def _check_key(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("must be a key's SHA-256, 64 digits of lower-case hexadecimal")
    return value


Name = Annotated[str, AfterValidator(_check_name)]
KeyDigest = Annotated[str, AfterValidator(_check_key)]
Count = Annotated[int, Field(ge=1, le=2**53)]
Rate = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


Model = TypeVar("Model", bound=BaseModel)


class _Terms(BaseModel):
    """What ``[defaults]`` and each tenant may say."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    weight: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    best_priority: Annotated[int, Field(ge=-INT32_MAX - 1, le=INT32_MAX)] = 0
    requests_per_second: Rate | None = None
    burst: Annotated[int, Field(ge=1, le=10**6)] | None = None
    concurrent_requests: Count | None = None
    tokens_per_minute: Count | None = None
    max_prompt_tokens: Count | None = None
    max_tokens: Count | None = None
    queued_requests: Annotated[int, Field(ge=0, le=10**6)] | None = None
    kv_soft_blocks: Count | None = None
    kv_hard_blocks: Count | None = None

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.burst is not None and self.requests_per_second is None:
            raise ValueError("burst needs requests_per_second")
        return self


class _Row(_Terms):
    """One tenant."""

    keys: Annotated[list[KeyDigest], Field(min_length=1)]
    digest_root: Name | None = None
    operator: bool = False


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    defaults: _Terms = _Terms()
    tenants: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]


def read_tenants(path: Path) -> tuple[Tenant, ...]:
    """The tenants of a file.

    Raises:
        SettingsError: the file is missing, no TOML, or says something wrong.
    """
    document = read_document(path)
    try:
        tenants = tenants_of(document)
        kv_quotas(document)
    except SettingsError as error:
        raise of_file(path, str(error)) from error
    return tenants


def tenants_of(document: Mapping[str, Any]) -> tuple[Tenant, ...]:
    """The tenants of a document.

    Raises:
        SettingsError: naming what is wrong.
    """
    file = _validated(_File, document, "")
    defaults = file.defaults.model_dump(exclude_unset=True)
    rows = {name: _validated(_Row, {**defaults, **row}, f"tenants.{name}.") for name, row in file.tenants.items()}
    owners: dict[str, str] = {}
    for name, row in rows.items():
        for digest in row.keys:
            if owners.setdefault(digest, name) != name:
                raise SettingsError(f"tenants.{name}.keys: one of them is a key of tenant {owners[digest]} too")
    return tuple(_tenant(name, row) for name, row in rows.items())


def _tenant(name: str, row: _Row) -> Tenant:
    rate = row.requests_per_second
    return Tenant(
        name=name,
        digest_root=digest_root_of(name, row.digest_root),
        key_digests=frozenset(map(bytes.fromhex, row.keys)),
        weight=row.weight,
        best_priority=row.best_priority,
        operator=row.operator,
        limits=Limits(
            requests_per_second=_or_infinite(rate),
            burst=math.inf if rate is None else row.burst or max(1, math.ceil(rate)),
            concurrent_requests=_or_infinite(row.concurrent_requests),
            tokens_per_minute=_or_infinite(row.tokens_per_minute),
            max_prompt_tokens=row.max_prompt_tokens,
            max_tokens=row.max_tokens,
            queued_requests=_or_infinite(row.queued_requests),
        ),
    )


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _validated(kind: type[Model], values: Mapping[str, Any], place: str) -> Model:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        said = [
            f"{place}{_place(item['loc'])}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_input=False)
        ]
        raise SettingsError("; ".join(said[:_MAX_PROBLEMS])) from None


def _place(loc: Sequence[int | str]) -> str:
    """Where, without words that are no name: a key may have been pasted as one."""
    parts = (str(part) if isinstance(part, int) or re.match(NAME, part) else "?" for part in loc)
    return ".".join(parts) or "the table"

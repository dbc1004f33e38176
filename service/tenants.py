"""What gateway and worker both read of a tenants file: digest roots and KV quotas. Standard library only.

[tenants.acme]
digest_root = "friends"     # shared with every tenant that names it; absent: its own
kv_soft_blocks = 500
kv_hard_blocks = 1000
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from service.settings import SettingsError


class KvQuota(NamedTuple):
    """Blocks that the running sequences of a digest root may name, per pool: 1 <= soft <= hard."""

    soft_blocks: int
    hard_blocks: int


def digest_root_of(name: str, shared: str | None) -> str:
    """``PrefixRoot.tenant`` of a tenant's requests. Its own and a shared one never meet, whatever they are called: two
    tenants share prefixes only when both say so."""
    return f"tenant/{name}" if shared is None else f"shared/{shared}"


def read_document(path: Path) -> dict[str, Any]:
    """The file as TOML.

    Raises:
        SettingsError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise of_file(path, error.strerror or str(error)) from error
    except ValueError as error:  # of UTF-8 or TOML
        raise of_file(path, str(error)) from error


def of_file(path: Path, problem: str) -> SettingsError:
    """What is wrong with the file, and which setting names it."""
    return SettingsError(f"--tenants {path}: {problem}")


def read_kv_quotas(path: Path) -> dict[str, KvQuota]:
    """The quotas of a file by digest root.

    Raises:
        SettingsError: it cannot be read, is no TOML, or a quota is none.
    """
    document = read_document(path)
    try:
        return kv_quotas(document)
    except SettingsError as error:
        raise of_file(path, str(error)) from error


def kv_quotas(document: Mapping[str, Any]) -> dict[str, KvQuota]:
    """The quotas by digest root. Of what else the file says nothing is looked at.

    Raises:
        SettingsError: a quota is none, or two tenants that share a root differ.
    """
    defaults = _table(document.get("defaults", {}), "defaults")
    found: dict[str, KvQuota | None] = {}
    for name, row in _table(document.get("tenants", {}), "tenants").items():
        row = {**defaults, **_table(row, f"tenants.{name}")}
        shared = row.get("digest_root")
        if shared is not None and not isinstance(shared, str):
            raise SettingsError(f"tenants.{name}.digest_root: must be a text")
        quota = _quota(name, row)
        if found.setdefault(digest_root_of(name, shared), quota) != quota:
            raise SettingsError(f"tenants.{name}: another KV quota than another tenant of its digest root")
    return {root: quota for root, quota in found.items() if quota is not None}


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{name}: must be a table")
    return value


def _quota(name: str, row: Mapping[str, Any]) -> KvQuota | None:
    hard = row.get("kv_hard_blocks")
    soft = row.get("kv_soft_blocks", hard)
    if hard is None and soft is None:
        return None
    # bool is an int to Python, and no number of blocks.
    if type(soft) is not int or type(hard) is not int or not 1 <= soft <= hard < 2**32:
        raise SettingsError(f"tenants.{name}: 1 <= kv_soft_blocks <= kv_hard_blocks is needed")
    return KvQuota(soft, hard)

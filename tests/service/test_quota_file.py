"""The KV quotas of a tenants file: whatever is wrong with it, the file and its flag are named."""

from pathlib import Path

import pytest

from service.settings import SettingsError
from service.tenants import KvQuota, read_kv_quotas

pytestmark = pytest.mark.unit


def test_quotas_are_read_by_root(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("[defaults]\nkv_hard_blocks = 9\n[tenants.a]\nkv_soft_blocks = 5\n[tenants.b]\n")
    assert read_kv_quotas(file) == {"tenant/a": KvQuota(5, 9), "tenant/b": KvQuota(9, 9)}


def test_a_file_that_cannot_be_used_is_named_with_its_flag(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    with pytest.raises(SettingsError, match=f"^--tenants {file}: No such file or directory$"):
        read_kv_quotas(file)
    for content, said in (
        (b"no TOML [", ""),
        (b"\xff", ""),
        (b"tenants = 7\n", "tenants: must be a table$"),
        (b"[tenants.a]\nkv_soft_blocks = 9\nkv_hard_blocks = 5\n", "tenants.a: 1 <= "),
    ):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=f"^--tenants {file}: {said}"):
            read_kv_quotas(file)

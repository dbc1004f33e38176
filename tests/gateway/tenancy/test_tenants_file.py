"""The tenants file: what it says, what is wrong with it, and how it is followed."""

import asyncio
import hashlib
import logging
import math
from pathlib import Path

import pytest

from gateway.tenancy.directory import Directory
from gateway.tenancy.keys import MAX_KEY_BYTES, KeyIndex, digest_of, key_of
from gateway.tenancy.tenant import ANONYMOUS, Limits, Tenant
from gateway.tenancy.tenants_file import read_tenants, tenants_of
from service.settings import SettingsError
from service.tenants import KvQuota, digest_root_of, kv_quotas

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
A, B = (hashlib.sha256(key).hexdigest() for key in (b"key-a", b"key-b"))


def test_defaults_hold_where_a_tenant_says_nothing() -> None:
    (first, second) = tenants_of(
        {
            "defaults": {"requests_per_second": 2.5, "weight": 3, "max_tokens": 100},
            "tenants": {"first": {"keys": [A]}, "second": {"keys": [B], "weight": 0.5, "burst": 7, "operator": True}},
        }
    )
    # The burst that is not given holds one second's requests, rounded up.
    assert first.limits == Limits(requests_per_second=2.5, burst=3, max_tokens=100)
    assert (first.weight, first.best_priority, first.operator) == (3, 0, False)
    assert (second.limits.burst, second.weight, second.operator) == (7, 0.5, True)


def test_without_limits_nothing_is_limited() -> None:
    (tenant,) = tenants_of({"tenants": {"a": {"keys": [A]}}})
    assert tenant == Tenant("a", "tenant/a", frozenset({bytes.fromhex(A)}), limits=Limits())
    assert math.isinf(tenant.limits.tokens_per_minute)


def test_a_shared_root_is_never_anothers_own() -> None:
    # Whoever names the root "a" has not been let into a's cache: a did not name it.
    own, shared = digest_root_of("a", None), digest_root_of("b", "a")
    assert own != shared
    assert digest_root_of("c", "a") == shared
    assert ANONYMOUS.digest_root == ""
    # What the worker takes at most is 128 bytes.
    assert len(digest_root_of("x" * 64, None)) <= 128


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "tenants.a.keys: Field required"),
        ({"keys": []}, "tenants.a.keys: "),
        ({"keys": ["secret-key"]}, "tenants.a.keys.0: must be a key's SHA-256, 64 digits of lower-case hexadecimal"),
        ({"keys": [A.upper()]}, "tenants.a.keys.0: "),
        ({"keys": [A], "weight": 0}, "tenants.a.weight: "),
        ({"keys": [A], "weight": math.nan}, "tenants.a.weight: "),
        ({"keys": [A], "weight": "secret-key"}, "tenants.a.weight: "),
        ({"keys": [A], "burst": 3}, "burst needs requests_per_second"),
        ({"keys": [A], "requests_per_second": 0}, "tenants.a.requests_per_second: "),
        ({"keys": [A], "tokens_per_minute": 1.5}, "tenants.a.tokens_per_minute: "),
        ({"keys": [A], "secret-key": 1}, "tenants.a."),
        ({"keys": [A], "digest_root": "with space"}, "tenants.a.digest_root: must be 1 to 64 letters, digits"),
        ({"keys": [A], "max_tokens": True}, "tenants.a.max_tokens: "),
    ],
)
def test_what_is_wrong_is_named_and_no_value_repeated(row: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        tenants_of({"tenants": {"a": row}})
    assert said in str(caught.value)
    assert "secret-key" not in str(caught.value).replace("tenants.a.secret-key: Extra", "")


def test_a_key_has_one_tenant_and_a_file_has_some() -> None:
    with pytest.raises(SettingsError, match=r"tenants\.b\.keys: one of them is a key of tenant a too"):
        tenants_of({"tenants": {"a": {"keys": [A]}, "b": {"keys": [B, A]}}})
    for document in ({}, {"tenants": {}}, {"tenants": {"not a name": {"keys": [A]}}}, {"tenant": {}}):
        with pytest.raises(SettingsError):
            tenants_of(document)


def test_quotas_are_those_of_a_root() -> None:
    tenants = {
        "a": {"kv_soft_blocks": 5, "kv_hard_blocks": 9},
        "b": {"kv_hard_blocks": 7, "digest_root": "r"},
        "c": {"kv_hard_blocks": 7, "digest_root": "r"},
        "d": {},
    }
    assert kv_quotas({"tenants": tenants}) == {"tenant/a": KvQuota(5, 9), "shared/r": KvQuota(7, 7)}
    for wrong in ({"kv_soft_blocks": 9, "kv_hard_blocks": 5}, {"kv_soft_blocks": 1}, {"kv_hard_blocks": 0}):
        with pytest.raises(SettingsError, match="1 <= kv_soft_blocks <= kv_hard_blocks"):
            kv_quotas({"tenants": {"a": wrong}})
    for other in ({"kv_hard_blocks": 8, "digest_root": "r"}, {"digest_root": "r"}):
        with pytest.raises(SettingsError, match="another KV quota"):
            kv_quotas({"tenants": tenants | {"e": other}})


def test_the_example_is_a_tenants_file() -> None:
    tenants = read_tenants(ROOT / "deploy" / "tenants.example.toml")
    assert len(tenants) >= 3
    roots = [tenant.digest_root for tenant in tenants]
    assert len(set(roots)) < len(roots)


def test_keys_are_found_by_their_digest() -> None:
    tenants = tenants_of({"tenants": {"a": {"keys": [A]}, "b": {"keys": [B]}}})
    index = KeyIndex(tenants)
    assert index.find("key-a") is tenants[0]
    assert index.find("key-b") is tenants[1]
    for key in ("", "key-c", A, "key-a\x00", "k" * (MAX_KEY_BYTES + 1), "\ud800"):
        assert index.find(key) is None
    # The whole digest is compared: one bit off is nobody's.
    near = bytes([digest_of("key-a")[0] ^ 1]) + digest_of("key-a")[1:]
    assert KeyIndex([Tenant("near", "n", frozenset({near}))]).find("key-a") is None


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer   k  "}, "k"),
        ({"authorization": "Bearer "}, None),
        ({"authorization": "Basic k"}, None),
        ({"authorization": "Basic k", "x-api-key": "x"}, "x"),
        ({"authorization": "Bearer k", "x-api-key": "x"}, "k"),
        ({"x-api-key": " "}, None),
        ({"api-key": " a "}, "a"),
        ({"authorization": "Bearer k", "api-key": "a"}, "k"),
        ({"x-api-key": "x", "api-key": "a"}, "x"),
    ],
)
def test_a_key_is_read_from_any_of_three_headers(headers: dict[str, str], key: str | None) -> None:
    assert key_of(headers) == key


def write(path: Path, *names: str) -> None:
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
    path.write_text("".join(f'[tenants.{name}]\nkeys = ["{digest}"]\n' for name, digest in digests.items()))


async def test_a_file_is_read_again_when_it_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tenants.toml"
    write(path, "a")
    directory = Directory(path)
    before = directory.find("a")
    await directory.refresh()
    assert directory.find("a") is before
    write(path, "a", "bb")
    await directory.refresh()
    assert directory.find("bb") is not None
    for broken in (lambda: path.write_text("no TOML ["), path.unlink):
        broken()
        with caplog.at_level(logging.ERROR):
            await directory.refresh()
            # Told once, not at every look.
            await directory.refresh()
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert directory.find("bb") is not None
        caplog.clear()
    write(path, "ccc")
    await directory.refresh()
    assert (directory.find("a"), directory.find("ccc") is not None) == (None, True)


async def test_a_file_that_is_wrong_at_the_start_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    with pytest.raises(SettingsError, match=f"^--tenants {file}: No such file or directory$"):
        Directory(file)
    for text, said in (("no TOML [", ""), ("[tenants.a]\nkeys = []\n", "tenants.a.keys"), ("x = 1\n", "tenants: ")):
        file.write_text(text)
        with pytest.raises(SettingsError, match=f"^--tenants {file}: {said}"):
            Directory(file)
    assert Directory().open
    await asyncio.wait_for(Directory().watch(), 1)

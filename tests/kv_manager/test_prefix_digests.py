"""Prefix digests against golden vectors, an independent computation, and other processes."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_manager.core.prefix import Root, chain

VECTORS = Path(__file__).parents[1] / "data" / "prefix_digests.json"

pytestmark = pytest.mark.unit


def vectors():
    return json.loads(VECTORS.read_text(encoding="utf-8"))


def pack(ids):
    return struct.pack(f"<{len(ids)}I", *ids)


def ours(vector):
    root = Root(vector["tenant"], vector["salt"], vector["adapter"]).digest(vector["model_fingerprint"])
    full = len(vector["token_ids"]) // vector["block_size"]
    return root, list(chain(root, pack(vector["token_ids"]), 0, full, vector["block_size"]))


def documented(vector):
    """The layout of ``PrefixRoot`` once more, field by field."""
    message = bytearray(b"octavo.kv.v1")
    for tag, name in ((1, "model_fingerprint"), (2, "tenant"), (3, "salt"), (4, "adapter")):
        value = vector[name].encode("utf-8")
        message.append(tag)
        message += len(value).to_bytes(4, "little") + value
    root = parent = hashlib.sha256(message).digest()
    digests = []
    for first in range(0, len(vector["token_ids"]), vector["block_size"]):
        block = vector["token_ids"][first : first + vector["block_size"]]
        if len(block) == vector["block_size"]:
            parent = hashlib.sha256(parent + b"".join(token.to_bytes(4, "little") for token in block)).digest()
            digests.append(parent)
    return root, digests


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["name"])
def test_golden_vectors(vector):
    root, digests = ours(vector)
    assert (root, digests) == documented(vector)
    assert root.hex() == vector["root"]
    assert [digest.hex() for digest in digests] == vector["digests"]


def test_no_two_vectors_share_a_digest_unless_they_say_the_same():
    seen = {}
    for vector in vectors():
        fields = tuple(vector[name] for name in ("model_fingerprint", "tenant", "salt", "adapter"))
        assert seen.setdefault(vector["root"], fields) == fields


def test_another_process_with_another_hash_seed_computes_the_same():
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import test_prefix_digests as t;"
        "print(json.dumps([[digest.hex() for digest in t.ours(vector)[1]] for vector in t.vectors()]))"
    )
    answers = set()
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program, str(Path(__file__).parent)]
        answers.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert [json.loads(answer) for answer in answers] == [[vector["digests"] for vector in vectors()]]


TEXT = st.text(max_size=4)


@pytest.mark.property
@given(left=st.tuples(TEXT, TEXT, TEXT, TEXT), right=st.tuples(TEXT, TEXT, TEXT, TEXT))
def test_different_fields_never_collide(left, right):
    """Every field is tagged and length-prefixed, so moving a character to the neighbouring field changes the root."""
    roots = [Root(*fields[1:]).digest(fields[0]) for fields in (left, right)]
    assert (roots[0] == roots[1]) == (left == right)


@given(ids=st.lists(st.integers(0, 2**32 - 1), max_size=40), size=st.integers(1, 9), cut=st.integers(0, 40))
def test_a_chain_can_be_continued_anywhere(ids, size, cut):
    full = len(ids) // size
    cut = min(cut, full)
    root = Root().digest("model")
    whole = list(chain(root, pack(ids), 0, full, size))
    parent = whole[cut - 1] if cut else root
    assert whole[cut:] == list(chain(parent, pack(ids), cut, full, size))

"""The contract's list of refusals, the code that raises them and the tests' own list are one."""

import ast
import re
from pathlib import Path

import grpc
import pytest
from kv_refusals import REASONS

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
OURS = {(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"), (grpc.StatusCode.INTERNAL, "INTERNAL")}
"""Not refusals of a message: the fuzzer must never see them."""

LISTED = {
    (code, reason)
    for code, reasons in REASONS.items()
    for reason in reasons
    if code is not grpc.StatusCode.UNIMPLEMENTED
} | OURS


def documented() -> set[tuple[grpc.StatusCode, str]]:
    section = re.search(r"^## 9\..*?^## 10\.", (ROOT / "docs" / "architecture.md").read_text(), re.M | re.S)
    assert section is not None
    rows = re.findall(r"^\| ([A-Z_]+) \| `([A-Z_]+)` \| .{10,} \|$", section.group(), re.M)
    assert len(rows) == len(set(rows)), "a reason is listed twice"
    return {(grpc.StatusCode[status], reason) for status, reason in rows}


def raised() -> set[tuple[grpc.StatusCode, str]]:
    """Every (status, reason) named where the code calls ``bad_item``, ``invalid_argument`` or ``ServiceError``."""
    found = set()
    for file in [*(ROOT / "kv_manager").rglob("*.py"), ROOT / "service" / "errors.py"]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found.update(reasons_of(node))
    return found


def reasons_of(call: ast.Call) -> set[tuple[grpc.StatusCode, str]]:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    reason = call.args[1] if call.func.id == "bad_item" else named.get("reason")
    if call.func.id == "ServiceError":
        assert isinstance(call.args[0], ast.Attribute | ast.Name), ast.unparse(call)
        if isinstance(call.args[0], ast.Name) or isinstance(reason, ast.Name):
            return set()
        code = grpc.StatusCode[call.args[0].attr]
    elif call.func.id in ("bad_item", "invalid_argument"):
        code = grpc.StatusCode.INVALID_ARGUMENT
    else:
        return set()
    if isinstance(reason, ast.Name):  # handed through: its caller names it
        return set()
    return {(code, reason.value if isinstance(reason, ast.Constant) else "INVALID_FIELD")}


def test_the_design_lists_every_refusal():
    assert documented() == LISTED


def test_the_code_raises_what_is_listed_and_nothing_else():
    assert raised() == LISTED

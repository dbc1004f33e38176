"""Every published case is either played by a test or set aside with a reason (tests/data/kv_scenarios.json)."""

import json
from pathlib import Path

INVENTORY = Path(__file__).parents[2] / "data" / "kv_scenarios.json"


def test_every_case_has_a_test_or_a_reason(request):
    cases = {case["id"]: case for case in json.loads(INVENTORY.read_text(encoding="utf-8"))}
    played = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("@pytest.mark.scenario("):
                played.update(line.split('"')[1::2])
    set_aside = {name for name, case in cases.items() if "why_not" in case}
    assert played | set_aside == set(cases)
    assert not played & set_aside

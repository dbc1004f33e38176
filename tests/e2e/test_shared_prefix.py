"""A second request that shares 1,000 prompt tokens: what it reports, and what it saves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import REPOSITORY, running_stack


@pytest.mark.e2e
@pytest.mark.model
def test_a_shared_prefix_cuts_the_time_to_the_first_token(demo_model: Path) -> None:
    with running_stack(demo_model) as stack:
        ran = subprocess.run(
            [
                sys.executable,
                "benchmarks/prefix_ttft.py",
                f"--gateway={stack.gateway.address}",
                "--pairs=3",
                "--seed=1",
                "--json",
            ],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            timeout=240,
            check=True,
        )
    measured = json.loads(ran.stdout)
    print(f"\n{ran.stdout}")
    for pair in measured["pairs"]:
        assert pair["cold_cached_tokens"] == 0
        # 1,000 shared tokens fill 62 blocks of 16.
        assert pair["warm_cached_tokens"] == 992
    # 1,010 tokens against 18: the ratio of the work is 56, and 4 is what a busy machine must still show. Its neighbours
    # make times longer and never shorter, so the shortest ones tell the work.
    cold, warm = (min(pair[f"{kind}_seconds"] for pair in measured["pairs"]) for kind in ("cold", "warm"))
    assert cold / warm >= 4

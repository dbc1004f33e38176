"""docs/sampling.md speaks of every parameter, and of tests that there are."""

import re
from pathlib import Path

import pytest

from octavo.worker.v1 import sampling_pb2

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
# By the name that clients know, where the worker's is another one; the gateway looks for stop strings.
CLIENTS_NAMES = {"grammar": "response_format", "width": "beam_width"}
PARAMETERS = sorted(
    CLIENTS_NAMES.get(field.name, field.name)
    for message in (sampling_pb2.SamplingParams, sampling_pb2.StopConditions, sampling_pb2.BeamSearch)
    for field in message.DESCRIPTOR.fields
    if field.name != "ignore_eos"
)


@pytest.fixture(scope="module")
def document() -> str:
    return (ROOT / "docs" / "sampling.md").read_text()


@pytest.mark.parametrize("name", [*PARAMETERS, "n", "best_of", "logprobs", "prompt_logprobs"])
def test_every_parameter_is_explained(document: str, name: str) -> None:
    assert f"`{name}`" in document


def test_the_tests_it_names_are_there(document: str) -> None:
    named = re.findall(r"`((?:tests/\w+/)?test_\w+\.py)`", document)
    assert len(named) >= 10
    present = {path.name for folder in ("worker", "model") for path in (ROOT / "tests" / folder).iterdir()}
    assert [
        name for name in named if Path(name).name not in present or ("/" in name and not (ROOT / name).is_file())
    ] == []

"""deploy/roll.sh: workers are replaced by another build under live streams, or not at all."""

from random import Random

import pytest
from compose_faults import ROLL_SECONDS, swap_workers
from compose_project import Project, docker
from compose_streams import Streams

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

SERVICE, TOKENS, EDGE = "model_worker_cpu", 400, 4
PROMPTS = ["The city of Rome is best known for", "The city of Oslo is best known for"]


def images(project: Project) -> list[str]:
    return [docker("inspect", "--format", "{{.Config.Image}}", one) for one in project.containers(SERVICE)]


def test_every_worker_is_replaced_and_no_stream_is_lost(project: Project) -> None:
    before = project.containers(SERVICE)
    alone = [Streams(project, [prompt], TOKENS).to_the_end()[0] for prompt in PROMPTS]
    running = Streams(project, PROMPTS, TOKENS).until_each_has(EDGE)
    swap_workers(project, Random(0))
    for stream, lone in zip(running.to_the_end(), alone, strict=True):
        assert (stream.code, stream.tokens) == ("OK", lone.tokens), stream.details
    assert len(before) == len(images(project)) == 2
    assert set(before).isdisjoint(project.containers(SERVICE))
    assert set(images(project)) == {f"octavo/model-worker:{project.environ['OCTAVO_TAG_MODEL_WORKER_CPU']}"}


def test_a_build_that_cannot_start_changes_nothing(project: Project) -> None:
    before, tag = project.containers(SERVICE), project.environ.get("OCTAVO_TAG_MODEL_WORKER_CPU", "cpu")
    # Another service: it does not know a worker's flags.
    docker("tag", "octavo/kv-manager:latest", "octavo/model-worker:broken")
    project.environ["OCTAVO_TAG_MODEL_WORKER_CPU"] = "broken"
    try:
        done = project.script("deploy/roll.sh", SERVICE, seconds=ROLL_SECONDS)
    finally:
        project.environ["OCTAVO_TAG_MODEL_WORKER_CPU"] = tag
        docker("rmi", "octavo/model-worker:broken")
    assert done.returncode == 1
    assert "2 go on" in done.stderr
    assert project.containers(SERVICE) == before
    (stream,) = Streams(project, PROMPTS[:1], EDGE).to_the_end()
    assert stream.code == "OK", stream.details


def test_a_service_with_a_published_port_is_refused(project: Project) -> None:
    done = project.script("deploy/roll.sh", "gateway", seconds=60)
    assert done.returncode == 2
    assert "deploy/roll.sh SERVICE" in done.stderr

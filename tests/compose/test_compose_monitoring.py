"""Prometheus with our configuration beside the services: it finds all of them, and their rules.

Its image is Debian's, since a test pulls none; Grafana's cannot be made so, and its files are checked by
tests/e2e/test_metric_pages.py alone.
"""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compose_project import REPOSITORY, TEST_FILE, Project, docker, wait_until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

IMAGE = "octavo-test/prometheus"
DOCKERFILE = """
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["/usr/bin/prometheus"]
"""
SCRAPED_SECONDS = 60.0


@pytest.fixture(scope="module")
def prometheus(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address, once it runs beside the services."""
    context = tmp_path_factory.mktemp("prometheus")
    (context / "Dockerfile").write_text(DOCKERFILE)
    docker("build", "--quiet", "-t", IMAGE, str(context), seconds=300)
    environ = {**project.environ, "OCTAVO_PROMETHEUS_IMAGE": IMAGE}
    monitoring = Project(project.name, ("docker-compose.yml", TEST_FILE), environ, profile="monitoring")
    monitoring.compose("up", "--detach", "--no-build", "--no-deps", "prometheus")
    yield f"http://{project.environ['OCTAVO_PROMETHEUS_LISTEN']}"
    monitoring.compose("rm", "--stop", "--force", "prometheus")


def ask(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}/api/v1/{path}", timeout=5) as answer:
        return json.load(answer)["data"]


def targets(address: str) -> dict[str, list[str]]:
    """Health of each job's targets."""
    found: dict[str, list[str]] = {}
    try:
        for target in ask(address, "targets")["activeTargets"]:
            found.setdefault(target["labels"]["job"], []).append(target["health"])
    except OSError:
        pass
    return found


def test_prometheus_scrapes_every_service_and_both_replicas(prometheus: str) -> None:
    expected = {"octavo-gateway": ["up"], "octavo-worker": ["up", "up"], "octavo-kv-manager": ["up"]}
    wait_until(lambda: targets(prometheus) == expected, SCRAPED_SECONDS, f"{expected}; {targets(prometheus)}")


def test_the_alerts_are_loaded_and_quiet(prometheus: str) -> None:
    rules = [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]
    text = (Path(REPOSITORY) / "deploy" / "prometheus" / "alerts.yml").read_text()
    assert len(rules) == text.count("- alert:") > 5
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    assert not [rule["name"] for rule in rules if rule["state"] == "firing"]

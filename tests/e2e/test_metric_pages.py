"""The pages of all three services under real requests: what balances, and that dashboard, alerts and docs name what is
there.
"""

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import promql_parser
import pytest
import yaml
from byte_model import byte_model
from processes import REPOSITORY, Stack, running_stack
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service.channels import open_channel

pytestmark = pytest.mark.e2e

# Of these the services say nothing: Prometheus adds the one, a histogram has the other.
GIVEN = {"instance", "job", "le"}
ANY: set[str] = set()
# Served only where a setting asks for them.
CONDITIONAL = {"octavo_kv_recording"}

GRAFANA = REPOSITORY / "deploy" / "grafana"
BOARD = GRAFANA / "octavo.json"
ALERTS = REPOSITORY / "deploy" / "prometheus" / "alerts.yml"
DOCUMENT = REPOSITORY / "docs" / "observability.md"
METRIC = re.compile(r"\boctavo_(?:gateway|worker|kv)_\w+")
# What Prometheus makes of a histogram and a counter.
SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created")

BLOCK, CONTEXT = 16, 32_768
NUM_BLOCKS = CONTEXT // BLOCK + 10
FLAGS = {"num-blocks": NUM_BLOCKS, "block-size": BLOCK, "host-memory-mib": 0, "threads": 1, "served-name": "tiny"}


class Pages:
    """The three pages after the same traffic."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.addresses = [str(process.ready["metrics"]) for process in (stack.gateway, stack.worker, stack.manager)]

    def families(self) -> dict[str, Metric]:
        """All families by the name that samples begin with."""
        found = {}
        for address in self.addresses:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
                for family in text_string_to_metric_families(response.read().decode()):
                    found[family.name] = family
        return found

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of a name that have these labels."""
        return sum(
            sample.value
            for family in self.families().values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    model = byte_model(tmp_path_factory.mktemp("pages"), max_position_embeddings=CONTEXT)
    shown = {"metrics": "127.0.0.1:0"}
    with running_stack(model, worker_flags=FLAGS | shown, gateway_flags=shown, manager_flags=shown) as stack:
        pages = Pages(stack)
        drive(pages)
        yield pages


def drive(pages: Pages) -> None:
    """Three finish, one is refused by the worker, one by the gateway, one is left by its client."""
    with open_channel(pages.stack.gateway.address) as channel, open_channel(pages.stack.worker.address) as direct:
        gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
        for _ in range(3):
            list(gateway.Generate(asked("x" * 40, 5), timeout=60))
        with pytest.raises(grpc.RpcError, match="allowed"):
            list(gateway.Generate(asked("x", -1), timeout=60))
        # More tokens than any machine generates before it is left.
        left = gateway.Generate(asked("y", CONTEXT - 10), timeout=60)
        next(left)
        left.cancel()
        worker = worker_pb2_grpc.WorkerServiceStub(direct)
        with pytest.raises(grpc.RpcError, match="token_ids"):
            list(worker.Generate(worker_pb2.GenerateRequest(), timeout=60))
        list(gateway.Generate(asked("z", 1), timeout=60))
    deadline = time.monotonic() + 60
    while pages.value("octavo_worker_open_requests"):
        assert time.monotonic() < deadline, "the worker has not heard that a client left"


def asked(prompt: str, max_tokens: int) -> gateway_pb2.GenerateRequest:
    options = gateway_pb2.GenerateOptions(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return gateway_pb2.GenerateRequest(prompt=prompt, options=options)


def test_the_workers_requests_balance(pages: Pages) -> None:
    assert pages.value("octavo_worker_started_requests_total") == 5
    ended = {how: pages.value("octavo_worker_requests_total", outcome=how) for how in ("finished", "failed", "aborted")}
    assert ended == {"finished": 4, "failed": 0, "aborted": 1}
    assert pages.value("octavo_worker_open_requests") == 0
    assert pages.value("octavo_worker_refused_requests_total", reason="INVALID_REQUEST") == 1
    assert pages.value("octavo_worker_ready") == 1
    # Each request had a first step and a first token.
    assert pages.value("octavo_worker_queue_seconds_count") == 5
    assert pages.value("octavo_worker_first_token_seconds_count") == 5
    assert pages.value("octavo_worker_step_seconds_count") == pages.value("octavo_worker_steps_total")


def test_the_three_services_agree(pages: Pages) -> None:
    # Prompts that finished: 3 of 40 tokens, one of 1; two blocks of 16 were found twice.
    assert pages.value("octavo_gateway_prompt_tokens_total") == 3 * 40 + 1
    assert pages.value("octavo_gateway_cached_tokens_total") == 2 * 32
    # The worker and the manager count admissions: the one that was left too.
    for name in ("octavo_worker_prompt_tokens_total", "octavo_kv_lookup_tokens_total"):
        assert pages.value(name) == 3 * 40 + 2
    for name in ("octavo_worker_cached_tokens_total", "octavo_kv_hit_tokens_total"):
        assert pages.value(name) == 2 * 32
    assert pages.value("octavo_kv_blocks") == pages.value("octavo_worker_pool_blocks") == NUM_BLOCKS


def test_names_say_their_units(pages: Pages) -> None:
    for name, family in pages.families().items():
        assert re.fullmatch(r"octavo_(gateway|worker|kv)_[a-z_]+", name), name
        assert family.documentation.strip(), name
        if family.type == "histogram":
            assert name.endswith("_seconds"), name


def labels_by_name(pages: Pages) -> dict[str, set[str]]:
    """What a query may name: of each family the samples that its kind implies, with the labels that they have."""
    known = {name: {"pool"} for name in CONDITIONAL}
    for name, family in pages.families().items():
        labels = {label for sample in family.samples for label in sample.labels} | GIVEN
        for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}[family.type]:
            # Of a family without samples yet, the labels are not known.
            known[name + suffix] = labels if family.samples else ANY
    return known


def expressions(node: Any) -> Iterator[str]:
    """The queries of a dashboard or of a file of rules, whatever their depth, as Prometheus gets them."""
    if isinstance(node, dict):
        if isinstance(node.get("expr"), str):
            yield node["expr"].replace("$__rate_interval", "5m")
        for value in node.values():
            yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """The selectors of a parsed query."""
    match node:
        case promql_parser.VectorSelector():
            yield node
        case promql_parser.MatrixSelector():
            yield node.vector_selector
        case promql_parser.Call():
            for argument in node.args:
                yield from selectors(argument)
        case promql_parser.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            yield from selectors(node.expr)


@pytest.mark.parametrize("document", [BOARD, ALERTS], ids=lambda path: path.name)
def test_every_query_asks_for_metrics_and_labels_that_are_served(document: Path, pages: Pages) -> None:
    known = labels_by_name(pages)
    asked_for = set()
    for expression in expressions(yaml.safe_load(document.read_text())):  # JSON is YAML
        for selector in selectors(promql_parser.parse(expression)):
            assert selector.name in known, expression
            asked_for.add(selector.name)
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert known[selector.name] is ANY or labels <= known[selector.name], expression
    assert len(asked_for) > 10


def test_the_dashboards_variables_are_values_that_are_served(pages: Pages) -> None:
    known = labels_by_name(pages)
    variables = json.loads(BOARD.read_text())["templating"]["list"]
    queries = [variable["query"] for variable in variables if variable["type"] == "query"]
    assert len(queries) == 3
    for query in queries:
        name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert label in known[name]


def test_the_dashboard_shows_all_three_services(pages: Pages) -> None:
    board = json.loads(BOARD.read_text())
    shown = " ".join(expressions(board))
    assert {prefix for prefix in ("gateway", "worker", "kv") if f"octavo_{prefix}_" in shown} == {
        "gateway",
        "worker",
        "kv",
    }
    identifiers = [panel["id"] for panel in board["panels"]]
    assert len(identifiers) == len(set(identifiers))


def test_every_metric_is_in_the_document_and_no_other(pages: Pages) -> None:
    families = set(pages.families())
    named = {
        next((name.removesuffix(one) for one in SUFFIXES if name.endswith(one)), name)
        for name in METRIC.findall(DOCUMENT.read_text())
    }
    assert families <= named, sorted(families - named)
    assert {name for name in named if name not in families} <= CONDITIONAL


def test_each_metric_has_one_row_with_its_labels(pages: Pages) -> None:
    """Of a family without samples yet the labels are not known; ``le`` is a histogram's own."""
    told = re.findall(r"^\| `(octavo_\w+)` \| ([\w, ]*) ?\|", DOCUMENT.read_text(), flags=re.MULTILINE)
    rows = {
        next((name.removesuffix(one) for one in SUFFIXES if name.endswith(one)), name): labels for name, labels in told
    }
    assert len(rows) == len(told)
    families = pages.families()
    assert set(families) <= set(rows) <= set(families) | CONDITIONAL
    for name, family in families.items():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert not family.samples or labels == set(filter(None, rows[name].replace(" ", "").split(","))), name


def test_panels_do_not_lie_on_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(BOARD.read_text())["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24, panel["title"]
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_grafana_finds_the_dashboard_and_prometheus_where_they_are() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text())
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "octavo.yml").read_text())
    board = json.loads(BOARD.read_text())
    (name,) = [variable["name"] for variable in board["templating"]["list"] if variable["type"] == "datasource"]
    assert source["datasources"][0]["type"] == "prometheus"
    assert provider["providers"][0]["type"] == "file"
    sources = {str(panel["datasource"]["uid"]) for panel in board["panels"] if "datasource" in panel}
    assert sources == {f"${{{name}}}"}
    assert Path(provider["providers"][0]["options"]["path"]).is_absolute()

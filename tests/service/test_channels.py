"""Options of channels."""

import pytest

from cli.calls import CONNECT_MS
from service.channels import CHANNEL_OPTIONS, merged

pytestmark = pytest.mark.unit


def test_an_option_that_is_given_takes_the_place_of_the_usual_one() -> None:
    """gRPC takes the first of two, so a second one would mean nothing."""
    name = "grpc.min_reconnect_backoff_ms"
    found = merged([(name, CONNECT_MS), ("grpc.service_config", "{}")])
    assert len(found) == len(dict(found)) == len(CHANNEL_OPTIONS) + 1
    assert dict(found) == {**dict(CHANNEL_OPTIONS), name: CONNECT_MS, "grpc.service_config": "{}"}
    assert dict(CHANNEL_OPTIONS)[name] < CONNECT_MS

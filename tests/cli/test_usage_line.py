"""The line about what an answer took."""

import pytest

from cli.generate import usage_line
from octavo.gateway.v1 import gateway_pb2


@pytest.mark.unit
@pytest.mark.parametrize(("tokens", "rate"), [(0, ""), (1, ""), (3, ", 4.0 tokens/s")])
def test_a_rate_is_told_where_there_are_two_tokens(tokens: int, rate: str) -> None:
    """The first comes after 0.5 s; two more within 0.5 s are 4 a second."""
    first = 0.5 if tokens else 0.0
    usage = gateway_pb2.Usage(completion_tokens=tokens, first_token_seconds=first, total_seconds=1.0)
    said = usage_line(usage, gateway_pb2.FINISH_REASON_STOP)
    assert said.endswith(f"{tokens} generated in 1.00 s, the first after {first:.2f} s{rate}; stop]")

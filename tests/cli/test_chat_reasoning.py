"""What a model thinks before it answers, in ``octavo chat``: it is shown, apart from the answer, and not said again."""

from typing import Any

import pytest

pytestmark = pytest.mark.e2e


def test_reasoning_goes_to_stderr_and_the_answer_to_stdout(gateway: Any, octavo: Any) -> None:
    done = octavo(["chat", "--address", gateway.address], stdin="think\nhello\n")
    assert done.stdout == "1 messages\n3 messages\n\n"
    assert "\nlet me see\n" in done.stderr
    said = gateway.servicer.requests[-1].messages
    assert [(one.role, one.content, one.reasoning) for one in said] == [
        ("user", "think", ""),
        ("assistant", "1 messages", ""),
        ("user", "hello", ""),
    ]

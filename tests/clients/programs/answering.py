"""A client program's side of the conversation with the tests: a line names a check, a line answers with its facts.

{"check": "chat"}   ->   {"facts": {...}}  or  {"error": "a traceback"}
"""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def answer(checks: Mapping[str, Callable[[], Any]]) -> None:
    """Answer until stdin ends. What a library prints goes to stderr."""
    replies, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            reply = {"facts": checks[json.loads(line)["check"]]()}
        except Exception:
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def failure(call: Callable[[], Any], **attributes: str) -> dict[str, Any]:
    """What a call raised: the class's name and the attributes wanted, by the name that the facts have."""
    try:
        call()
    except Exception as error:
        return {"error": type(error).__name__} | {name: getattr(error, at, None) for name, at in attributes.items()}
    raise AssertionError("the call did not fail")

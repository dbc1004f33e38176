"""How a chat template is asked for more or less reasoning."""

from collections.abc import Mapping
from typing import Any

NONE = "none"
EFFORTS = (NONE, "minimal", "low", "medium", "high", "xhigh", "max")


def variables_of(effort: str | None) -> Mapping[str, Any]:
    """The names under which chat templates know an effort, or that there is one; none where nobody asked for any."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, "enable_thinking": effort != NONE, "thinking": effort != NONE}

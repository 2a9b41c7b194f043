"""Whether a learner.safetensors can be what a learner saved: looked at before its sum, which takes
seconds, and before a model is loaded. See `learner_state` for what it holds."""

import json
import math
from pathlib import Path
from typing import Any

from unslothrl.untrusted import Unreadable, shown
from unslothrl.weights import safetensors_header

PLAIN = "plain"  # the entry of its metadata that holds what is no tensor, as JSON
KINDS = ("lora/", "critic/", "optimizer/")  # of its tensors
MOST_HEADER = 64 << 20  # bytes


def check(path: Path) -> None:
    """Raises ValueError for what is no safetensors file, or holds values of another kind."""
    try:
        table, _ = safetensors_header.table(path, MOST_HEADER)
        metadata = table.pop("__metadata__", {})
        if not all(name.startswith(KINDS) for name in table):
            raise ValueError(f"{path.name} holds tensors that are no learner's")
        plain_values(metadata.get(PLAIN, "{}"))
    except (Unreadable, AttributeError) as error:
        reason = shown(str(error), 100)[1:-1]
        raise ValueError(f"{path.name} is no file of a learner's ({reason})") from None


def plain_values(text: str) -> dict[str, Any]:
    """The values that are no tensors. Raises ValueError for any that a learner does not save."""
    try:
        values = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("its values beside tensors are not JSON") from None
    if not isinstance(values, dict) or not all(map(is_plain, values.values())):
        raise ValueError("its values beside tensors are no numbers or texts")
    return values


def is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if type(value) is int:
        return abs(value) < 2**63
    return value is None or isinstance(value, bool | str)

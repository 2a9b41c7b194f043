"""`unslothrl sft`, `dpo` and `rm`: train on what is written already."""

from collections.abc import Mapping
from typing import Any

from unslothrl.offline.resolve import resolve


def train(command: str, flags: Mapping[str, Any]) -> int:
    """-> the exit code of the run. UserError for a wrong flag, before torch is imported."""
    stage = resolve(command, flags)
    from unslothrl.offline.stage import run

    return run(stage)

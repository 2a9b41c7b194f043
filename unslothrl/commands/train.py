"""`unslothrl train`: resolves the flags and runs the trainer."""

from collections.abc import Mapping
from typing import Any

from unslothrl.config.resolve import resolve
from unslothrl.mirror import fetching


def train(flags: Mapping[str, Any]) -> int:
    """-> the exit code of a run. UserError for a wrong flag, before torch is imported."""
    resolved = resolve(flags, fetch=fetching.fetch)
    from unslothrl.runs.rl import run

    return run(resolved)

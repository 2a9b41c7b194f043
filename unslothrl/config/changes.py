"""What is otherwise in a run that goes on than it was before."""

from collections.abc import Mapping
from typing import Any

from unslothrl import rewards
from unslothrl.config.options import OPTIONS, Config
from unslothrl.errors import UserError
from unslothrl.redaction import redacted_values
from unslothrl.untrusted import plain

NOT_COMPARED = ("resume", "recipe", "run_name", "output_dir")  # how it was started, and where it is


def changed(before: Mapping[str, Any], after: Config) -> list[str]:
    """A line for each option that is not as the run's config.toml, `before`, has it."""
    lines = []
    for name, entry in OPTIONS.items():
        was, now = before.get(name, entry.default), redacted_values(getattr(after, name))
        if name not in NOT_COMPARED and comparable(name, was) != comparable(name, now):
            lines.append(f"{name} {written(was)} -> {written(now)}")
    return lines


def comparable(name: str, value: Any) -> Any:
    """Two ways to write the same are equal."""
    if name != "reward":
        return value
    try:
        return [(each.function, each.weight) for each in rewards.choose(value or ())]
    except UserError:  # of a file that has gone since
        return value


def written(value: Any) -> str:
    """As the command line or a recipe would have it."""
    if value is None:
        return "not set"
    if isinstance(value, tuple):
        return " ".join(map(plain, value)) or "not set"
    return plain(value)

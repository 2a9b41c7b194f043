"""Rewards by name: what a completion earns, given its text and the gold answer.

`accuracy`, `format` and `tags` are plain text work and run where they are asked for. Everything
else (mathematics, a user's own function) runs in `workers`, where it may stall or fail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unslothrl.errors import UserError
from unslothrl.rewards import tags

Reward = Callable[[str, str], float]

INLINE: dict[str, Reward] = {
    "accuracy": tags.accuracy,
    "format": tags.think_answer_format,
    "tags": tags.tag_count,
}
GUARDED = {
    "think_answer_tags": "unslothrl.rewards.checked:think_answer_tags",
    "boxed": "unslothrl.rewards.checked:boxed",
}
USUAL = ("accuracy", "format", "tags")  # where none is asked for


@dataclass(frozen=True)
class Chosen:
    """A reward of a run. `function` is what `workers` calls; None: it runs in place."""

    name: str
    weight: float = 1.0
    function: str | None = None


def choose(texts: tuple[str, ...]) -> list[Chosen]:
    """The rewards that "name", "name=weight" or "file.py:function=weight" name. UserError."""
    chosen = [_choose(text) for text in texts or USUAL]
    names = [one.name for one in chosen]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"reward {name} is given twice: give it once, with its weight")
    return chosen


def _choose(text: str) -> Chosen:
    name, has_weight, number = text.partition("=")
    try:
        weight = float(number) if has_weight else 1.0
    except ValueError:
        weight = float("nan")
    if not -1e6 < weight < 1e6:
        raise UserError(f"reward {text}: its weight must be a number: set --reward {name}=0.5")
    if ".py:" in name:
        return _of_the_user(name, weight)
    if name in INLINE:
        return Chosen(name, weight)
    if name not in GUARDED:
        known = ", ".join((*INLINE, *GUARDED))
        raise UserError(
            f"reward must be one of {known}, or file.py:function, got {name!r}: "
            "set --reward accuracy"
        )
    return Chosen(name, weight, GUARDED[name])


def _of_the_user(name: str, weight: float) -> Chosen:
    file, _, function = name.rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(f"reward {name}: no such file: check the path")
    if not function.isidentifier():
        raise UserError(f"reward {name}: {function!r} is no name: write file.py:function")
    return Chosen(function, weight, f"{path.absolute()}:{function}")

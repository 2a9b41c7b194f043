"""Rewards by name: what a completion earns, given what its task knows.

A full mark earns the weight: `--reward boxed --reward format=0.5`. A reward of the package is a
file of `builtin`, a custom one a function in a file of the user's. Plain text work runs where it is
asked for; mathematics and custom functions run in `processes`, where they may stall or fail; code
runs there in the sandbox.
"""

import difflib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unslothrl.data.formats import Columns, Reader
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.rewards import builtin, model
from unslothrl.rewards.reward import IN_LEARNER, IN_PROCESS, OVERLONG, Reward
from unslothrl.text import plain

if TYPE_CHECKING:  # not loaded without a custom reward
    from unslothrl.rewards.custom import Signature

DEFAULTS = ("accuracy", "format", "tags")  # where none is asked for
NONE = "none"  # instead of a name: the environment's rewards are all
TAKEN = (  # in metrics
    "mean", "p10", "p25", "p50", "p75", "p90", "failed", "zero_signal_groups", "filtered_groups",
    "environment", OVERLONG,
)  # fmt: skip


@dataclass(frozen=True)
class Chosen:
    """A reward of a run: either `reward` or `signature` says what it takes."""

    name: str
    weight: float
    function: str  # "module:function", "file.py:function", or a reward model's folder
    runs: str  # IN_PLACE, IN_PROCESS, IN_SANDBOX or IN_LEARNER
    needs_answer: bool
    reward: Reward | None = None  # of the package
    signature: "Signature | None" = None  # of a custom function


def choose(texts: tuple[str, ...]) -> list[Chosen]:
    """Those that "name", "name=weight" or "file.py:function=weight" name. UserError."""
    if NONE in texts:
        if len(texts) > 1:
            raise UserError("reward none is given with others: leave it out, or them")
        return []
    chosen = [_choose(text) for text in texts or DEFAULTS]
    names = [each.name for each in chosen]
    for name in names:
        if names.count(name) == 1:
            continue
        if len({each.function for each in chosen if each.name == name}) > 1:
            raise UserError(f"reward {name}: two functions have the same name: rename one")
        raise UserError(f"reward {name} is given twice: give it once, with its weight")
    return chosen


def defaults() -> tuple[str, ...]:
    """The rewards where none is asked for, each with its weight."""
    return tuple(f"{name}={builtin.load(name).weight:g}" for name in DEFAULTS)


def system_prompt(chosen: Sequence[Chosen]) -> str:
    """What asks for the form that the rewards expect; "" where they are all custom."""
    prompts = (each.reward.prompt for each in chosen if each.reward is not None)
    return next((prompt for prompt in prompts if prompt), "")


def reader_of(chosen: Sequence[Chosen], columns: Columns) -> Reader:
    """What reads rows for the rewards. Every one of the package may write a missing prompt."""
    needing = tuple(each.name for each in chosen if each.needs_answer)
    own = tuple(each.reward for each in chosen if each.reward is not None)
    return Reader(columns, needing, own, problems)


@functools.cache
def problems() -> tuple:
    """Of every reward of the package that writes one."""
    package = [builtin.load(name) for name in builtin.names()]
    return tuple((", ".join(each.columns), each.problem) for each in package if each.problem)


def _choose(text: str) -> Chosen:
    name, number = model.parted(text)
    weight = float(number[1:]) if number else 1.0
    if not -1e6 < weight < 1e6:
        raise UserError(f"reward {text}: a weight must be below 1e6: set --reward {name}=0.5")
    if name.startswith(model.PREFIX):
        folder = model.folder_of(name)
        model.head_of(folder)
        return Chosen(model.NAME, weight, str(folder), IN_LEARNER, needs_answer=False)
    if ".py:" in name:
        file, _, function = name.rpartition(":")
        path = expanded(file)
        if not is_file(path):
            raise UserError(f"reward {plain(name)}: no such file: check the path")
        if function in TAKEN:
            raise UserError(
                f"reward {plain(name)}: {function} is a figure of every run: rename the function"
            )
        from unslothrl.rewards.custom import signature_of

        signature = signature_of(path, function)
        whole = f"{path.absolute()}:{function}"
        return Chosen(function, weight, whole, IN_PROCESS, signature.takes_answer, None, signature)
    if name not in builtin.names():
        raise UserError(
            f"reward must be one of {', '.join(builtin.names())}, file.py:function or "
            f"rm:runs/NAME, each with =WEIGHT behind it or not, got {name!r}: set --reward "
            f"{meant(name)}"
        )
    reward = builtin.load(name)
    weight = weight if number else reward.weight
    return Chosen(name, weight, reward.function, reward.runs, reward.needs_answer, reward)


def meant(text: str) -> str:
    """A reward near what was written: other systems write NAME:WEIGHT and MODULE:FUNCTION."""
    name, _, rest = text.partition(":")
    if text.endswith(".py"):
        return f"{text}:FUNCTION"
    if rest and name in builtin.names():
        return f"{name}={rest}"
    if rest and is_file(expanded(f"{name}.py")):
        return f"{name}.py:{rest}"
    return (difflib.get_close_matches(text.lower(), builtin.names(), 1) or ["accuracy"])[0]

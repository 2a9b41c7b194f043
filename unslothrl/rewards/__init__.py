"""Rewards by name: what a completion earns, given what its task knows.

A full mark earns the weight: `--reward boxed --reward format=0.5`. Plain text work runs where it is
asked for; mathematics and a user's own functions run in `workers`, where they may stall or fail;
code runs there in the sandbox.
"""

from dataclasses import dataclass

from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.rewards import forms
from unslothrl.rewards.own import Signature, signature_of
from unslothrl.untrusted import plain

HERE, WORKER, PROGRAMS, OWN = "here", "worker", "programs", "own"


@dataclass(frozen=True)
class Reward:
    """A reward of this package. Its function returns 0 to 1."""

    function: str  # "module:function", of the completion's text and what it needs
    runs: str  # HERE, WORKER or PROGRAMS
    needs: str  # "answer", "tests", "numbers", "": what a task must have
    prompt: str = forms.THINK_AND_ANSWER  # the system prompt that asks for its form
    weight: float = 1.0  # where the user gives none


REWARDS = {
    "accuracy": Reward("unslothrl.rewards.tags:accuracy", HERE, "answer"),
    "format": Reward("unslothrl.rewards.tags:think_answer_format", HERE, "", weight=0.1),
    "tags": Reward("unslothrl.rewards.tags:tag_count", HERE, "", weight=0.2),
    "think_answer_tags": Reward("unslothrl.rewards.checked:think_answer_tags", WORKER, "answer"),
    "boxed": Reward("unslothrl.rewards.checked:boxed", WORKER, "answer", forms.BOXED),
    "code": Reward("unslothrl.rewards.code:passes", PROGRAMS, "tests", forms.CODE),
    "countdown": Reward("unslothrl.rewards.countdown:solves", HERE, "numbers"),
    "search": Reward("unslothrl.rewards.search:exact_match", HERE, "answer"),
}
USUAL = ("accuracy", "format", "tags")  # where none is asked for


@dataclass(frozen=True)
class Chosen:
    """A reward of a run."""

    name: str
    weight: float
    function: str  # "module:function" or "file.py:function"
    runs: str
    needs: frozenset[str]
    prompt: str = ""
    own: Signature | None = None  # of a function of the user's own


def choose(texts: tuple[str, ...]) -> list[Chosen]:
    """The rewards that "name", "name=weight" or "file.py:function=weight" name. UserError."""
    chosen = [_choose(text) for text in texts or USUAL]
    names = [one.name for one in chosen]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"reward {name} is given twice: give it once, with its weight")
    return chosen


def _choose(text: str) -> Chosen:
    name, has_weight, number = text.rpartition("=") if "=" in text else (text, "", "")
    try:
        weight = float(number) if has_weight else None
    except ValueError:
        weight = float("nan")
    if weight is not None and not -1e6 < weight < 1e6:
        raise UserError(f"reward {text}: its weight must be a number: set --reward {name}=0.5")
    if ".py:" in name:
        return _of_the_user(name, 1.0 if weight is None else weight)
    if name.endswith(".py"):
        raise UserError(f"reward {name}: name a function of the file: write {name}:FUNCTION")
    if name not in REWARDS:
        raise UserError(
            f"reward must be one of {', '.join(REWARDS)}, or file.py:function, got {name!r}: "
            "set --reward accuracy"
        )
    one = REWARDS[name]
    needs = frozenset({one.needs} - {""})
    weight = one.weight if weight is None else weight
    return Chosen(name, weight, one.function, one.runs, needs, one.prompt)


def _of_the_user(name: str, weight: float) -> Chosen:
    file, _, function = name.rpartition(":")
    path = expanded(file)
    if not is_file(path):
        raise UserError(f"reward {plain(name)}: no such file: check the path")
    if not function.isidentifier():
        raise UserError(f"reward {name}: {function!r} is no name: write file.py:function")
    signature = signature_of(path, function)
    needs = frozenset({"answer"} if signature.takes_answer else ())
    return Chosen(function, weight, f"{path.absolute()}:{function}", OWN, needs, own=signature)

"""What a reward of this package says of itself, the record REWARD of a file in `builtin`; and the
reward for a completion's length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unslothrl.data.formats import UnusableRow, names_of, plain_value, tagged, value_of

# Where a reward is computed
IN_PLACE = "in place"  # in the process that asks: plain text work that cannot stall
IN_PROCESS = "process"  # in a process that is killed at its deadline
IN_SANDBOX = "sandbox"  # there too, and it runs programs of the model's in the sandbox
IN_LEARNER = "learner"  # by a reward model on the learner's base, before the update

WALL_OF_CPU = 2.0  # wall time that a sandboxed program gets for each second of CPU time

THINK_AND_ANSWER = (
    "You are talking with a user who asks a question, and you solve it.\n"
    "First think the problem through, step by step, then give the user your final answer.\n"
    "Write your response in exactly this form:\n"
    "<think> your reasoning </think>\n"
    "<answer> the final answer only </answer>\n"
)


@dataclass(frozen=True)
class Reward:
    """A reward: a function of a completion, what it needs of a row, and the form that it expects.

    `grade` is called as grade(completion, *values of `columns`, *gold answers) and returns 0 to 1.
    IN_SANDBOX it is called for each of `trials` as grade(*trial, seconds of CPU time, level of the
    sandbox), and the completion earns the full mark if there are trials and all return True.
    """

    grade: Callable[..., float | bool]
    needs_answer: bool = False  # any of the gold answers is right
    columns: tuple[str, ...] = ()  # of the task
    # row -> these columns, raises UnusableRow; None: they are the row's columns of these names
    read: Callable[[Mapping], dict[str, Any]] | None = None
    replaces: tuple[str, ...] = ()  # columns of the row that `read` makes superfluous in the task
    problem: Callable[[Mapping], str | None] | None = None  # of a row that lacks a prompt
    # (row, its problem) -> the problem with what else of the row the model must see
    asked: Callable[[Mapping, str], str] | None = None
    prompt: str = THINK_AND_ANSWER  # the system prompt that asks for the form
    answer: Callable[[str], str | None] = tagged  # the part of a completion that is graded
    weight: float = 1.0  # where the user gives none
    runs: str = IN_PLACE  # or IN_PROCESS, IN_SANDBOX
    trials: Callable[..., list[tuple]] | None = None  # (completion, *values of `columns`) -> calls

    @property
    def function(self) -> str:
        """`grade` as another process imports it, "module:function"."""
        return f"{self.grade.__module__}:{self.grade.__qualname__}"

    def read_row(self, row: Mapping) -> dict[str, Any]:
        """The columns that `grade` needs. Raises UnusableRow where the row lacks one."""
        if self.read is not None:
            return self.read(row)
        read = {name: plain_value(value_of(row, name)) for name in self.columns}
        if lacking := [name for name, value in read.items() if value is None]:
            reason = "is empty" if lacking[0] in row else f"is missing; the row has {names_of(row)}"
            raise UnusableRow(f"column {lacking[0]} {reason}: the reward needs it")
        return read


def missing(what: str, columns: tuple[str, ...]) -> UnusableRow:
    """The error for a row that has `what` in none of `columns`."""
    return UnusableRow(f"{what}, in no column of {', '.join(columns)}: the reward takes them")


OVERLONG = "overlong"


def overlong(length: int, limit: int, cache: int) -> float:
    """Soft overlong punishment, DAPO, arXiv 2503.14476, equation 13. In tokens, 0 < cache <= limit.

        0                                     length <= limit - cache
        (limit - cache - length) / cache      up to the limit
        -1                                    at the limit, where a completion is cut off

    Falls in equal steps and nowhere rises: a shorter completion is never punished more.
    """
    return max(-1.0, min(0.0, (limit - cache - length) / cache))

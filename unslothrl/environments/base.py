"""What an environment is given and what it answers, as docs/environments.md has it. Imports nothing
but the standard library: this runs in whichever Python an environment has
(`--environment_python`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULT_TURNS = 10  # of an episode, where neither the run nor the environment says how many

TURN_REWARDS: dict[str, Callable[[Sequence[float], float], float]] = {
    # ([turns] rewards, discount) -> the reward of an episode
    "sum": lambda rewards, discount: float(sum(rewards)),
    "last": lambda rewards, discount: float(rewards[-1]) if rewards else 0.0,
    "discounted": lambda rewards, discount: float(
        sum(discount**t * r for t, r in enumerate(rewards))
    ),
}

Message = dict[str, Any]
"""One turn of a conversation: {"role": ..., "content": ...}, and what tool calls add to it."""


@dataclass(frozen=True)
class Task:
    """The row that an episode is about."""

    id: str
    problem: str  # what the user asks last
    answer: str  # "" where there is none
    prompt: str = ""  # rendered by the model's chat template
    messages: list[Message] = field(default_factory=list)  # the prompt, the system's included
    extra: dict[str, Any] = field(default_factory=dict)  # the row's other columns
    read: dict[str, Any] = field(default_factory=dict)  # those of problem and answer, as they stand


@dataclass(frozen=True)
class ToolCall:
    """A call that the policy has written."""

    name: str
    arguments: dict[str, Any] | None  # None where they could not be read
    error: str = ""  # why not
    id: str = ""
    text: str = field(default="", compare=False)  # as it stands in the reply


class Action(str):
    """What the policy wrote in a turn, special tokens left out: a text that knows its parts."""

    content: str  # without reasoning and calls
    reasoning: str | None
    calls: tuple[ToolCall, ...]

    @classmethod
    def of(
        cls,
        text: str,
        content: str | None = None,
        reasoning: str | None = None,
        calls: Sequence[ToolCall] = (),
    ) -> "Action":
        action = cls(text)
        action.content = text if content is None else content
        action.reasoning, action.calls = reasoning, tuple(calls)
        return action


@dataclass(frozen=True)
class Step:
    """An environment's answer to one turn of the policy."""

    done: bool = True  # the episode is over
    observation: str | Sequence[Message] = ""  # what the policy reads next; a text is a user's turn
    reward: float = 0.0  # of this turn
    score: float | None = None  # what is reported as correct, 0 to 1; None: the rewards decide


class Lost(Exception):
    """An episode whose environment has failed: a line that says how."""


class ToolError(Exception):
    """A tool's own error: the policy reads its text, and the call counts as failed."""

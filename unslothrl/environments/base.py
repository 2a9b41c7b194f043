"""What the actor asks of an environment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from unslothrl.types import Task

Message = dict[str, str]
"""One turn of a conversation: {"role": ..., "content": ...}."""


@dataclass(frozen=True, slots=True)
class Step:
    """An environment's answer to one turn of the policy."""

    done: bool = True  # the episode is over
    observation: str | Sequence[Message] = ""  # what the policy reads next; a text is a user's turn
    reward: float = 0.0  # of this turn; an episode's are added up and reported as `environment`


class Environment(Protocol):
    """One episode's other side. Every candidate of a group has an instance of its own.

    The task's prompt is the first thing that the policy reads; `max_new_tokens` bounds all that
    comes after it, the environment's own tokens included.
    """

    max_turns: int  # turns of the policy, after which the episode is over in any case

    def reset(self, task: Task, seed: int) -> None:
        """Before the first turn. `seed` is the group's: its candidates begin in the same state."""

    async def step(self, action: str) -> Step:
        """The answer to what the policy wrote in this turn, special tokens left out.

        Other episodes go on while it waits. An exception ends the run.
        """

"""A turn of an episode with an environment, as it is recorded."""

from dataclasses import dataclass

MOST_REWARD = 1e12  # any reward is below it, of a turn, of an episode, or of a reward function


@dataclass(frozen=True, slots=True)
class Call:
    """Of a tool, as the policy wrote it."""

    name: str
    arguments: str = ""  # as JSON
    error: str = ""  # why it cannot be read


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the policy, and what it was answered."""

    reply: str  # special tokens left out
    observation: str = ""  # what the policy read next; "" after the last turn
    reward: float = 0.0
    calls: int = 0  # of tools that were answered
    failed_calls: int = 0  # of them
    tool_calls: tuple[Call, ...] = ()  # that were read in the reply

"""A turn of an episode with an environment, as it is recorded."""

from dataclasses import dataclass

ROUNDING = 1e-6  # of a score or of a full reward, which may be a weighted sum
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


def correct(reward: float) -> float:
    """What is reported as correct where an environment says nothing of it: a full reward, 1 or
    more, in one turn. Less may be a bonus."""
    return float(reward >= 1 - ROUNDING)

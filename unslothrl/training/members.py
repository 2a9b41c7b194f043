"""Processes that draw, as the driver sees them: what each was asked and has in hand, how long calls
may take by how long they have taken so far, and how fast an actor is beside the others."""

import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unslothrl.cluster.handles import ActorHandle, Call, LearnerHandle
from unslothrl.records import Assignment
from unslothrl.weights.adapter import Adapter

# Of a call, after which its process hangs
FLOOR_S = 20.0  # a busy machine has stalled a process for 11 s
FACTOR = 10.0  # times as long as the longest so far
FIRST_S = 1800.0  # a process's first call of a kind: it may compile; a silent one is noticed sooner
SILENT_S = 15.0  # the longest that its watching thread may leave a question unanswered
FIRST_SILENT_S = 30.0  # the same in a first call: what compiles may hold the interpreter's lock

# Of a call, after which others draw as well what its process has in hand
LATE_S, LATE_FACTOR = 10.0, 3.0
LATE_SILENT_S = 2.0  # the same for an answer of its watching thread
USUAL, MOST_USUAL_S = 2.0, 3.0  # and so many times as long as answers take now, on a busy machine
ASK_S = 1.0  # that a call takes before its process is asked whether it lives

# Of an actor's speed
WINDOW_S, LEAST = 3.0, 2  # of an engine's steps, and hand-overs, from which it is judged
SLOW = 5.0  # times the median of the others
HELD_UP_S = 2.0  # that a slow actor may hold the others up before they draw what it has
SLOW_S = 12.0  # for which an actor must be slow: a busy machine slows one down for some seconds

Version = Call[Adapter] | Adapter
"""A policy version that processes load: what a learner will have published, or has."""


class Pending(NamedTuple):
    """A call that a process has yet to end."""

    call: Call[Any]
    kind: str  # of which calls take about as long
    done: Callable[[Any], None]
    told_s: float = 0.0  # that it was told to take
    version: Version | None = None  # that it loads


@dataclass
class Speed:
    """What an actor's engine has done lately: (steps, tokens, seconds) of each hand-over."""

    recent: deque[tuple[int, int, float]] = field(default_factory=deque)

    def saw(self, steps: int, tokens: int, seconds: float) -> None:
        if steps:
            self.recent.append((steps, tokens, seconds))
        while len(self.recent) > LEAST and self.seconds - self.recent[0][2] >= WINDOW_S:
            self.recent.popleft()

    @property
    def seconds(self) -> float:
        return sum(seconds for _, _, seconds in self.recent)

    @property
    def step_s(self) -> float:
        return self.seconds / sum(steps for steps, _, _ in self.recent)

    @property
    def token_s(self) -> float:
        return self.seconds / max(1, sum(tokens for _, tokens, _ in self.recent))

    def slowness(self, others: list["Speed"]) -> float:
        """How many times as slow as the median of the others this one is, by its steps and by its
        tokens, whichever is less: few sequences at once make tokens slow, many make steps slow. 1
        where not enough is known."""
        known = [other for other in others if other.recent]
        if not known or len(self.recent) < LEAST or self.seconds < WINDOW_S:
            return 1.0
        steps = statistics.median(other.step_s for other in known)
        tokens = statistics.median(other.token_s for other in known)
        return min(self.step_s / steps, self.token_s / tokens)


@dataclass(eq=False)
class Member:
    """A process that draws."""

    handle: ActorHandle
    is_ready: bool = True
    is_leaving: bool = False  # gets nothing new
    is_late: bool = False  # its call takes so long that others draw what it has in hand
    pending: deque[Pending] = field(default_factory=deque)
    began: float = 0.0  # when the first of them began, or the call before it ended
    ended: set[str] = field(default_factory=set)  # kinds of calls
    holds: dict[int, Assignment] = field(default_factory=dict)  # the groups that it draws
    given: dict[int, Assignment] = field(default_factory=dict)  # what goes with its next `collect`
    collecting: int = 0  # `collect` calls that have begun
    versions: tuple[int, int] = (0, 0)  # loaded and unloaded by its engine
    speed: Speed = field(default_factory=Speed)
    slow_since: float | None = None

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def is_learner(self) -> bool:
        """Learners are started again all together, by whoever trains."""
        return isinstance(self.handle, LearnerHandle)

    @property
    def is_at_work(self) -> bool:
        """Whether it may be given work; who is late goes on with what it has."""
        return self.is_ready and not self.is_leaving

    def drop(self) -> list[int]:
        """Takes all from it that it was to draw. -> the groups' indices."""
        indices = list(self.holds)
        self.holds, self.given = {}, {}
        return indices


def limits_s(longest_s: float | None) -> tuple[float, float]:
    """-> (how long a call may take; after how long its process may hang, which costs nothing to
    assume), by the longest of its kind so far; None: its process has ended none before."""
    if longest_s is None:
        return FIRST_S, math.inf
    return max(FLOOR_S, FACTOR * longest_s), max(LATE_S, LATE_FACTOR * longest_s)

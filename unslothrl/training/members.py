"""Processes that draw, as the driver sees them: what each was asked, and how fast it is."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from unslothrl.cluster.handles import Call, GeneratorHandle, LearnerHandle
from unslothrl.training.timeouts import Speed
from unslothrl.weights.adapter import Adapter

Version = Call[Adapter] | Adapter
"""A policy version that processes load: what a learner will have published, or has."""


@dataclass
class Pending:
    """A call that a process has yet to end."""

    call: Call[Any]
    kind: str  # of which calls take about as long
    done: Callable[[Any], None]
    told_s: float = 0.0  # that it was told to take
    began: float = 0.0  # when the call before it ended
    version: Version | None = None  # that it loads


@dataclass(eq=False)
class Member:
    """A process that draws."""

    handle: GeneratorHandle
    is_ready: bool = True
    is_leaving: bool = False  # gets nothing new
    is_late: bool = False  # its call takes so long that others draw what it has in hand
    pending: deque[Pending] = field(default_factory=deque)
    ended: set[str] = field(default_factory=set)  # kinds of calls
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

    def put_off(self, seconds: float) -> None:
        """Gives it so much more time for all that it is given some for."""
        for pending in self.pending:
            pending.began += seconds
        if self.slow_since is not None:
            self.slow_since += seconds


class Owner(Protocol):
    """Whose groups the members draw."""

    def lost(self, member: Member) -> None:
        """It is gone, with all that it had in flight."""

    def late(self, member: Member) -> None:
        """It may hang: others are to draw what it has in flight, too."""

    def result_lost(self, member: Member) -> None:
        """It lives, and something that it handed over did not arrive."""

    def has_work(self, member: Member) -> bool:
        """Whether it has groups in flight."""

    def ready(self, member: Member) -> None:
        """It may be given work."""


def ignore(value: Any) -> None:
    """What is done with what nobody needs."""

"""Processes that draw, as the driver sees them: what each was asked and has in hand, how long calls
may take by how long they have taken so far, how fast an actor is beside the others, and how far its
log-probabilities are from the learner's.

    gap_a  mean |sampler - learner| over an actor's tokens of one staleness

The learner computes its side anyway. Kernels and number formats make a gap of 0.002 to 0.02 on a
dense model, staleness adds to it, and so does whatever is wrong with an actor that the other checks
have missed: its adapter not applied, its base damaged, its GPU faulty. So an actor is compared
with the median of the others, among tokens of the same staleness.

It stands out where the gap is over `GAP_FACTOR` times that and `MARGIN` nats more, with a
difference of `SIGMAS` standard errors (tokens' gaps have heavy tails, and a step may have few of
them), in `IN_A_ROW` steps one after the other. It is gross, and the actor is stopped, over
`GROSS_FACTOR` times and `GROSS_MARGIN` more: such tokens have importance weights of 0.8 or 1.2 on
average.
"""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unslothrl.algorithms import divergence
from unslothrl.cluster.handles import ActorHandle, Call, LearnerHandle
from unslothrl.records import Assignment, Update
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

# Of the gap between an actor and the learner
GAP_FACTOR, MARGIN, SIGMAS, IN_A_ROW = 3.0, 0.03, 6.0, 2
GROSS_FACTOR, GROSS_MARGIN = 10.0, 0.2
LEAST_TOKENS = 128  # of an actor in a step, below which nothing is said
ACTOR = "actor-"  # a learner that generates has other kernels

Version = Call[Adapter] | Adapter
"""A policy version that processes load: what a learner will have published, or has."""


class Pending(NamedTuple):
    """A call that a process has yet to end."""

    call: Call[Any]
    kind: str  # of which calls take about as long
    done: Callable[[Any], None] = lambda value: None
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


class Gap(NamedTuple):
    """Of one generator's tokens of one staleness, in one step."""

    mean: float
    error: float  # its standard error
    tokens: int


def gaps_of(parts: Sequence[Update], version: int) -> dict[int, dict[str, Gap]]:
    """Of a step that trained policy `version`, by staleness, then by generator; tokens that were
    trained on twice count twice."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for part in parts:
        for (generator, drawn_under), of_source in divergence.by_source(part).items():
            of_key = sums[version - drawn_under, generator]
            for place, value in enumerate(of_source):
                of_key[place] += value
    gaps: dict[int, dict[str, Gap]] = defaultdict(dict)
    for (staleness, generator), (count, total, square) in sorted(sums.items()):
        mean = total / count
        error = (max(0.0, square / count - mean**2) / count) ** 0.5
        gaps[staleness][generator] = Gap(mean, error, int(count))
    return dict(gaps)


class SamplerGapWatch:
    """Of a run. `note` gets a line, `stop` the name of an actor and why it is stopped."""

    def __init__(self, note: Callable[[str], None], stop: Callable[[str, str], None]):
        self.note, self.stop = note, stop
        self.in_a_row: dict[str, int] = {}
        self.stopped: dict[str, int] = {}  # the version at which each was stopped

    def saw(self, parts: Sequence[Update], version: int) -> dict[str, float]:
        """The updates of a step that trained policy `version`. -> `train/sampler_gap/<generator>`
        of the freshest tokens of each, where there are several generators."""
        metrics: dict[str, float] = {}
        outstanding: dict[str, tuple[Gap, float]] = {}
        for staleness, gaps in sorted(gaps_of(parts, version).items()):
            for name, gap in gaps.items():
                metrics.setdefault(f"train/sampler_gap/{name}", gap.mean)
            actors = {
                name: gap
                for name, gap in gaps.items()
                if name.startswith(ACTOR) and gap.tokens >= LEAST_TOKENS
            }
            for name, gap in actors.items():
                others = [other.mean for other in actors.values() if other is not gap]
                if not others or version - staleness <= self.stopped.get(name, -1):
                    continue  # or it was drawn by the process that has been stopped
                expected = statistics.median(others)
                if stands_out(gap, expected, GAP_FACTOR, MARGIN):
                    outstanding.setdefault(name, (gap, expected))
        self.in_a_row = {name: self.in_a_row.get(name, 0) + 1 for name in outstanding}
        for name, (gap, expected) in outstanding.items():
            text = (
                f"{name}: its log-probabilities are {gap.mean:.2g} a token from the learner's, "
                f"the other actors' {expected:.2g}"
            )
            if stands_out(gap, expected, GROSS_FACTOR, GROSS_MARGIN):
                self.stopped[name] = version
                del self.in_a_row[name]
                self.stop(name, text)
            elif self.in_a_row[name] == IN_A_ROW:
                self.note(f"{text}: see train/sampler_gap/{name}")
        return metrics if len(metrics) > 1 else {}


def stands_out(gap: Gap, expected: float, factor: float, margin: float) -> bool:
    is_beyond = gap.mean > max(factor * expected, expected + margin)
    return is_beyond and gap.mean - expected > SIGMAS * gap.error

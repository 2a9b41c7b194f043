"""How long processes may take: actors and learners for a call, learners for a piece of work, by how
long they have taken so far; and whether an actor is slow, beside the others."""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

# Of a call, after which its process hangs
FLOOR_S = 20.0  # a busy machine has stalled a process for 11 s
FACTOR = 10.0  # times as long as the longest so far
FIRST_S = 1800.0  # a process's first call of a kind: it may compile; a silent one is noticed sooner
SILENT_S = 15.0  # the longest that its watching thread may leave a question unanswered
FIRST_SILENT_S = 30.0  # the same in a first call: what compiles may hold the interpreter's lock

# Of a call, after which others draw as well what its process has in hand
LATE_S, LATE_FACTOR = 10.0, 3.0
LATE_SILENT_S = 2.0  # the same for an answer of its watching thread
USUAL, MOST_USUAL_S = 2.0, 3.0  # so many times as long as answers take now is allowed beside
ASK_S = 1.0  # that a call takes before its process is asked whether it lives

# Of an actor's speed
WINDOW_S, LEAST = 3.0, 2  # of an engine's steps, and hand-overs, from which it is judged
SLOW = 5.0  # times the median of the others
HELD_UP_S = 2.0  # that a slow actor may hold the others up before they draw what it has
SLOW_S = 12.0  # for which an actor must be slow: a busy machine slows one down for some seconds

# Of a learner's work
FIRST_WORK_S = 900.0  # to compile, to load kernels, to fill caches
FIRST_RATE = 20.0  # costs a second (see `balancing.Costs`) of the slowest machine trained on
SLACK_S = 60.0  # of every deadline: work that is small, and a machine busy with other things
PACE_FACTOR = 5.0  # over the slowest pace seen
KEPT = 8  # pieces of work that are remembered: the first, with its compiling, is forgotten


class CallTimes:
    """The longest call of each kind so far, and what follows from it."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}  # seconds, by kind of call

    def saw(self, kind: str, seconds: float) -> None:
        """A call of a kind has ended after `seconds`, without those that it was told to take."""
        self.longest[kind] = max(self.longest.get(kind, 0.0), seconds)

    def allowed_s(self, kind: str, is_first: bool) -> float:
        """How long a call of a kind may take; `is_first`: its process has ended none before."""
        if is_first or kind not in self.longest:
            return FIRST_S
        return max(FLOOR_S, FACTOR * self.longest[kind])

    def late_s(self, kind: str, is_first: bool) -> float:
        """After so many seconds of a call its process may hang; which costs nothing to assume."""
        if is_first or kind not in self.longest:
            return math.inf
        return max(LATE_S, LATE_FACTOR * self.longest[kind])


def late_silence_s(answer_s: float) -> float:
    """After so many seconds without an answer of its watching thread a process may hang, where
    answers of processes take `answer_s` now."""
    return LATE_SILENT_S + min(USUAL * answer_s, MOST_USUAL_S)


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
        """Seconds a step."""
        return self.seconds / sum(steps for steps, _, _ in self.recent)

    @property
    def token_s(self) -> float:
        """Seconds a token."""
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


class Pace:
    """Of one kind of work. A piece has the cost of the largest share: the others wait for it."""

    def __init__(self) -> None:
        self.seen: deque[float] = deque(maxlen=KEPT)  # seconds for each unit of cost

    def deadline_s(self, cost: float) -> float:
        """After so many seconds whoever is not done is taken to hang."""
        if not self.seen:
            return FIRST_WORK_S + cost / FIRST_RATE
        return SLACK_S + PACE_FACTOR * max(self.seen) * cost

    def saw(self, cost: float, seconds: float) -> None:
        """Counts a piece of work that was done."""
        if cost > 0:
            self.seen.append(seconds / cost)

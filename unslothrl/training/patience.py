"""How long a call may take before its process is taken for hung: from what such calls have taken so
far. And whether an actor is slow, beside the others."""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

FLOOR_S = 20.0  # a busy machine has stalled a process for 11 s
FACTOR = 10.0  # times as long as the longest so far
FIRST_S = 1800.0  # a process's first call of a kind: it may compile; a silent one is noticed sooner
LATE_S, LATE_FACTOR = 10.0, 3.0  # after which others draw as well what the process has in hand
ASK_S = 1.0  # that a call takes before its process is asked whether it lives
LATE_SILENT_S = 2.0  # the same as `LATE_S`, for an answer of its watching thread
USUAL, MOST_USUAL_S = 2.0, 3.0  # so many times as long as answers take now is allowed beside
SILENT_S = 15.0  # the longest that this thread may leave a question unanswered
FIRST_SILENT_S = 30.0  # the same in a first call: what compiles may hold the interpreter's lock
WINDOW_S, LEAST = 3.0, 2  # of an engine's steps, and hand-overs, from which its speed is judged
SLOW = 5.0  # times the median of the others
HELD_UP_S = 2.0  # that a slow actor may hold the others up before they draw what it has
SLOW_S = 12.0  # for which an actor must be slow: a busy machine slows one down for some seconds


class Patience:
    """Of a run's driver with its processes."""

    def __init__(self):
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

    def silence_s(self, is_first: bool) -> float:
        """After so many seconds without an answer of its watching thread a process hangs."""
        return FIRST_SILENT_S if is_first else SILENT_S

    def late_silence_s(self, answer_s: float) -> float:
        """After so many it may, where answers of processes take `answer_s` now."""
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

"""How long a run will still take, and how far it is in what it does now."""

from collections.abc import Callable

from unslothrl.tracking.metrics import mean

RECENT = 10  # steps and evaluations whose mean predicts the remaining time


class Schedule:
    """Estimates the seconds to the next evaluation and to the end of the run from recent means.

    Every `eval_every`-th step (0: none) and the last are followed by an evaluation. Estimates are
    None until a step has been timed.
    """

    def __init__(self, eval_every: int, clock: Callable[[], float]):
        self.eval_every, self.clock = eval_every, clock
        self.step, self.total = 0, 0
        self.evaluated_at = -1
        self.step_s: list[float] = []
        self.eval_s: list[float] = []
        self.since = clock()

    def stepped(self, step: int, total: int, seconds: float) -> None:
        self.step, self.total, self.since = step, total, self.clock()
        self.step_s = [*self.step_s, seconds][-RECENT:]

    def evaluated(self, step: int, seconds: float | None) -> None:
        self.evaluated_at, self.since = step, self.clock()
        if seconds is not None:
            self.eval_s = [*self.eval_s, seconds][-RECENT:]

    def to_next_eval(self) -> float | None:
        pending = self._pending_evaluations()
        if not self.step_s or not pending:
            return None
        return self._remaining((pending[0] - self.step) * mean(self.step_s))

    def to_end(self) -> float | None:
        if not self.step_s:
            return None
        steps = (self.total - self.step) * mean(self.step_s)
        return self._remaining(steps + len(self._pending_evaluations()) * mean(self.eval_s))

    def _pending_evaluations(self) -> list[int]:
        """The steps that an evaluation has yet to follow, the current step included."""
        if not self.eval_every:
            return []
        first = self.step + 1 if self.evaluated_at == self.step else max(self.step, 1)
        due = [n for n in range(first, self.total) if n % self.eval_every == 0]
        return [*due, self.total] if first <= self.total else due

    def _remaining(self, seconds: float) -> float:
        return max(0.0, seconds - (self.clock() - self.since))


class Phase:
    """The current phase: `done` of `total` items (0: not known), and `tokens` so far. The token
    rate counts from the first report, because the true start of the phase is not known here.

    `expected_tokens`: what the phase before it of the same kind took, 0 if unknown. Completions
    that are drawn at once are also done at once, so that their number alone shows no progress.
    """

    def __init__(self, kind: str, now: float, tokens: int = 0, expected_tokens: int = 0):
        self.kind, self.started, self.first_tokens = kind, now, tokens
        self.done, self.total, self.tokens = 0, 0, tokens
        self.expected_tokens = expected_tokens

    @property
    def drawn(self) -> int:
        """Tokens since the first report."""
        return self.tokens - self.first_tokens

    @property
    def share(self) -> float:
        """How much of it is done, 0 to 1; all of it is only when every item is."""
        counted = self.done / self.total if self.total else 0.0
        guessed = self.drawn / self.expected_tokens if self.expected_tokens else 0.0
        return min(1.0, max(counted, min(0.95, guessed)))

    def seconds(self, now: float) -> float:
        return now - self.started

    def tokens_per_s(self, now: float) -> float | None:
        seconds = self.seconds(now)
        return self.drawn / seconds if seconds > 0 and self.drawn > 0 else None

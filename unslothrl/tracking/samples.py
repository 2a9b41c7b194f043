"""What a model writes, now and then, and whether any of it was ever right."""

from collections.abc import Sequence
from dataclasses import dataclass

from unslothrl.tracking.metrics import Row, is_number
from unslothrl.tracking.printer import Printer, clipped, of_width
from unslothrl.types import Group

EVERY_S = 120.0  # between two samples
LABEL = 10  # columns before a line of a sample
BETWEEN = " | "  # an episode's turns and observations
MOST_PLAIN = 400  # characters of a completion in a plain line
PATIENCE = (3, 30)  # steps without a right completion after which that is said


@dataclass(frozen=True)
class BestCompletion:
    """The best completion of a step, and what it was asked."""

    problem: str
    text: str  # of several turns with what was answered between them
    reward: float

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "BestCompletion | None":
        """The first of those that earned most; None where there are no completions."""
        found = [
            (total, group, index) for group in groups for index, total in enumerate(group.totals)
        ]
        if not found:
            return None
        total, group, index = max(found, key=lambda each: each[0])
        completion = group.completions[index]
        if (transcript := completion.transcript) is None:
            return cls(group.task.problem, completion.text, total)
        return cls(transcript.question or group.task.problem, transcript.text(BETWEEN), total)

    def lines(self, printer: Printer) -> list[str]:
        """At most four lines on a terminal, one elsewhere. What the model or the data wrote
        reaches the terminal as text alone."""
        problem, text = printer.readable(self.problem), printer.readable(self.text)
        reward = f"reward {self.reward:.3g}"
        if not printer.live:
            shown = f"{clipped(problem, MOST_PLAIN // 2)} -> {clipped(text, MOST_PLAIN)}"
            return [f"sample, {reward}: {shown}"]
        room = max(1, printer.width - LABEL)
        mark = "…" if printer.unicode else "..."
        text = clipped(text, 2 * room - 1, mark)
        first = of_width(text, room)
        below = [line for line in (first, text[len(first) :]) if line]
        below.append(of_width(f"({reward})", room))
        return [
            of_width(f"{'sample':>{LABEL - 1}} {clipped(problem, room, mark)}", LABEL + room),
            *(f"{'':>{LABEL}}{line}" for line in below),
        ]


class NeverRight:
    """Notices that no completion has been right since the run began, or was resumed."""

    def __init__(self) -> None:
        self.steps = 0
        self.was_right = False

    def saw(self, metrics: Row) -> str | None:
        """-> what to tell the user after a step, None for nothing."""
        score = metrics.get("rollout/score")
        if not is_number(score) or score > 0 or self.was_right:
            self.was_right = self.was_right or (is_number(score) and score > 0)
            return None
        self.steps += 1
        if self.steps not in PATIENCE:
            return None
        return (
            f"no completion was ever right, in {self.steps} steps: read some in rollouts/, try the "
            "reward on right answers with `unslothrl score`, or take easier problems or a larger "
            "model: without a right one there is little to learn from"
        )

    @property
    def is_so(self) -> bool:
        """Whether there were steps, and none had a right completion."""
        return self.steps > 0 and not self.was_right

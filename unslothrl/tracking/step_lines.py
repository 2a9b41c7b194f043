"""What a run says of itself, on a terminal and in a log alike: its steps, how long it will take,
and how it ended."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.records import Group
from unslothrl.tracking.metrics import EVALUATED, Row, duration, eval_sets, is_number, mean, short
from unslothrl.tracking.run_folder import REPORT

BETWEEN = " | "  # an episode's turns and observations
RECENT = 10  # steps and evaluations whose mean predicts the remaining time
PATIENCE = (3, 30)  # steps without a right completion after which that is said
SHOWN = (  # label, key of the summary
    ("adapter", "adapter"),
    ("best", "best_adapter"),
    ("use it", "command"),
    ("evaluate", "evaluate"),
    ("export", "export"),
    ("resume", "resume"),
    ("continues", "goes_on"),
    ("report", "report"),
)


@dataclass(frozen=True)
class Column:
    """A metric in the line of a step, left out where the step lacks it."""

    label: str
    metric: str
    write: Callable[[Any], str] = short
    is_of_groups: bool = False  # a count of the step's groups, shown as 27/32
    hides_zero: bool = False


COLUMNS = (
    Column("reward", "reward/mean"),
    Column("score", "rollout/score"),
    Column("length", "rollout/mean_length", lambda value: f"{value:.0f}"),
    Column("seconds", "timing/step_s", lambda value: f"{value:.1f}"),
    Column("rewards failed", "reward/failed", hides_zero=True),
    Column("groups without signal", "reward/zero_signal_groups", is_of_groups=True),
    Column("gap", "train/sampler_gap", lambda value: f"{value:.4f}"),
    Column("tokens/s", "rollout/tokens_per_s", lambda value: f"{value:,.0f}"),
)


@dataclass(frozen=True)
class Layout:
    """What is shown of a run's steps."""

    columns: Sequence[Column] = COLUMNS
    curve: tuple[str, str] = ("reward", "reward/mean")  # label, metric: from step to step


def step_line(
    metrics: Row,
    step: int,
    total: int,
    to_end: float | None = None,
    columns: Sequence[Column] = COLUMNS,
) -> str:
    parts, groups = [], metrics.get("rollout/groups")
    for column in columns:
        value = metrics.get(column.metric)
        if is_number(value) and (value or not column.hides_zero):
            of = f"/{groups}" if column.is_of_groups and groups else ""
            parts.append(f"{column.label} {column.write(value)}{of}")
    if to_end is not None and step < total:
        parts.append(f"end in {duration(to_end)}")
    return f"step {step}/{total}: " + ", ".join(parts)


def evaluation_lines(step: int, metrics: Row) -> list[str]:
    """An evaluation, one line for each set."""
    lines = []
    for name in eval_sets([metrics]):
        parts = [f"{label} {short(metrics[full])}" for label, key in EVALUATED
                 if (full := f"eval/{name}/{key}") in metrics]  # fmt: skip
        if is_number(length := metrics.get(f"eval/{name}/mean_length")):
            parts.append(f"length {length:.0f}")
        if is_number(seconds := metrics.get("timing/eval_s")):
            parts.append(f"{seconds:.1f} s")
        lines.append(f"evaluation after step {step} on {name}: " + ", ".join(parts))
    return lines


def best_of(groups: Sequence[Group]) -> tuple[str, str, float] | None:
    """-> (what was asked, what was answered, of several turns with what came between, the reward)
    of the first completion that earned most; None where there are none."""
    found = [(total, group, i) for group in groups for i, total in enumerate(group.totals)]
    if not found:
        return None
    total, group, index = max(found, key=lambda each: each[0])
    completion = group.completions[index]
    if (transcript := completion.transcript) is None:
        return group.task.problem, completion.text, total
    return transcript.question or group.task.problem, transcript.text(BETWEEN), total


class NeverRight:
    """Notices that no completion has been right since the run began, or was resumed."""

    def __init__(self) -> None:
        self.steps = 0
        self.was_right = False

    def saw(self, metrics: Row) -> str | None:
        """-> what to tell the user after a step, None for nothing."""
        if not is_number(score := metrics.get("rollout/score")):
            return None
        self.was_right |= score > 0
        self.steps += 1
        if self.was_right or self.steps not in PATIENCE:
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


class Schedule:
    """Estimates the seconds to the end of a run from the means of its last steps and evaluations.
    Every `eval_every`-th step (0: none) and the last are followed by an evaluation."""

    def __init__(self, eval_every: int, clock: Callable[[], float]):
        self.eval_every, self.clock = eval_every, clock
        self.step, self.total = 0, 0
        self.evaluated_at = -1
        self.step_s: deque[float] = deque(maxlen=RECENT)
        self.eval_s: deque[float] = deque(maxlen=RECENT)
        self.since = clock()

    def stepped(self, step: int, total: int, seconds: float) -> None:
        self.step, self.total, self.since = step, total, self.clock()
        self.step_s.append(seconds)

    def evaluated(self, step: int, seconds: float | None) -> None:
        self.evaluated_at, self.since = step, self.clock()
        self.eval_s.extend([] if seconds is None else [seconds])

    def to_end(self) -> float | None:
        """None until a step has been timed."""
        if not self.step_s:
            return None
        first = self.step + 1 if self.evaluated_at == self.step else max(self.step, 1)
        every = self.eval_every
        steps = range(first, self.total + 1) if every else ()
        evaluations = sum(step % every == 0 or step == self.total for step in steps)
        seconds = (self.total - self.step) * mean(self.step_s) + evaluations * mean(self.eval_s)
        return max(0.0, seconds - (self.clock() - self.since))


class Phase:
    """The current phase: `done` of `total` items (0: not known), and `tokens` since the first
    report. `expected_tokens`: what the phase before it of the same kind took, 0 if unknown:
    completions that are drawn at once are done at once, so their number shows no progress."""

    def __init__(self, kind: str, now: float, tokens: int = 0, expected_tokens: int = 0):
        self.kind, self.started, self.first_tokens = kind, now, tokens
        self.done, self.total, self.tokens = 0, 0, tokens
        self.expected_tokens = expected_tokens

    @property
    def drawn(self) -> int:
        return self.tokens - self.first_tokens

    @property
    def share(self) -> float:
        """How much of it is done, 0 to 1; all of it is only when every item is."""
        counted = self.done / self.total if self.total else 0.0
        guessed = self.drawn / self.expected_tokens if self.expected_tokens else 0.0
        return min(1.0, max(counted, min(0.95, guessed)))

    def rate(self, now: float) -> str:
        """Tokens a second, "" while there are none."""
        seconds = now - self.started
        return f"{self.drawn / seconds:,.0f} tokens/s" if seconds > 0 and self.drawn > 0 else ""


# How a run ended


def summary_lines(
    summary: Mapping[str, Any], values: Sequence[float], arrow: str, curve: str = "reward"
) -> list[tuple[str, str]]:
    """(label, text): status, steps and times; evaluations before and after; what can be done now.

    An evaluation of another step than the first or the last is shown with its step. `values`: the
    figure of every step that `curve` names; `arrow` stands between before and after.
    """
    lines = [(str(summary["status"]), times(summary))]
    first, last = summary.get("first_eval") or {}, summary.get("last_eval") or {}
    when = sorted({each["step"] for each in (first, last) if "step" in each})
    is_plain = not when or (when[-1] == summary["steps"] and when[0] in (0, when[-1]))
    at = "" if is_plain else f", after step {' and '.join(map(str, when))}"
    for name in eval_sets([first]):
        for label, key in EVALUATED:
            if (before := first.get(f"eval/{name}/{key}")) is not None:
                after = last.get(f"eval/{name}/{key}") if last != first else None
                lines.append((label, f"{change(before, after, arrow)}  {name}{at}"))
    if len(values) == 1:
        lines.append((curve, f"{short(values[0])}  in training"))
    elif values:
        changed = change(values[0], values[-1], arrow)
        lines.append((curve, f"{changed}  in training, first and last step"))
    return lines + [(label, str(summary[key])) for label, key in SHOWN if summary.get(key)]


def found_at(run: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run that may have been moved since, with the paths of the folder `run`."""
    before = str(summary.get("report") or "").removesuffix(f"/{REPORT}")
    return {
        key: value.replace(before, str(run)) if before and isinstance(value, str) else value
        for key, value in summary.items()
    }


def times(summary: Mapping[str, Any]) -> str:
    """The steps, the seconds that they and the evaluations took, and those of the whole run."""
    steps = summary["steps"]
    text = f"{steps} step{'' if steps == 1 else 's'} in {duration(summary['seconds'])}"
    if evaluating := summary.get("eval_seconds"):
        text += f", and {duration(evaluating)} of evaluation"
    if is_number(wall := summary.get("wall_seconds")):
        since = " since it was resumed" if summary.get("was_resumed") else " with start and end"
        text += f"; {duration(wall)}{since}"
    return text


def change(before: float | None, after: float | None, arrow: str) -> str:
    if not is_number(before) or not is_number(after):
        return short(before)
    return f"{short(before)} {arrow} {short(after)}  {after - before:+.3f}"

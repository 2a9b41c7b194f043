"""Rows of metrics.jsonl as curves, numbers as text, a timer; and what a run says of itself, on a
terminal and in a log alike: its steps, how long it will take, and how it ended."""

import contextlib
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeGuard

from unslothrl.records import Group

Row = Mapping[str, Any]
Points = list[tuple[int, float]]  # (step, value)

QUANTILES = tuple(f"reward/p{share}" for share in (10, 25, 50, 75, 90))  # of a step's completions
NOT_COMPONENTS = {  # names under reward/ that are no reward's
    *QUANTILES,
    "reward/mean",
    "reward/zero_signal_groups",
    "reward/filtered_groups",
    "reward/failed",
}
EVALUATED = (  # label, key of `eval/<set>/<key>`
    ("pass@1", "pass@1"), ("best of n", "best_of_n"), ("loss", "loss"),
    ("tokens right", "token_accuracy"), ("chosen over rejected", "accuracy"),
)  # fmt: skip
MOST_COMPLETIONS = 96  # of a step, in a report
BARS = "▁▂▃▄▅▆▇█"
LARGEST = 1e300
PARTS = ("generation", "reward", "update", "sync")  # of a step


def components(rows: Iterable[Row]) -> list[str]:
    """The names of the rewards: `reward/<name>`."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("reward/"))
    return [name for name in names if name not in NOT_COMPONENTS]


def eval_sets(rows: Iterable[Row]) -> list[str]:
    """The <set> of every `eval/<set>/pass@1`, or where nothing is drawn `eval/<set>/loss`."""
    found = (re.fullmatch(r"eval/(.*)/(pass@1|loss)", name, re.S) for row in rows for name in row)
    return list(dict.fromkeys(match[1] for match in found if match))


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it can be drawn: finite, and so far from the largest that sums are finite too."""
    return isinstance(value, int | float) and abs(value) <= LARGEST


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in one line of at most `width` characters; neighbours are averaged to fit."""
    values = [math.fsum(part) / len(part) for part in buckets(values, width)]
    if not values:
        return ""
    low, high = min(values), max(values)
    if high == low:
        return BARS[3] * len(values)
    top = len(BARS) - 1
    return "".join(BARS[round((value - low) / (high - low) * top)] for value in values)


def buckets(values: Sequence[Any], count: int) -> list[Sequence[Any]]:
    """`values` cut into at most `count` consecutive parts of nearly equal length, none empty."""
    size, count = len(values), min(count, len(values))
    return [values[i * size // count : (i + 1) * size // count] for i in range(count)]


def mean(values: Collection[float]) -> float:
    """0 of no values."""
    return math.fsum(values) / len(values) if values else 0.0


def duration(seconds: float) -> str:
    """4.2 -> "4 s", 83 -> "1:23", 3723 -> "1:02:03"."""
    whole = max(0, round(seconds)) if math.isfinite(seconds) else 0
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


def short(value: float | None) -> str:
    """A number in at most seven characters: 0.341, 12.3, 3,105, 1.2e-05, -0.0031."""
    if not is_number(value):
        return "-"
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        return f"{value:.1e}"
    if isinstance(value, int) or size >= 100:
        return f"{value:,.0f}"
    if 0 < size < 0.1:
        return f"{value:.4f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3f}"


class Timer:
    """Seconds of a step by part: `with timer("update"): ...`. The rest is the driver's."""

    def __init__(self):
        self.spent = dict.fromkeys(PARTS, 0.0)
        self.began = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[part] += time.perf_counter() - began

    def metrics(self) -> dict[str, float]:
        """`timing/<part>_s` for every part, overhead and the whole step so far."""
        step = time.perf_counter() - self.began
        overhead = step - sum(self.spent.values())
        seconds = {**self.spent, "overhead": overhead, "step": step}
        return {f"timing/{name}_s": value for name, value in seconds.items()}


Column = tuple[str, str, str]
"""A metric in the line of a step: its label, its name, and how it is written, "" for `short`."""
FAILED, EQUAL = "reward/failed", "reward/zero_signal_groups"
COLUMNS: Sequence[Column] = (  # the first is also the curve of the live area
    ("reward", "reward/mean", ""),
    ("score", "rollout/score", ""),
    ("length", "rollout/mean_length", ".0f"),
    ("seconds", "timing/step_s", ".1f"),
    ("rewards failed", FAILED, ""),
    ("groups without signal", EQUAL, ""),
    ("gap", "train/sampler_gap", ".4f"),
    ("tokens/s", "rollout/tokens_per_s", ",.0f"),
)
BETWEEN = " | "  # an episode's turns and observations
MOST_PROBLEM, MOST_COMPLETION, MOST_ANSWER = 200, 400, 80  # characters of a sample
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


def step_line(metrics: Row, step: int, total: int, columns: Sequence[Column] = COLUMNS) -> str:
    """Without what is not known of the step, and without failures where there are none."""
    parts = []
    for label, metric, form in columns:
        value = metrics.get(metric)
        if is_number(value) and (value or metric != FAILED):
            of = f"/{metrics['rollout/groups']}" if metric == EQUAL else ""
            parts.append(f"{label} {format(value, form) if form else short(value)}{of}")
    return f"step {step}/{total}: " + ", ".join(parts)


def evaluation_lines(step: int, metrics: Row) -> list[str]:
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


def sample_line(groups: Sequence[Group]) -> str:
    """The first completion that earned most, with the answer where it is not right."""
    totals = [(total, group, i) for group in groups for i, total in enumerate(group.totals)]
    total, group, index = max(totals, key=lambda each: each[0])
    answer = "" if group.scores[index] else clipped(group.task.answer, MOST_ANSWER)
    wanted = f" (the answer: {answer})" if answer else ""
    return f"sample, reward {total:.3g}: {' -> '.join(told(group, index))}{wanted}"


def improved_line(before: Sequence[Group], after: Sequence[Group]) -> str | None:
    """The first problem whose scores have risen most; None: none has."""
    gains = [fmean(b.scores) - fmean(a.scores) for a, b in zip(before, after, strict=True)]
    place = gains.index(max(gains))
    if gains[place] <= 0:
        return None
    asked, first = told(before[place], 0)
    scores = after[place].scores
    now = told(after[place], scores.index(max(scores)))[1]
    return f"improved most: {asked} -> before: {first} -> now: {now}"


def told(group: Group, index: int) -> tuple[str, str]:
    """What was asked and answered, turn by turn."""
    problem, completion = group.task.problem, group.completions[index]
    text = completion.text
    if (transcript := completion.transcript) is not None:
        problem, text = transcript.question or problem, transcript.text(BETWEEN)
    return clipped(problem, MOST_PROBLEM), clipped(text, MOST_COMPLETION)


def clipped(text: str, most: int) -> str:
    """`text` in a line of at most `most` characters: of a longer one its beginning and its end."""
    text = " ".join(text.split())
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 3]}...{text[-half:]}"


class Phase:
    """What is being done: `done` of `total` items (0: not known), and `tokens` so far."""

    def __init__(self, kind: str, now: float, tokens: int = 0):
        self.kind, self.started, self.first_tokens = kind, now, tokens
        self.done, self.total, self.tokens = 0, 0, tokens

    def said(self, now: float) -> str:
        """How far it is, with tokens a second, or else the time that it has taken."""
        drawn, seconds = self.tokens - self.first_tokens, now - self.started
        speed = f"{drawn / seconds:,.0f} tokens/s" if seconds > 0 and drawn > 0 else ""
        return f"{f'{self.done}/{self.total}  ' * bool(self.total)}{speed or duration(seconds)}"


# How a run ended


def summary_lines(
    summary: Mapping[str, Any], values: Sequence[float], curve: str = "reward"
) -> list[tuple[str, str]]:
    """(label, text): status, steps and times; evaluations before and after; what can be done now.

    An evaluation of another step than the first or the last is shown with its step. `values`: the
    figure of every step that `curve` names.
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
                lines.append((label, f"{change(before, after)}  {name}{at}"))
    if len(values) == 1:
        lines.append((curve, f"{short(values[0])}  in training"))
    elif values:
        ends = change(values[0], values[-1])
        lines.append((curve, f"{ends}  in training, first and last step"))
    return lines + [(label, str(summary[key])) for label, key in SHOWN if summary.get(key)]


def times(summary: Mapping[str, Any]) -> str:
    steps = summary["steps"]
    text = f"{steps} step{'' if steps == 1 else 's'} in {duration(summary['seconds'])}"
    if evaluating := summary.get("eval_seconds"):
        text += f", and {duration(evaluating)} of evaluation"
    if is_number(wall := summary.get("wall_seconds")):
        since = " since it was resumed" if summary.get("was_resumed") else " with start and end"
        text += f"; {duration(wall)}{since}"
    return text


def change(before: float | None, after: float | None) -> str:
    if not is_number(before) or not is_number(after):
        return short(before)
    return f"{short(before)} -> {short(after)}  {after - before:+.3f}"


def chosen_groups(sizes: Sequence[int]) -> list[int]:
    """Those that are shown, ascending, of at most `MOST_COMPLETIONS`: the same for equal sizes."""
    if sum(sizes) <= MOST_COMPLETIONS:
        return list(range(len(sizes)))
    fitting = max(1, MOST_COMPLETIONS // max(sizes))
    return sorted({i * len(sizes) // fitting for i in range(min(fitting, len(sizes)))})

"""Rows of metrics.jsonl as curves, numbers as text for the terminal and the report, and a timer."""

import contextlib
import itertools
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

Row = Mapping[str, Any]
Points = list[tuple[int, float]]  # (step, value)

NOT_COMPONENTS = {  # names under reward/ that are no reward's
    "reward/mean",
    "reward/zero_signal_groups",
    "reward/filtered_groups",
    "reward/failed",
}
EVALUATED = (  # label, key of `eval/<set>/<key>`
    ("pass@1", "pass@1"), ("best of n", "best_of_n"), ("loss", "loss"),
    ("tokens right", "token_accuracy"), ("chosen over rejected", "accuracy"),
)  # fmt: skip
BARS = "▁▂▃▄▅▆▇█"
LARGEST = 1e300
PARTS = ("generation", "reward", "update", "sync")  # of a step


def series(rows: Iterable[Row], name: str) -> Points:
    """The curve of one metric; rows that lack it or hold null are left out."""
    return [(row["step"], row[name]) for row in rows if is_number(row.get(name))]


def components(rows: Iterable[Row]) -> list[str]:
    """The names of the rewards: `reward/<name>`."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("reward/"))
    return [name for name in names if name not in NOT_COMPONENTS]


def eval_sets(rows: Iterable[Row]) -> list[str]:
    """The names of the evaluation sets: the <set> of every `eval/<set>/pass@1`, or, where nothing
    is drawn, `eval/<set>/loss`."""
    found = (re.fullmatch(r"eval/(.*)/(pass@1|loss)", name, re.S) for row in rows for name in row)
    return list(dict.fromkeys(match[1] for match in found if match))


def is_number(value: Any) -> TypeGuard[float]:
    """Whether this is a number that can be drawn: finite, and far from the largest float, so that
    sums of many are finite too."""
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
    count = max(0, min(count, len(values)))
    edges = [i * len(values) // count for i in range(count + 1)] if count else []
    return [values[a:b] for a, b in itertools.pairwise(edges)]


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
    if size >= 1e7:
        return f"{value:.1e}"
    if isinstance(value, int) or size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.1 or value == 0:
        return f"{value:.3f}"
    return f"{value:.4f}" if size >= 1e-3 else f"{value:.1e}"


class Timer:
    """Seconds of one step by part: `with timer("update"): ...`. The time outside all parts is the
    driver's overhead."""

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

    def move(self, seconds: float, source: str, target: str) -> None:
        """Counts `seconds` that were timed as part `source` to part `target`."""
        self.spent[source] -= seconds
        self.spent[target] += seconds

    def metrics(self) -> dict[str, float]:
        """`timing/<part>_s` for every part, overhead and the whole step so far."""
        step = time.perf_counter() - self.began
        overhead = step - sum(self.spent.values())
        seconds = {**self.spent, "overhead": overhead, "step": step}
        return {f"timing/{name}_s": value for name, value in seconds.items()}

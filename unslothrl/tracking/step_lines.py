"""A finished step as a row of a table, or as a line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unslothrl.tracking.metrics import Row, duration, is_number, short

HEADER_EVERY = 20  # rows
STEP_WIDTH = 9
GROUPS = "rollout/groups"


@dataclass(frozen=True)
class Column:
    """A metric in the table and in the plain lines."""

    label: str
    metric: str
    width: int
    write: Callable[[Any], str] = short
    plain: str = "{label} {value}"  # how a plain line says it
    is_optional: bool = False  # left out where the step lacks it
    is_of_groups: bool = False  # a count of the step's groups, shown as 27/32
    hides_zero: bool = False  # left out while it is 0, and from plain lines


# The rightmost are left out where they do not fit.
COLUMNS = (
    Column("reward", "reward/mean", 9),
    Column("score", "rollout/score", 8, is_optional=True),
    Column("length", "rollout/mean_length", 8, lambda value: f"{value:.0f}"),
    Column("seconds", "timing/step_s", 9, lambda value: f"{value:.1f}"),
    Column("failed", "reward/failed", 8, plain="rewards failed {value}", hides_zero=True),
    Column(
        "no signal",
        "reward/zero_signal_groups",
        11,
        plain="groups without signal {value}",
        is_optional=True,
        is_of_groups=True,
    ),
    Column("gap", "train/sampler_gap", 8, lambda value: f"{value:.4f}"),
    Column("tokens/s", "rollout/tokens_per_s", 10, lambda value: f"{value:,.0f}"),
)


@dataclass(frozen=True)
class Layout:
    """What is shown of a run's steps."""

    columns: Sequence[Column] = COLUMNS
    curve: tuple[str, str] = ("reward", "reward/mean")  # label, metric: from step to step


OF_A_RUN = Layout()


class StepTable:
    """Rows of steps under a heading, which is repeated now and then and where its columns
    change."""

    def __init__(self, columns: Sequence[Column] = COLUMNS) -> None:
        self.columns = columns
        self.rows_since_heading = 0
        self.heading = ""

    def add(self, metrics: Row, step: int, total: int, width: int) -> tuple[str | None, str]:
        """-> (the heading, None where it still stands close above; the row), each shorter than
        `width`."""
        labels, cells = [f"{'step':>{STEP_WIDTH}}"], [f"{f'{step}/{total}':>{STEP_WIDTH}}"]
        for column in columns_of(metrics, self.columns):
            labels.append(f" {column.label:>{column.width - 1}}")
            value = cell(metrics, column)
            cells.append(f" {value:>{column.width - 1}}")
        while len(cells) > 1 and len("".join(cells)) >= width:
            labels.pop()
            cells.pop()
        heading = "".join(labels)
        if heading == self.heading and self.rows_since_heading < HEADER_EVERY:
            self.rows_since_heading += 1
            return None, "".join(cells)
        self.heading, self.rows_since_heading = heading, 1
        return heading, "".join(cells)


def columns_of(metrics: Row, columns: Sequence[Column] = COLUMNS) -> Sequence[Column]:
    """The columns that a step has something for."""
    return [
        column
        for column in columns
        if not (column.is_optional and column.metric not in metrics)
        and not (column.hides_zero and not metrics.get(column.metric))
    ]


def plain_step(
    metrics: Row,
    step: int,
    total: int,
    to_end: float | None,
    columns: Sequence[Column] = COLUMNS,
) -> str:
    """A step as a line for a log."""
    parts = [
        column.plain.format(label=column.label, value=cell(metrics, column))
        for column in columns_of(metrics, columns)
        if is_number(metrics.get(column.metric))
    ]
    if to_end is not None and step < total:
        parts.append(f"end in {duration(to_end)}")
    return f"step {step}/{total}: " + ", ".join(parts)


def cell(metrics: Row, column: Column) -> str:
    """A value as the table and the lines show it; a count of groups with how many there were."""
    value, groups = metrics.get(column.metric), metrics.get(GROUPS)
    if not is_number(value):
        return "-"
    return column.write(value) + (f"/{groups}" if column.is_of_groups and groups else "")

"""The area below the lines of a run, drawn again several times a second: the reward so far, the
current phase with its bar, and the remaining time."""

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from unslothrl.tracking.metrics import duration, short, sparkline
from unslothrl.tracking.printer import Printer, cut
from unslothrl.tracking.schedule import Phase, Schedule
from unslothrl.untrusted import for_terminal

OF_A_STEP = ("generation", "measuring", "update")  # kinds of progress
LABEL = 10  # columns
LEAST_BAR, MOST_BAR = 6, 30


def area(
    printer: Printer,
    schedule: Schedule,
    phase: Phase | None,
    label: str,
    values: Sequence[float],
    now: float,
    elapsed: float,
) -> Group:
    """All lines of it, each in the columns that a line may fill."""
    lines = [
        curve_line(printer, label, values),
        phase_line(printer, schedule, phase, now),
        time_line(schedule, elapsed),
    ]
    shown = [line for line in lines if line is not None]
    return Group("", *(cut(line, printer.width, printer.unicode) for line in shown))


def curve_line(printer: Printer, label: str, values: Sequence[float]) -> Text | None:
    """How the steps' figure has gone so far."""
    if len(values) < 2:
        return None
    ends = f"  {short(values[0])} {printer.arrow} {short(values[-1])}"
    room = printer.width - LABEL - len(ends)
    curve = sparkline(values, room) if printer.unicode else ""
    return Text.assemble((f"{label:>9} ", "dim"), (curve, "green"), ends)


def phase_line(printer: Printer, schedule: Schedule, phase: Phase | None, now: float) -> Text:
    label = (f"{step_label(schedule, phase):>9} ", "dim")
    if phase is None:
        return Text.assemble(label)
    if not phase.total:
        return Text.assemble(label, for_terminal(phase.kind), f"  {duration(phase.seconds(now))}")
    left = f"{for_terminal(phase.kind):<10} "
    count = f" {phase.done}/{phase.total}"
    right = count + (rate(phase, now, "  ") or f"  {duration(phase.seconds(now))}")
    room = min(MOST_BAR, printer.width - LABEL - len(left) - len(right))
    if room < LEAST_BAR:  # the bar says more than the rate
        right = count
        room = max(0, min(MOST_BAR, printer.width - LABEL - len(left) - len(right)))
    filled = round(room * phase.share)
    full, empty = ("━", "─") if printer.unicode else ("#", "-")
    bar = (full * filled, "green"), (empty * (room - filled), "dim")
    return Text.assemble(label, left, *bar, right)


def time_line(schedule: Schedule, elapsed: float) -> Text:
    next_eval, end = schedule.to_next_eval(), schedule.to_end()
    parts = [f"{duration(elapsed)} so far"]
    if end is not None:
        parts.append(f"end in {duration(end)}")
    if next_eval is not None:
        parts.append(f"next evaluation {f'in {duration(next_eval)}' if next_eval else 'now'}")
    return Text(f"{'':>9} " + ", ".join(parts), "dim")


def step_label(schedule: Schedule, phase: Phase | None) -> str:
    running = phase is not None and phase.kind in OF_A_STEP
    if not schedule.total:
        return "step 1" if running else ""
    return f"{min(schedule.step + running, schedule.total)}/{schedule.total}"


def rate(phase: Phase, now: float, before: str) -> str:
    """Tokens a second with `before` in front, "" while there are none."""
    tokens = phase.tokens_per_s(now)
    return "" if tokens is None else f"{before}{tokens:,.0f} tokens/s"

"""The progress of a run on the terminal.

On a terminal, lines scroll above a live area of three lines: the reward so far, the current phase,
and the remaining time. Anywhere else (a pipe, a log file, a notebook cell, which cannot move its
cursor) every event is one plain line.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from unslothrl.tracking.metrics import Row, duration, eval_sets, is_number, short, sparkline

RECENT = 10  # steps and evaluations whose mean predicts the remaining time
PLAIN_EVERY_S = 60.0  # between two lines of progress where there is no live area
HEADER_EVERY = 20  # rows
NOTEBOOKS = ("JPY_PARENT_PID", "COLAB_RELEASE_TAG")  # set inside a notebook's kernel

# Label, metric, width, format. The rightmost are left out where they do not fit.
COLUMNS: tuple[tuple[str, str, int, Callable[[Any], str]], ...] = (
    ("reward", "reward/mean", 9, short),
    ("score", "rollout/score", 9, short),
    ("length", "rollout/mean_length", 9, lambda value: f"{value:.0f}"),
    ("seconds", "timing/step_s", 10, lambda value: f"{value:.1f}"),
    ("gap", "train/sampler_gap", 10, lambda value: f"{value:.4f}"),
    ("tokens/s", "rollout/tokens_per_s", 11, lambda value: f"{value:,.0f}"),
)

OF_A_STEP = ("generation", "measuring", "update")  # kinds of progress


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
        return self._remaining((pending[0] - self.step) * _mean(self.step_s))

    def to_end(self) -> float | None:
        if not self.step_s:
            return None
        steps = (self.total - self.step) * _mean(self.step_s)
        return self._remaining(steps + len(self._pending_evaluations()) * _mean(self.eval_s))

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
    """The current phase: `done` of `total` items, and `tokens` so far. The token rate counts from
    the first report, because the true start of the phase is not known here."""

    def __init__(self, kind: str, now: float, tokens: int = 0):
        self.kind, self.started, self.first_tokens = kind, now, tokens
        self.done, self.total, self.tokens = 0, 0, tokens

    def tokens_per_s(self, now: float) -> float | None:
        seconds, tokens = now - self.started, self.tokens - self.first_tokens
        return tokens / seconds if seconds > 0 and tokens > 0 else None


class Terminal:
    """The display of one run, a context manager that restores the terminal on exit.

    `live` forces the live area on or off. `clock` returns seconds.
    """

    def __init__(
        self,
        eval_every: int = 0,
        console: Console | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.console = console or Console(highlight=False)
        self.live_area = can_redraw(self.console) if live is None else live
        self.clock, self.started = clock, clock()
        self.schedule = Schedule(eval_every, clock)
        self.rewards: list[float] = []
        self.phase: Phase | None = None
        self.rows_since_header = HEADER_EVERY
        self.last_plain = clock()
        self.live: Live | None = None

    def __enter__(self) -> "Terminal":
        if self.live_area:
            self.live = Live(
                get_renderable=self.area,
                console=self.console,
                refresh_per_second=4,
                transient=True,
            )
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def header(self, lines: Sequence[str]) -> None:
        """Prints what the run is: a title and indented lines."""
        for number, line in enumerate(lines):
            self._print(line if number == 0 else f"  {line}", "bold" if number == 0 else "")
        if self.live_area:
            self._print("")

    def resumed(self, rows: Sequence[Row]) -> None:
        """Takes over the rewards of the steps before, from the rows of metrics.jsonl."""
        values = [row.get("reward/mean") for row in rows]
        self.rewards = [float(value) for value in values if is_number(value)]

    def stage(self, name: str) -> None:
        """Shows that a stage of start-up or shutdown begins, e.g. "starting Ray"."""
        self._end_stage()
        self.phase = Phase(name, self.clock())
        if not self.live_area:
            self._print(name)

    def progress(self, kind: str, done: int, total: int, tokens: int) -> None:
        """Shows `done` of `total`. Cheap: call it often.

        `kind` is "generation", "measuring", "update" or "eval".
        """
        now = self.clock()
        if self.phase is None or self.phase.kind != kind or done < self.phase.done:
            self._end_stage()
            self.phase = Phase(kind, now, tokens)
            self.last_plain = now
        phase = self.phase
        phase.done, phase.total, phase.tokens = done, total, tokens
        if not self.live_area and now - self.last_plain >= PLAIN_EVERY_S:
            self.last_plain = now
            self._print(f"{kind}: {done} of {total}" + self._rate(", "))

    def step(self, metrics: Row, step: int, total_steps: int) -> None:
        """Shows a finished step."""
        self._end_stage()
        self.phase = None
        if is_number(metrics.get("reward/mean")):
            self.rewards.append(metrics["reward/mean"])
        self.schedule.stepped(step, total_steps, metrics["timing/step_s"])
        if self.live_area:
            self._table_row(metrics, step, total_steps)
        else:
            self._print(self._plain_step(metrics, step, total_steps))

    def note(self, line: str) -> None:
        """Prints a warning."""
        self._print(line, "yellow")

    def evaluation(self, step: int, metrics: Row) -> None:
        """Shows a finished evaluation; `step` is 0 before the first step."""
        self._end_stage()
        self.phase = None
        seconds = metrics.get("timing/eval_s")
        self.schedule.evaluated(step, seconds)
        for name in eval_sets([metrics]):
            parts = [
                f"pass@1 {short(metrics[f'eval/{name}/pass@1'])}",
                f"best of n {short(metrics.get(f'eval/{name}/best_of_n'))}",
            ]
            if is_number(metrics.get(f"eval/{name}/mean_length")):
                parts.append(f"length {metrics[f'eval/{name}/mean_length']:.0f}")
            if is_number(seconds):
                parts.append(f"{seconds:.1f} s")
            if self.live_area:
                self._print(f"{f'eval {step}':>9}  " + "  ".join([*parts, name]), "bold")
            else:
                self._print(f"evaluation after step {step} on {name}: " + ", ".join(parts))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Shows how the run ended: `summary` as in summary.json, with "command" and "report"."""
        self._end_stage()
        self.phase = None
        self.__exit__()
        style = {"finished": "bold green", "failed": "bold red"}.get(summary["status"], "bold")
        if self.live_area:
            self._print("")
        for number, (label, text) in enumerate(self._summary_lines(summary)):
            if not self.live_area:
                self._print(f"{label}: {text}")
            elif number == 0:
                self._print(f"{label}  {text}", style)
            else:
                self._print(Text.assemble((f"  {label:<10}", "dim"), printable(text)))

    def failed(self, message: str | None = None) -> None:
        """Ends the live area and shows why the run failed; None if the caller prints the reason."""
        self.phase = None
        self.__exit__()
        if message is not None:
            self._print(f"failed: {message}", "bold red")

    def area(self) -> Group:
        """The live area, always narrower than the terminal: a key's echo must not wrap a line."""
        width = self.console.width - 4
        lines = [self._reward_line(width), self._now_line(width), self._time_line()]
        shown = [line for line in lines if line is not None]
        for line in shown:
            line.truncate(width, overflow="ellipsis" if self._unicode else "crop")
            line.no_wrap = True
        return Group("", *shown)

    def _reward_line(self, width: int) -> Text | None:
        if len(self.rewards) < 2:
            return None
        ends = f"  {short(self.rewards[0])} {self._arrow} {short(self.rewards[-1])}"
        curve = sparkline(self.rewards, width - 10 - len(ends)) if self._unicode else ""
        return Text.assemble((f"{'reward':>9} ", "dim"), (curve, "green"), ends)

    def _now_line(self, width: int) -> Text:
        if self.phase is None or not self.phase.total:
            seconds = "" if self.phase is None else f"  {self._seconds_in_phase()}"
            doing = "" if self.phase is None else self.phase.kind
            return Text.assemble((f"{self._step_label():>9} ", "dim"), printable(doing), seconds)
        phase = self.phase
        left = f"{phase.kind:<10} "
        right = f" {phase.done}/{phase.total}{self._rate('  ')}"
        room = min(30, width - 10 - len(left) - len(right))
        filled = round(max(room, 0) * min(1.0, phase.done / phase.total))
        full, empty = ("━", "─") if self._unicode else ("#", "-")
        return Text.assemble(
            (f"{self._step_label():>9} ", "dim"),
            left,
            (full * filled, "green"),
            (empty * (room - filled), "dim"),
            right,
        )

    def _time_line(self) -> Text:
        next_eval, end = self.schedule.to_next_eval(), self.schedule.to_end()
        parts = [f"{duration(self.clock() - self.started)} so far"]
        if end is not None:
            parts.append(f"end in {duration(end)}")
        if next_eval is not None:
            parts.append(f"next evaluation {f'in {duration(next_eval)}' if next_eval else 'now'}")
        return Text(f"{'':>9} " + ", ".join(parts), "dim")

    def _step_label(self) -> str:
        schedule = self.schedule
        running = self.phase is not None and self.phase.kind in OF_A_STEP
        if not schedule.total:
            return "step 1" if running else ""
        return f"{min(schedule.step + running, schedule.total)}/{schedule.total}"

    def _seconds_in_phase(self) -> str:
        return duration(self.clock() - self.phase.started) if self.phase else ""

    def _rate(self, before: str) -> str:
        rate = self.phase.tokens_per_s(self.clock()) if self.phase else None
        return "" if rate is None else f"{before}{rate:,.0f} tokens/s"

    def _end_stage(self) -> None:
        """Prints the seconds of a stage that has ended, so that a slow start can be explained."""
        phase = self.phase
        if self.live_area and phase is not None and not phase.total:
            self._print(f"  {phase.kind}, {self._seconds_in_phase()}", "dim")

    def _table_row(self, metrics: Row, step: int, total: int) -> None:
        labels, cells = [f"{'step':>9}"], [f"{f'{step}/{total}':>9}"]
        for label, name, width, write in COLUMNS:
            if name in metrics or label != "score":
                labels.append(f"{label:>{width}}")
                cells.append(f" {cell(metrics.get(name), write):>{width - 1}}")
        while len(cells) > 1 and len("".join(cells)) >= self.console.width:
            labels.pop()
            cells.pop()
        if self.rows_since_header >= HEADER_EVERY:
            self.rows_since_header = 0
            self._print("".join(labels), "dim")
        self.rows_since_header += 1
        self._print("".join(cells))

    def _plain_step(self, metrics: Row, step: int, total: int) -> str:
        parts = [
            f"{label} {write(metrics[name])}"
            for label, name, _, write in COLUMNS
            if is_number(metrics.get(name))
        ]
        end = self.schedule.to_end()
        if end is not None and step < total:
            parts.append(f"end in {duration(end)}")
        return f"step {step}/{total}: " + ", ".join(parts)

    def _summary_lines(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """(label, text): status, steps and seconds; evaluations before and after; paths."""
        steps = summary["steps"]
        ended = f"{steps} step{'' if steps == 1 else 's'} in {duration(summary['seconds'])}"
        if evaluating := summary.get("eval_seconds"):
            ended += f", and {duration(evaluating)} of evaluation"
        lines = [(summary["status"], ended)]
        first, last = summary.get("first_eval") or {}, summary.get("last_eval") or {}
        for name in eval_sets([first]):
            for label, key in (("pass@1", "pass@1"), ("best of n", "best_of_n")):
                before = first.get(f"eval/{name}/{key}")
                after = last.get(f"eval/{name}/{key}") if last != first else None
                lines.append((label, f"{self._change(before, after)}  {name}"))
        if self.rewards:
            last_reward = self.rewards[-1] if len(self.rewards) > 1 else None
            change = self._change(self.rewards[0], last_reward)
            lines.append(("reward", f"{change}  in training, first and last step"))
        named = {"adapter": "adapter", "use it": "command", "evaluate": "evaluate"}
        named |= {"export": "export", "report": "report"}
        return lines + [(label, str(summary[k])) for label, k in named.items() if summary.get(k)]

    def _change(self, before: float | None, after: float | None) -> str:
        if not is_number(before) or not is_number(after):
            return short(before)
        return f"{short(before)} {self._arrow} {short(after)}  {after - before:+.3f}"

    @property
    def _unicode(self) -> bool:
        return self.console.encoding.lower().startswith("utf")

    @property
    def _arrow(self) -> str:
        return "→" if self._unicode and self.live_area else "->"

    def _print(self, line: str | Text, style: str = "") -> None:
        """Prints a line. `Text` is never wrapped, so that a path or command can be copied."""
        if self.live_area:
            text = line if isinstance(line, Text) else Text(printable(line), style)
            self.console.print(text, soft_wrap=isinstance(line, Text))
        else:
            self.console.file.write(printable(str(line)) + "\n")
            self.console.file.flush()


def can_redraw(console: Console) -> bool:
    """Whether the output is a terminal that can move its cursor."""
    isatty = getattr(console.file, "isatty", lambda: False)()
    return isatty and not console.is_dumb_terminal and not any(n in os.environ for n in NOTEBOOKS)


def cell(value: Any, write: Callable[[Any], str]) -> str:
    return write(value) if is_number(value) else "-"


def printable(text: str) -> str:
    """`text` without control characters: names come from data sets and models."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0

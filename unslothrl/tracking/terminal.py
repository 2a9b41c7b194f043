"""The progress of a run on the terminal.

On a terminal, lines scroll above a live area of three lines: the reward so far, the current phase,
and the remaining time. Anywhere else (a pipe, a log file, a notebook cell, which cannot move its
cursor) every event is one plain line.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from unslothrl import types
from unslothrl.tracking import live_area, samples
from unslothrl.tracking.metrics import EVALUATED, Row, duration, eval_sets, is_number, short
from unslothrl.tracking.output import Output
from unslothrl.tracking.printer import Printer, can_redraw
from unslothrl.tracking.schedule import Phase, Schedule
from unslothrl.tracking.step_lines import OF_A_RUN, Layout, StepTable, plain_step
from unslothrl.tracking.summary_lines import SHOWN, summary_lines
from unslothrl.untrusted import for_terminal

PLAIN_EVERY_S = 60.0  # between two lines of progress where there is no live area
TICK_S = 5.0  # between two looks at whether such a line is due
TO_BE_COPIED = {label for label, _ in SHOWN}  # lines of a summary that must not be cut in two
WORTH_SAYING_S = 1.0  # of a stage that has ended


class Terminal:
    """The display of one run, a context manager that restores the terminal on exit.

    `live` forces the live area on or off. `clock` returns seconds.
    A step has so many `groups`, 0: not known.
    """

    def __init__(
        self,
        eval_every: int = 0,
        console: Console | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        layout: Layout = OF_A_RUN,
    ):
        self.console = console or Console(highlight=False, file=cast(TextIO, Output()))
        self.live_area = can_redraw(self.console) if live is None else live
        self.printer = Printer(self.console, self.live_area)
        self.clock, self.started = clock, clock()
        self.schedule = Schedule(eval_every, clock)
        self.layout = layout
        self.values: list[float] = []  # of its curve, a step each
        self.phase: Phase | None = None
        self.tokens_each: dict[str, float] = {}  # of an item, by kind of phase
        self.table = StepTable(layout.columns)
        self.never_right = samples.NeverRight()
        self.sampled_at: float | None = None
        self.last_plain = clock()
        self.live: Live | None = None
        self.has_ended = threading.Event()

    def __enter__(self) -> "Terminal":
        if self.live_area:
            self._start_live()
        else:
            threading.Thread(target=self._tick_on, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.has_ended.set()
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _start_live(self) -> None:
        self.live = Live(
            get_renderable=self.area,
            console=self.console,
            refresh_per_second=4,
            transient=True,
        )
        self.live.start()

    def _tick_on(self) -> None:
        while not self.has_ended.wait(TICK_S):
            self.tick()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside it the terminal belongs to others, such as a download's own bars."""
        if self.live is None:
            yield
            return
        if self.phase is not None:
            self.printer.line(f"  {self.phase.kind}", "dim")
        self.live.stop()
        self.live = None
        try:
            yield
        finally:
            self._start_live()

    @property
    def elapsed(self) -> float:
        """Seconds since this display began."""
        return self.clock() - self.started

    def header(self, lines: Sequence[str]) -> None:
        """Prints what the run is: a title and indented lines."""
        self._end_phase()
        for number, line in enumerate(lines):
            self.printer.line(line if number == 0 else f"  {line}", "bold" if number == 0 else "")
        if self.live_area:
            self.printer.line("")

    def resumed(self, rows: Sequence[Row]) -> None:
        """Takes over the curve of the steps before, from the rows of metrics.jsonl."""
        values = [row.get(self.layout.curve[1]) for row in rows]
        self.values = [float(value) for value in values if is_number(value)]
        self.never_right.was_right = any(row.get("rollout/score") for row in rows)

    def stage(self, name: str) -> None:
        """Shows that a stage of start-up or shutdown begins, e.g. "starting Ray"."""
        self._end_phase()
        self.phase = Phase(name, self.clock())
        if not self.live_area:
            self.last_plain = self.clock()
            self.printer.line(name)

    def progress(self, kind: str, done: int, total: int, tokens: int = 0) -> None:
        """Shows `done` of `total`. Cheap: call it often.

        `kind` is "generation", "measuring", "update" or "eval", or a stage's.
        """
        now = self.clock()
        if self.phase is None or self.phase.kind != kind or done < self.phase.done:
            self._end_phase()
            expected = round(total * self.tokens_each.get(kind, 0.0))
            self.phase = Phase(kind, now, tokens, expected)
            self.last_plain = now
        phase = self.phase
        phase.done, phase.total, phase.tokens = done, total, tokens
        if not self.live_area and now - self.last_plain >= PLAIN_EVERY_S:
            self.last_plain = now
            self.printer.line(f"{kind}: {done} of {total}" + live_area.rate(phase, now, ", "))

    def tick(self) -> None:
        """Where there is no live area, says now and then what is still being waited for."""
        phase, now = self.phase, self.clock()
        if phase is not None and not phase.total and now - self.last_plain >= PLAIN_EVERY_S:
            self.last_plain = now
            self.printer.line(f"{phase.kind}: {duration(phase.seconds(now))} so far")

    def step(self, metrics: Row, step: int, total_steps: int) -> None:
        """Shows a finished step."""
        self._end_phase()
        if is_number(value := metrics.get(self.layout.curve[1])):
            self.values.append(value)
        self.schedule.stepped(step, total_steps, metrics["timing/step_s"])
        if self.live_area:
            heading, row = self.table.add(metrics, step, total_steps, self.console.width)
            if heading is not None:
                self.printer.line(heading, "dim")
            self.printer.line(row)
        else:
            to_end = self.schedule.to_end()
            line = plain_step(metrics, step, total_steps, to_end, self.layout.columns)
            self.printer.line(line)
        if (advice := self.never_right.saw(metrics)) is not None:
            self.note(advice)

    def sample(self, groups: Sequence[types.Group]) -> None:
        """Shows the best completion of a step, of the first and then now and then."""
        now = self.clock()
        if self.sampled_at is not None and now - self.sampled_at < samples.EVERY_S:
            return
        self.sampled_at = now
        best = samples.BestCompletion.of(groups)
        for line in [] if best is None else best.lines(self.printer):
            self.printer.line(Text(line, "dim italic") if self.live_area else line)

    def note(self, line: str) -> None:
        """Prints a warning."""
        self.printer.line(line, "yellow")

    def evaluation(self, step: int, metrics: Row) -> None:
        """Shows a finished evaluation; `step` is 0 before the first step."""
        self._end_phase()
        seconds = metrics.get("timing/eval_s")
        self.schedule.evaluated(step, seconds)
        for name in eval_sets([metrics]):
            parts = [
                f"{label} {short(metrics.get(f'eval/{name}/{key}'))}"
                for label, key in EVALUATED
                if f"eval/{name}/{key}" in metrics
            ]
            if is_number(metrics.get(f"eval/{name}/mean_length")):
                parts.append(f"length {metrics[f'eval/{name}/mean_length']:.0f}")
            if is_number(seconds):
                parts.append(f"{seconds:.1f} s")
            if self.live_area:
                self.printer.line(f"{f'eval {step}':>9}  " + "  ".join([*parts, name]), "bold")
            else:
                self.printer.line(f"evaluation after step {step} on {name}: " + ", ".join(parts))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Shows how the run ended: `summary` as in summary.json, with "command", "resume" and
        "report"."""
        self._end_phase()
        self.__exit__()
        style = {"finished": "bold green", "failed": "bold red"}.get(summary["status"], "bold")
        if self.live_area:
            self.printer.line("")
        lines = summary_lines(summary, self.values, self.printer.arrow, self.layout.curve[0])
        if self.never_right.is_so:
            lines.insert(1, ("score", "no completion was ever right"))
        for number, (label, text) in enumerate(lines):
            if number == 0 and self.live_area:
                self.printer.line(f"{label}  {text}", style)
            else:
                self._labelled(label, text)

    def failed(self, message: str | None = None, lines: Sequence[tuple[str, str]] = ()) -> None:
        """Ends the live area and shows why the run failed, None if the caller prints the reason;
        and `lines` (label, text) on what can be done now."""
        self.phase = None
        self.__exit__()
        if message is not None:
            self.printer.line(f"failed: {message}", "bold red")
        for label, text in lines:
            self._labelled(label, text)

    def area(self) -> Group:
        """The live area, always narrower than the terminal."""
        return live_area.area(
            self.printer,
            self.schedule,
            self.phase,
            self.layout.curve[0],
            self.values,
            self.clock(),
            self.elapsed,
        )

    def _labelled(self, label: str, text: str) -> None:
        if self.live_area:
            line = Text.assemble((f"  {label:<9} ", "dim"), for_terminal(text))
            self.printer.line(line, wraps=label not in TO_BE_COPIED)
        else:
            self.printer.line(f"{label}: {text}")

    def _end_phase(self) -> None:
        """Prints the seconds of a stage that has ended, so that a slow start can be explained."""
        phase, now = self.phase, self.clock()
        self.phase = None
        if phase is None:
            return
        if phase.total and phase.done == phase.total and phase.drawn:
            self.tokens_each[phase.kind] = phase.drawn / phase.total
        seconds = phase.seconds(now)
        if self.live_area and not phase.total and seconds >= WORTH_SAYING_S:
            self.printer.line(f"  {phase.kind}, {duration(seconds)}", "dim")

"""The progress of a run on the terminal.

Every event is a line. On a terminal these scroll above a live area of three more, which is there
once a run has said what it is: the reward so far, the current phase, and the remaining time.
Anywhere else (a pipe, a log file, a notebook cell, which cannot move its cursor) what lasts is said
again now and then.
"""

import errno
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from unslothrl import records
from unslothrl.system import stopping
from unslothrl.text import for_terminal
from unslothrl.tracking.metrics import (
    COLUMNS,
    Column,
    Phase,
    Row,
    duration,
    evaluation_lines,
    improved_line,
    is_number,
    sample_line,
    short,
    sparkline,
    step_line,
    summary_lines,
)
from unslothrl.tracking.report.signs import EARNS_NOTHING, NEARLY_ALL, UNGRADED, Sign
from unslothrl.tracking.report.verdict import NONE, Verdict

PLAIN_EVERY_S = 60.0  # between two lines of progress where there is no live area
SAMPLE_EVERY_S = 120.0
Drawn = Mapping[str, Sequence[records.Group]]

OF_A_STEP = ("generation", "measuring", "update")  # kinds of progress
LABEL, BAR = 10, 30  # columns
MOST_WARNINGS = 3  # at the end
OF_ADAPTER = ("command", "evaluate", "export")  # in a summary
CUT_OFF = 0.1  # of the completions of a step, from which on length decides what is graded
PATIENCE = (3, 30)  # steps without a right completion after which that is said
GONE = (errno.EPIPE, errno.EIO)  # a pipe that nobody reads, a terminal that has been closed
NOTEBOOKS = ("JPY_PARENT_PID", "COLAB_RELEASE_TAG")  # set inside a notebook's kernel


class Output:
    """Standard output. When nobody is there to read it any more, the run is asked to stop, and
    whatever is written afterwards goes nowhere. What a full disk does not take of a log is lost,
    and no reason to end a run."""

    def __init__(self):
        self.stream = sys.stdout

    def write(self, text: str) -> int:
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, call: Callable[..., Any], *arguments: str) -> None:
        try:
            call(*arguments)
        except OSError as error:
            if error.errno in GONE:
                stopping.output_closed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Terminal:
    """The display of one run, a context manager. `live` forces the live area on or off."""

    def __init__(
        self,
        console: Console | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        columns: Sequence[Column] = COLUMNS,
    ):
        self.console = console or Console(highlight=False, file=cast(TextIO, Output()))
        can_redraw = self.console.file.isatty() and not self.console.is_dumb_terminal
        can_redraw &= not any(name in os.environ for name in NOTEBOOKS)
        self.live_area = can_redraw if live is None else live
        self.clock, self.started = clock, clock()
        self.first_began: float | None = None  # the first step that this process has done
        self.stepped, self.steps, self.step_number, self.total_steps = 0.0, 0, 0, 0
        self.columns, self.curve = columns, columns[0][1]
        self.values: list[float] = []  # of its curve, a step each
        self.phase: Phase | None = None
        self.wrong: int | None = 0  # steps without a right completion; None: there was one
        self.cut = 0.0  # the largest share of a step's completions that were cut off
        self.warned = ""  # before the first step, of rewards that earn nothing
        self.sampled_at = float("-inf")
        self.drawn: dict[str, Sequence[records.Group]] = {}  # of the first evaluation
        self.live: Live | None = None
        self.keep: Callable[[str], None] = lambda line: None  # of notes
        self.folder = "RUN"  # of the run
        self.has_ended = threading.Event()

    def __enter__(self) -> "Terminal":
        threading.Thread(target=self._tick_on, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.has_ended.set()
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _tick_on(self) -> None:
        while not self.has_ended.wait(PLAIN_EVERY_S):
            self.tick()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    def to_end(self) -> float | None:
        """The seconds that the other steps will take, each as long as one has taken so far with its
        share of the evaluations; None until a step is done."""
        if self.first_began is None:
            return None
        each = (self.stepped - self.first_began) / self.steps
        left = each * (self.total_steps - self.step_number)
        return max(0.0, left - (self.clock() - self.stepped))

    def line(self, line: str, style: str = "", is_cut: bool = False) -> None:
        """Prints a line; on a terminal one that `is_cut` ends before the last column, and any other
        is wrapped by the terminal, so that it can be copied."""
        text = Text(for_terminal(line), style if self.live_area else "")
        is_cut &= self.live_area
        self.console.print(self._fitting(text) if is_cut else text, soft_wrap=not is_cut)

    def _fitting(self, text: Text) -> Text:
        """In the columns that a line may fill: a key's echo must not wrap it."""
        text.no_wrap = True
        text.truncate(self.console.width - 4, overflow="ellipsis")
        return text

    # What happens in a run

    def header(self, lines: Sequence[str]) -> None:
        """Prints what the run is: a title and indented lines. From now on there is a live area:
        until then downloads have bars of their own."""
        self._end_phase()
        warned = [line.removeprefix("warning: ") for line in lines if EARNS_NOTHING in line]
        self.warned = "".join(f"As said before the first step: {line}. " for line in warned)
        for number, line in enumerate(lines):
            self.line(line if number == 0 else f"  {line}", "bold" if number == 0 else "")
        if self.live_area:
            self.line("")
            self.live = self.live or Live(
                get_renderable=self.area, console=self.console, refresh_per_second=4, transient=True
            )
            self.live.start()

    def resumed(self, rows: Sequence[Row]) -> None:
        """Takes over the curve of the steps before, from the rows of metrics.jsonl."""
        self.values = [float(row[self.curve]) for row in rows if is_number(row.get(self.curve))]
        if any(row.get("rollout/score") for row in rows):
            self.wrong = None

    def stage(self, name: str) -> None:
        """Shows that a stage of start-up or shutdown begins, e.g. "starting Ray"."""
        self._end_phase()
        self.phase = Phase(name, self.clock())
        if self.live is None:
            self.line(name)

    def progress(self, kind: str, done: int, total: int, tokens: int = 0) -> None:
        """Shows `done` of `total`. Cheap: call it often.

        `kind` is "generation", "measuring", "update" or "eval", or a stage's.
        """
        now = self.clock()
        if self.phase is None or self.phase.kind != kind or done < self.phase.done:
            self._end_phase()
            self.phase = Phase(kind, now, tokens)
        self.phase.done, self.phase.total, self.phase.tokens = done, total, tokens

    def tick(self) -> None:
        """Where there is no live area, says now and then what is still being waited for."""
        phase, now = self.phase, self.clock()
        if self.live is None and phase is not None and now - phase.started >= PLAIN_EVERY_S:
            self.line(f"{phase.kind}: {phase.said(now)}")

    def count(self, metrics: Row, step: int, total_steps: int) -> None:
        """Takes a step into the live area."""
        self._end_phase()
        if is_number(value := metrics.get(self.curve)):
            self.values.append(value)
        self.stepped, self.step_number, self.total_steps = self.clock(), step, total_steps
        self.steps += 1
        if self.first_began is None:
            self.first_began = self.stepped - metrics["timing/step_s"]

    def step(self, metrics: Row, step: int, total_steps: int) -> None:
        self.count(metrics, step, total_steps)
        line, end = step_line(metrics, step, total_steps, self.columns), self.to_end()
        if not self.live_area and end is not None and step < total_steps:
            line += f", end in {duration(end)}"
        self.line(line, is_cut=True)
        if self.wrong is not None and is_number(score := metrics.get("rollout/score")):
            self.wrong = None if score > 0 else self.wrong + 1
            self.cut = max(self.cut, metrics.get("rollout/truncated") or 0)
            if self.wrong in PATIENCE:
                most = f"Up to {self.cut:.0%} of a step's are cut off: raise --max_new_tokens. "
                first = most if self.cut >= CUT_OFF else ""
                said = f"no completion was graded as right, in {self.wrong} steps. {first}"
                is_cut = (metrics.get("rollout/truncated") or 0) >= NEARLY_ALL
                other = "" if is_cut else self.warned or UNGRADED
                self.note(self.named(said + other).rstrip())

    def sample(self, groups: Sequence[records.Group]) -> None:
        """Shows the best completion of a step, of the first and then now and then. What the model
        or the data wrote reaches the terminal as text alone."""
        if groups and self.clock() - self.sampled_at >= SAMPLE_EVERY_S:
            self.sampled_at = self.clock()
            self.line(sample_line(groups), "dim italic")

    def named(self, text: str) -> str:
        """With the run's folder for RUN in commands."""
        return text.replace("RUN/", f"{shlex.quote(self.folder)}/")

    def note(self, line: str) -> None:
        self.line(line, "yellow")
        self.keep(line)

    def evaluation(self, step: int, metrics: Row, drawn: Drawn | None = None) -> None:
        """Shows a finished evaluation; `step` is 0 before the first step; `drawn`: of each set."""
        self._end_phase()
        for line in evaluation_lines(step, metrics):
            self.line(line, "bold")
        for name, groups in (drawn or {}).items():
            before = self.drawn.setdefault(name, groups)
            if (improved := improved_line(before, groups)) is not None:
                self.line(improved, "dim italic")

    def finish(
        self,
        summary: Mapping[str, Any],
        verdict: Verdict = NONE,
        signs: Sequence[Sign] = (),
    ) -> None:
        """Shows how the run ended: `summary` as in summary.json; its verdict, and the first of its
        warnings; and what can be done now, with its adapter if that may be worth using."""
        self._end_phase()
        self.__exit__()
        if verdict.advice:
            summary = {**summary, **dict.fromkeys(OF_ADAPTER)}
        lines = summary_lines(summary, self.values, self.columns[0][0])
        warnings = [f"{each.rule.title}. {each.seen} {each.rule.advice}" for each in signs]
        lines[1:1] = [("verdict", verdict.said)] if verdict.said else []
        lines[2:2] = [("warning", self.named(each)) for each in warnings[:MOST_WARNINGS]]
        if verdict.advice and not verdict.is_warned:
            lines.insert(-1, ("instead", self.named(verdict.advice)))
        self._labelled(lines, {"up": "bold green", "same": ""}.get(verdict.tone, "bold red"))

    def failed(self, message: str | None = None, lines: Sequence[tuple[str, str]] = ()) -> None:
        """Why the run failed, None if the caller says it; `lines`: what can be done now."""
        self.phase = None
        self.__exit__()
        if message is not None:
            self.line(f"failed: {message}", "bold red")
        self._labelled(lines)

    def _labelled(self, lines: Sequence[tuple[str, str]], verdict: str = "") -> None:
        styles = {"finished": "bold", "verdict": verdict, "warning": "yellow"}
        for label, text in lines:
            self.line(f"{label}: {text}", styles.get(label, ""))

    def _end_phase(self) -> None:
        """Prints the seconds of a stage that has ended, so that a slow start can be explained."""
        phase, self.phase = self.phase, None
        lasted = self.clock() - phase.started if phase is not None and not phase.total else 0.0
        if phase is not None and self.live is not None and lasted >= 1:
            self.line(f"  {phase.kind}, {duration(lasted)}", "dim")

    # The live area

    def area(self) -> Group:
        """How the steps' figure has gone so far, the current phase, and the remaining time."""
        end = self.to_end()
        rest = "" if end is None else f", end in {duration(end)}"
        said = f"{'':>9} {duration(self.elapsed)} so far{rest}"
        lines = [self._phase_line(), Text(said, "dim")]
        if len(self.values) > 1:
            ends = f"  {short(self.values[0])} -> {short(self.values[-1])}"
            room = self.console.width - 4 - LABEL - len(ends)
            label, curve = f"{self.columns[0][0]:>9} ", sparkline(self.values, room)
            lines.insert(0, Text.assemble((label, "dim"), (curve, "green"), ends))
        return Group("", *map(self._fitting, lines))

    def _phase_line(self) -> Text:
        """The bar comes last: it is what a narrow terminal can do without."""
        phase, now, total = self.phase, self.clock(), self.total_steps
        running = phase is not None and phase.kind in OF_A_STEP
        step = f"{min(self.step_number + running, total)}/{total}"
        if not total:
            step = "step 1" if running else ""
        line = Text.assemble((f"{step:>9} ", "dim"))
        if phase is None:
            return line
        line.append(f"{for_terminal(phase.kind)} {phase.said(now)}  ")
        if phase.total:
            filled = round(BAR * min(1.0, phase.done / phase.total))
            line.append("━" * filled, "green").append("─" * (BAR - filled), "dim")
        return line

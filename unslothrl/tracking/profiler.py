"""`--profile`: what the processes of a run do in a part of a step, recorded by torch's profiler, as
files in the run's folder and a table.

A recording is of one call of a method, in the thread that runs it, and ends after `MOST_S` seconds:
a second has some 100,000 events, so its file stays at a few megabytes. torch is imported when one
begins, and nothing is done here in other steps.
"""

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from unslothrl.errors import RunError
from unslothrl.files import write_whole
from unslothrl.tracking.metrics import PARTS
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.terminal import Terminal

RECORDED = ("generation", "measuring", "update")
MOST_S = 2.0  # of a part of a step
MOST_OPERATORS = 20  # of a recording's table
FOLDER, TABLE = "profile", "table.txt"
WAIT_S = 120.0  # for the processes to answer

Recording = tuple[str, str, bytes]
"""Of a part of a step in a process: its name, as "actor-0-generation"; how long it is, and torch's
table of the operators with the most own time; Chrome's trace format, gzip."""


class Profiler:
    """Of one process and one step: records each part once."""

    def __init__(self, process: str):
        self.process = process
        self.left = set(RECORDED)
        self.ended: list[tuple[str, float, Any]] = []  # part, seconds, torch's profiler
        self.running: Any = None  # torch's
        self.part_name, self.began, self.ticks = "", 0.0, 0

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Around a call; parts inside it belong to it."""
        if name not in self.left or self.running is not None:
            yield
            return
        from torch.profiler import profile

        self.part_name, self.ticks, self.began = name, 0, time.perf_counter()
        self.running = profile()  # of the CPU, and of the GPU where there is one
        self.running.start()
        try:
            yield
        finally:
            self._stop()

    def tick(self) -> None:
        """After each step of an engine and each micro-batch: ends a recording that is long."""
        self.ticks += 1
        if self.running is not None and time.perf_counter() - self.began > MOST_S:
            self._stop()

    def _stop(self) -> None:
        """Ends the recording that runs; one without a step of the engine is tried again."""
        if self.running is None:
            return
        running, self.running = self.running, None
        seconds = time.perf_counter() - self.began
        running.stop()
        if self.ticks:
            self.left.discard(self.part_name)
            self.ended.append((self.part_name, seconds, running))

    def recordings(self) -> list[Recording]:
        """After the step: written in it, they would add seconds to it, in which an actor is silent
        and others draw what it has."""
        found = []
        for part_name, seconds, ended in self.ended:
            events = ended.key_averages()
            on_device = any(event.self_device_time_total for event in events)
            key = "self_cuda_time_total" if on_device else "self_cpu_time_total"
            table = events.table(sort_by=key, row_limit=MOST_OPERATORS)
            said = f"{seconds:.2f} s recorded\n{table}"
            with tempfile.NamedTemporaryFile(suffix=".json.gz") as file:
                ended.export_chrome_trace(file.name)
                found.append((f"{self.process}-{part_name}", said, file.read()))
        return found


class Profile:
    """Records `steps` steps of a run in a row. The first step after a start is left out where
    others follow: it loads and compiles."""

    def __init__(self, steps: int, cluster: Any, folder: RunFolder, view: Terminal):
        self.steps, self.cluster, self.view = steps, cluster, view
        self.folder = folder.path / FOLDER
        self.first, self.last = 0, 0  # that are recorded; 0: no step has begun
        self.timings: list[Mapping[str, Any]] = []
        self.tables: list[str] = []  # of all recordings

    def begin(self, step: int, total: int) -> None:
        if self.steps and not self.first:
            self.first = min(step + 1, total)
            self.last = min(self.first + self.steps - 1, total)
        if self.first <= step <= self.last:
            self._ask(lambda process: process.start_profile())

    def end(self, step: int, metrics: Mapping[str, Any]) -> None:
        if not self.first <= step <= self.last:
            return
        self.folder.mkdir(exist_ok=True)
        self.timings.append(metrics)
        found = self._ask(lambda process: process.end_profile())
        for name, said, trace in itertools.chain.from_iterable(found):
            self.tables.append(f"step_{step:06d}-{name}: {said}")
            write_whole(self.folder / f"step_{step:06d}-{name}.json.gz", trace)
        if step == self.last:
            lines, path = parts(self.first, step, self.timings), self.folder / TABLE
            write_whole(path, "\n".join([*lines, "", *self.tables]).encode())
            operators = f"{path} has the operators of each process"
            self.view.header([*lines, "", f"{operators}; traces open in ui.perfetto.dev"])

    def _ask(self, call: Callable[[Any], Any]) -> list[Any]:
        try:
            calls = [call(each) for each in (*self.cluster.learners, *self.cluster.actors)]
            return self.cluster.gather(calls, deadline_s=WAIT_S)
        except RunError as error:  # whoever needs that process will say so, and replace it
            self.view.note(f"a step is not profiled: {error}")
            return []


def parts(first: int, last: int, timings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = ("step", *PARTS, "overhead")
    mean = {name: sum(one[f"timing/{name}_s"] for one in timings) / len(timings) for name in names}
    which = f"step {first}" if first == last else f"steps {first} to {last}"
    lines = [f"profile of {which}: {mean['step']:.3f} s a step"]
    for name in names[1:]:
        lines.append(f"{name:<12} {mean[name]:>8.3f} s {mean[name] / mean['step']:>7.1%}")
    return lines

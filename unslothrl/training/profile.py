"""`--profile`: some steps recorded in every process, as files in the run's folder and a table."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unslothrl.cluster.base import Cluster, everyone
from unslothrl.cluster.handles import Call, GeneratorHandle
from unslothrl.errors import RunError
from unslothrl.files import write_whole
from unslothrl.tracking.profiler import Recording
from unslothrl.tracking.run_folder import RunFolder, step_name
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.timer import PARTS

FOLDER, TABLE = "profile", "table.txt"
WAIT_S = 120.0  # for the processes to answer
OVERHEAD = "overhead"


class Profile:
    """Records `steps` steps in a row. The first step after a start is left out where others
    follow: it loads and compiles. What goes wrong here costs a note, never the run."""

    def __init__(self, steps: int, cluster: Cluster, folder: RunFolder, view: Terminal):
        self.steps, self.cluster, self.folder, self.view = steps, cluster, folder, view
        self.first: int | None = None  # that is recorded; None: no step has begun
        self.last = 0
        self.timings: list[Mapping[str, Any]] = []
        self.recordings: list[Recording] = []  # of all recorded steps

    def begin(self, step: int, total: int) -> None:
        """Before a step of `total`."""
        if not self.steps:
            return
        if self.first is None:
            self.first = min(step + 1, total)
            self.last = min(self.first + self.steps - 1, total)
        if self.first <= step <= self.last:
            self._ask(lambda process: process.start_profile())

    def end(self, step: int, metrics: Mapping[str, Any]) -> None:
        """After it."""
        if self.first is None or not self.first <= step <= self.last:
            return
        self.timings.append(metrics)
        found = self._ask(lambda process: process.end_profile())
        recordings = [recording for of_process in found for recording in of_process]
        self.recordings += recordings
        try:
            self._write(step, recordings)
            if step == self.last:
                self._write_table()
        except OSError as error:
            self.view.note(f"the profile of step {step} is not written: {error}")

    def _ask(self, call: Callable[[GeneratorHandle], Call[Any]]) -> list[Any]:
        try:
            calls = [call(process) for process in everyone(self.cluster)]
            return self.cluster.gather(calls, deadline_s=WAIT_S)
        except RunError as error:  # whoever needs that process will say so, and replace it
            self.view.note(f"a step is not profiled: {error}")
            return []

    def _write(self, step: int, recordings: Sequence[Recording]) -> None:
        folder = self.folder.path / FOLDER
        folder.mkdir(exist_ok=True)
        for recording in recordings:
            name = f"{step_name(step)}-{recording.process}-{recording.part}.json.gz"
            if recording.trace:
                write_whole(folder / name, recording.trace)
            else:
                self.view.note(f"{name} was too large and is left out")

    def _write_table(self) -> None:
        path = self.folder.path / FOLDER / TABLE
        lines = parts(self.first or 0, self.last, self.timings)
        path.parent.mkdir(exist_ok=True)
        tables = [f"{r.process}, {r.part}: {r.seconds:.2f} s\n{r.table}" for r in self.recordings]
        write_whole(path, ("\n".join([*lines, "", *tables]) + "\n").encode())
        told = f"{path} has the operators; the traces beside it open in ui.perfetto.dev"
        self.view.header([*lines, told])


def parts(first: int, last: int, timings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the steps went, by the loop's parts."""
    which = f"step {first}" if first == last else f"steps {first} to {last}"
    mean = {
        name: sum(one[f"timing/{name}_s"] for one in timings) / len(timings)
        for name in ("step", *PARTS, OVERHEAD)
    }
    lines = [f"profile of {which}: {mean['step']:.3f} s a step"]
    for name in (*PARTS, OVERHEAD):
        lines.append(f"{name:<12} {mean[name]:>8.3f} s {mean[name] / mean['step']:>7.1%}")
    return lines

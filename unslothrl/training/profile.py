"""`--profile`: some steps recorded in every process, as files in the run's folder and a table."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unslothrl.cluster.base import Cluster, everyone
from unslothrl.cluster.handles import Call, GeneratorHandle
from unslothrl.errors import RunError
from unslothrl.files import write_whole
from unslothrl.tracking.metrics import PARTS
from unslothrl.tracking.run_folder import RunFolder, step_name
from unslothrl.tracking.terminal import Terminal

FOLDER, TABLE = "profile", "table.txt"
WAIT_S = 120.0  # for the processes to answer


class Profile:
    """Records `steps` steps in a row. The first step after a start is left out where others
    follow: it loads and compiles."""

    def __init__(self, steps: int, cluster: Cluster, folder: RunFolder, view: Terminal):
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
        for recording in itertools.chain.from_iterable(found):
            name = f"{step_name(step)}-{recording.process}-{recording.part}"
            self.tables.append(f"{name}: {recording.seconds:.2f} s recorded\n{recording.table}")
            if recording.trace:
                write_whole(self.folder / f"{name}.json.gz", recording.trace)
            else:
                self.view.note(f"{name}.json.gz was too large and is left out")
        if step == self.last:
            lines, path = parts(self.first, step, self.timings), self.folder / TABLE
            write_whole(path, "\n".join([*lines, "", *self.tables]).encode())
            operators = f"{path} has the operators of each process"
            self.view.header([*lines, "", f"{operators}; traces open in ui.perfetto.dev"])

    def _ask(self, call: Callable[[GeneratorHandle], Call[Any]]) -> list[Any]:
        try:
            calls = [call(process) for process in everyone(self.cluster)]
            return self.cluster.gather(calls, deadline_s=WAIT_S)
        except RunError as error:  # whoever needs that process will say so, and replace it
            self.view.note(f"a step is not profiled: {error}")
            return []


def parts(first: int, last: int, timings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the steps went: the parts of the loop."""
    names = ("step", *PARTS, "overhead")
    mean = {name: sum(one[f"timing/{name}_s"] for one in timings) / len(timings) for name in names}
    which = f"step {first}" if first == last else f"steps {first} to {last}"
    lines = [f"profile of {which}: {mean['step']:.3f} s a step"]
    for name in names[1:]:
        lines.append(f"{name:<12} {mean[name]:>8.3f} s {mean[name] / mean['step']:>7.1%}")
    return lines

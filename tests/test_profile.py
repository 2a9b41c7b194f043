"""`--profile`: real traces of real steps, and no effect on what is trained."""

import gzip
import json
from types import SimpleNamespace

import pytest

from unslothrl.errors import ProcessLost
from unslothrl.tracking.profiler import Profile, Profiler, parts
from unslothrl.tracking.run_folder import RunFolder

TIMING = {
    "timing/step_s": 4.0, "timing/generation_s": 3.0, "timing/reward_s": 0.0,
    "timing/update_s": 0.5, "timing/sync_s": 0.25, "timing/overhead_s": 0.25,
}  # fmt: skip
RECORDING = ("learner-0-update", "aten::mm  4  300 ms", gzip.compress(b'{"traceEvents": []}'))


class Processes:
    """One learner, which keeps what it is asked."""

    def __init__(self, error=None):
        self.learners, self.actors, self.error, self.asked = (self,), (), error, []

    def start_profile(self):
        self.asked.append("start")
        return lambda: None

    def end_profile(self):
        self.asked.append("end")
        return lambda: [RECORDING]

    def gather(self, calls, deadline_s):
        if self.error is not None:
            raise self.error
        return [call() for call in calls]


def profiled(tmp_path, steps, total, processes, first=1):
    """-> (notes, lines, files)"""
    folder, notes, lines = RunFolder.create(tmp_path, "x", ""), [], []
    view = SimpleNamespace(note=notes.append, header=lines.extend)
    profile = Profile(steps, processes, folder, view)
    for step in range(first, total + 1):
        profile.begin(step, total)
        profile.end(step, TIMING)
    return notes, lines, sorted(path.name for path in (folder.path / "profile").glob("*"))


@pytest.mark.parametrize(
    ("steps", "total", "first", "recorded"),
    [
        (2, 9, 1, [2, 3]),  # not the first, which loads and compiles
        (2, 9, 5, [6, 7]),  # of a run that is resumed
        (3, 2, 1, [2]),
        (1, 1, 1, [1]),
        (0, 9, 1, []),
    ],
)
def test_which_steps_are_recorded(tmp_path, steps, total, first, recorded):
    processes = Processes()
    notes, lines, written = profiled(tmp_path, steps, total, processes, first)
    assert processes.asked == ["start", "end"] * len(recorded)
    names = [f"step_{step:06d}-learner-0-update.json.gz" for step in recorded]
    assert written == [*names, "table.txt"] * bool(recorded)
    assert bool(lines) == bool(recorded) and notes == []


def test_the_parts_by_hand():
    lines = parts(2, 3, [TIMING, {**TIMING, "timing/step_s": 6.0}])
    assert lines[:2] == ["profile of steps 2 to 3: 5.000 s a step",
                         "generation      3.000 s   60.0%"]  # fmt: skip


def test_a_process_that_dies_costs_a_note(tmp_path):
    notes, *_ = profiled(tmp_path, 1, 3, Processes(ProcessLost("actor-0", "actor-0 has died")))
    assert notes == ["a step is not profiled: actor-0 has died"] * 2


@pytest.mark.real
def test_a_part_is_recorded_once():
    import torch

    def work(ticks):
        with one.part("update"):
            torch.ones(8) @ torch.ones(8)
            for _ in range(ticks):
                one.tick()

    one = Profiler("learner-0")
    work(0)  # nothing was done in it: the next call is recorded
    work(1)
    work(1)
    ((name, table, trace),) = one.recordings()
    assert name == "learner-0-update"
    assert "aten::dot" in table and "Self CPU" in table
    events = json.loads(gzip.decompress(trace))["traceEvents"]
    assert any(event["name"] == "aten::dot" for event in events)

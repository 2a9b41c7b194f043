"""Where a run goes on whose record was cut off, by a disk or a copy of its folder."""

import os

import numpy as np
import pytest
from safetensors.numpy import save

from unslothrl.checkpoints.store import RunState
from unslothrl.runs.resume import newest_recorded
from unslothrl.tracking.run_folder import RunFolder

LEARNER = save({"lora/a": np.zeros(1, np.float32)})


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """Of a run that was stopped after its third step."""
    folder = RunFolder.create(tmp_path, "x", "")
    for step in (1, 2, 3):
        folder.log({"step": step})
        folder.write_rows("rollouts", step, [{"task": "a"}, {"task": "b"}])
        folder.checkpoints.write(RunState(step=step), LEARNER)
    return folder


def cut(folder: RunFolder, name: str = "metrics.jsonl", size: int = 1) -> None:
    os.truncate(folder.path / name, (folder.path / name).stat().st_size - size)


def found(folder: RunFolder) -> tuple[int, list[str]]:
    notes: list[str] = []
    return newest_recorded(folder, notes).state.step, notes


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts/step_000003.jsonl"])
@pytest.mark.parametrize("size", [1, 9])
def test_a_step_whose_last_line_was_cut_off_is_done_again(folder, name, size):
    cut(folder, name, size)
    assert found(folder) == (2, [f"{name} is incomplete: step 3 is done again"])


def test_a_line_that_is_to_come_is_not_missed(folder):
    folder.checkpoints.write(RunState(step=3, unlogged={"reward": 1.0}), LEARNER)
    cut(folder)
    assert found(folder) == (3, [])


def test_many_steps_are_not_done_again_for_one_line(folder):
    folder.checkpoints.keep = 3
    folder.checkpoints.write(RunState(step=1), LEARNER)
    (folder.checkpoints.folder / "step_000002" / "SHA256SUMS").unlink()
    cut(folder)
    step, (damaged, note) = found(folder)
    assert step == 3 and "step_000002 is damaged" in damaged
    assert note == "metrics.jsonl is incomplete: what it had of step 3 is lost"


def test_before_the_first_step_no_line_is_needed(folder):
    folder.checkpoints.keep = 9
    folder.checkpoints.write(RunState(step=0), LEARNER)
    folder.checkpoints.delete_after(0)  # without an evaluation, killed after its first step
    assert found(folder) == (0, [])


def test_what_is_whole_or_deleted_is_not_missed(folder):
    assert found(folder) == (3, [])
    (folder.path / "metrics.jsonl").unlink()
    (folder.path / "rollouts" / "step_000003.jsonl").unlink()
    assert found(folder) == (3, [])

"""Where a run goes on whose record was cut off, by a disk or a copy of its folder."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from unslothrl.checkpoints.run_state import RunState
from unslothrl.runs.run import newest_recorded
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


def cut(path: Path, size: int = 1) -> None:
    os.truncate(path, path.stat().st_size - size)


def found(folder: RunFolder) -> tuple[int, list[str]]:
    notes: list[str] = []
    checkpoint = newest_recorded(folder, notes)
    assert checkpoint is not None
    return checkpoint.state.step, notes


def test_a_whole_record_goes_on_after_its_last_step(folder):
    assert found(folder) == (3, [])


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts/step_000003.jsonl"])
@pytest.mark.parametrize("size", [1, 9])
def test_a_step_whose_last_line_was_cut_off_is_done_again(folder, name, size):
    cut(folder.path / name, size)
    assert found(folder) == (2, [f"{name} is incomplete: step 3 is done again"])


def test_a_line_that_is_to_come_is_not_missed(folder):
    folder.checkpoints.write(RunState(step=3, unlogged={"reward": 1.0}), LEARNER)
    cut(folder.path / "metrics.jsonl")
    assert found(folder) == (3, [])


def test_many_steps_are_not_done_again_for_one_line(folder):
    folder.checkpoints.keep = 3
    folder.checkpoints.write(RunState(step=1), LEARNER)
    (folder.checkpoints.folder / "step_000002" / "SHA256SUMS").unlink()
    cut(folder.path / "metrics.jsonl")
    step, (damaged, note) = found(folder)
    assert step == 3 and "step_000002 is damaged" in damaged
    assert note == "metrics.jsonl is incomplete: what it had of step 3 is lost"


def test_before_the_first_step_no_line_is_needed(folder):
    folder.checkpoints.keep = 9
    folder.checkpoints.write(RunState(step=0), LEARNER)
    folder.checkpoints.delete_after(0)  # without an evaluation, killed after its first step
    assert found(folder) == (0, [])


def test_what_somebody_has_deleted_is_not_missed(folder):
    (folder.path / "metrics.jsonl").unlink()
    (folder.path / "rollouts" / "step_000003.jsonl").unlink()
    assert found(folder) == (3, [])

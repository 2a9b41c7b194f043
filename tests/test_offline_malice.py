"""Files that a stage reads and someone else wrote: no code in them runs, a line says why."""

import hashlib
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from adapters import write
from few_cases import few
from test_reward_model import head

from unslothrl.checkpoints.store import SUMS
from unslothrl.commands import cli
from unslothrl.offline.run import StageCheckpoints
from unslothrl.rewards.model import HEAD_FILE

pytestmark = pytest.mark.real


class Malice:
    """Once unpickled, it leaves a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def as_pickle(mark: Path, path: Path) -> None:
    path.write_bytes(pickle.dumps(Malice(mark)))


def as_torch_file(mark: Path, path: Path) -> None:
    torch.save({"python": Malice(mark), "state": torch.zeros(3)}, path)


def written(checkpoints: StageCheckpoints, step: int) -> Path:
    """A checkpoint with the names that the Trainer gives."""
    folder = checkpoints.writing / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_bytes(b"numbers")
    (folder / "training_args.bin").write_bytes(pickle.dumps({"lr": 1}))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return checkpoints.seal(folder, step, False)


def sum_again(folder: Path) -> None:
    (folder / SUMS).unlink()
    sums = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}
    (folder / SUMS).write_text("".join(f"{sum_}  {name}\n" for name, sum_ in sums.items()))


FILES = (
    "adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth",
    "trainer_state.json", "adapter_model.bin", "pytorch_model.bin", "optimizer.bin", "scaler.pt",
)  # fmt: skip


@pytest.mark.parametrize("form", [as_pickle, as_torch_file])
@pytest.mark.parametrize("name", few(FILES, among=["optimizer.pt", "adapter_model.bin"]))
def test_no_file_of_a_checkpoint_runs_code(name, form, tmp_path):
    """One with a checksum that does not fit is damaged, and so is a pickle with one that does."""
    checkpoints = StageCheckpoints(tmp_path, keep=2)
    earlier, folder = written(checkpoints, 1), written(checkpoints, 2)
    assert checkpoints.newest(pytest.fail).folder == folder
    assert not (folder / "training_args.bin").exists()  # a pickle that nothing reads
    form(tmp_path / "mark", folder / name)
    for is_summed in (False, True) if name.endswith(".bin") else (False,):
        if is_summed:
            sum_again(folder)
        notes = []
        assert checkpoints.newest(notes.append).folder == earlier
        (note,) = notes
        assert "step_000002 is damaged" in note and name in note and len(note) < 200
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_resume_loads_no_objects(name, tmp_path, capsys, here):
    """Though its checksum fits: the Trainer reads tensors and numbers alone."""
    words = "sft --run_name x --eval_problems 4 --batch_size 2 --checkpoint_every 1 --max_steps 2"
    assert cli.main(words.split()) == 0
    folder = StageCheckpoints(tmp_path / "runs/x", 2).of_step(2)
    as_torch_file(tmp_path / "mark", folder / name)
    sum_again(folder)
    assert cli.main(["sft", "--resume", "runs/x", "--max_steps", "3"]) == 1
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("form", few([as_pickle, as_torch_file]))
@pytest.mark.parametrize(
    "name", [HEAD_FILE, "adapter_model.safetensors", "adapter_config.json", "unslothrl.json"]
)
def test_no_file_of_an_adapter_runs_code(name, form, tmp_path, capsys, here):
    adapter = head(write(tmp_path / "judge"), weight=((1.0,) * 128,))
    form(tmp_path / "mark", adapter / name)
    for command in ("rm", "dpo", "sft"):
        if command == "rm" or name != HEAD_FILE:  # the others have no use for a head
            assert cli.main([command, "--adapter", str(adapter), "--max_steps", "1"]) == 2
            assert str(adapter) in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "mark").exists() and not (tmp_path / "runs").exists()

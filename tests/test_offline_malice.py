"""Files that a stage reads and someone else wrote: code in them never runs, and a line says why
they are refused, also where their checksums fit."""

import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from few_cases import few

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


FORMS = (as_pickle, as_torch_file)


def written(checkpoints: StageCheckpoints, step: int) -> Path:
    """A checkpoint as the Trainer has it."""
    folder = checkpoints.writing / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    weight = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.AdamW([weight])
    weight.grad = torch.ones(3)
    optimiser.step()
    safetensors.torch.save_file({"w": torch.ones(3)}, folder / "adapter_model.safetensors")
    torch.save(optimiser.state_dict(), folder / "optimizer.pt")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1.0)
    torch.save(schedule.state_dict(), folder / "scheduler.pt")
    numbers = {"python": (3, (1, 2), None), "numpy": np.random.get_state(), "cpu": torch.ones(3)}
    torch.save(numbers, folder / "rng_state.pth")
    (folder / "training_args.bin").write_bytes(pickle.dumps({"lr": 1}))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return checkpoints.seal(folder, step, False)


def sum_again(folder: Path) -> None:
    """Checksums that fit what is there."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"
        for path in sorted(folder.rglob("*"))
        if path.name != SUMS
    ]
    (folder / SUMS).write_text("".join(lines))


FILES = (
    "adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth",
    "trainer_state.json", "adapter_model.bin", "pytorch_model.bin", "optimizer.bin", "scaler.pt",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
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
        assert note.startswith("checkpoint step_000002 is damaged (") and name in note
        assert "\n" not in note and len(note) < 200
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_resume_loads_no_objects(name, tmp_path, monkeypatch, capsys):
    """Though its checksum fits: the Trainer reads tensors and numbers alone."""
    monkeypatch.chdir(tmp_path)
    small = "--eval_problems 4 --batch_size 2 --checkpoint_every 1"
    words = f"sft --run_name x {small}".split()
    assert cli.main([*words, "--max_steps", "2"]) == 0
    folder = StageCheckpoints(tmp_path / "runs/x", 2).of_step(2)
    as_torch_file(tmp_path / "mark", folder / name)
    sum_again(folder)
    assert cli.main(["sft", "--resume", "runs/x", "--max_steps", "3"]) == 1
    assert not (tmp_path / "mark").exists()


@pytest.fixture
def rm_adapter(tmp_path):
    """The folder of an adapter with a head, as far as it is looked at before a base is."""
    folder = tmp_path / "judge"
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    weights = {name.format("A"): torch.zeros(8, 128), name.format("B"): torch.zeros(128, 8)}
    safetensors.torch.save_file(weights, folder / "adapter_model.safetensors")
    head = {"weight": torch.ones(1, 128), "mean": torch.zeros(1), "std": torch.ones(1)}
    safetensors.torch.save_file(head, folder / HEAD_FILE)
    return folder


@pytest.mark.parametrize("form", few(FORMS))
@pytest.mark.parametrize(
    "name", [HEAD_FILE, "adapter_model.safetensors", "adapter_config.json", "unslothrl.json"]
)
def test_no_file_of_an_adapter_runs_code(name, form, rm_adapter, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = f"--adapter {rm_adapter} --max_lora_rank 8 --max_steps 1".split()
    form(tmp_path / "mark", rm_adapter / name)
    for command in ("rm", "dpo", "sft"):
        if command == "rm" or name != HEAD_FILE:  # the others have no use for a head
            assert cli.main([command, *words]) == 2
            (line,) = capsys.readouterr().err.splitlines()[-1:]
            assert str(rm_adapter) in line
    assert not (tmp_path / "mark").exists() and not (tmp_path / "runs").exists()

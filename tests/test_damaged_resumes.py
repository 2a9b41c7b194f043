"""Runs that go on from a folder that a disk, another program or somebody hostile has had a hand in:
what is a record alone is left out with a note, all else is refused before anything is changed."""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from stopped_run import MACHINE, Resumed, template

from unslothrl.checkpoints import learner_state
from unslothrl.checkpoints.store import Checkpoints, RunState, sum_of
from unslothrl.errors import UserError
from unslothrl.files import replace_folder
from unslothrl.runs.resolve import resolve
from unslothrl.runs.resume import EarlierRun
from unslothrl.runs.rl import restore
from unslothrl.tracking.rows import read_jsonl
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.training.saving import best

pytestmark = pytest.mark.real


@pytest.fixture
def run(tmp_path) -> Path:
    """Stopped after step 4, with checkpoints of steps 3 and 4."""
    return Path(shutil.copytree(template(), tmp_path / "run"))


def go_on(run: Path) -> EarlierRun:
    resolved = resolve({"resume": str(run)}, MACHINE)
    view = Terminal(console=Console(file=io.StringIO()), live=False)
    with contextlib.ExitStack() as at_end:
        earlier = EarlierRun.reopen(resolved.options, resolved.command, Checkpoints, at_end)
        if earlier.has_finished():
            earlier.show(view)
        else:
            restore(Resumed(), earlier, RunState(), "embedded")
            earlier.go_on(resolved.config, view)
    return earlier


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "is not JSON"), ("[1]", "is no object"), ('{"a": 1}', "has no step")],
)
def test_a_damaged_line_of_metrics_costs_that_line_alone(run, line, said):
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[3:], "x", '{"step": 9}', '{"half']))
    note, _ = go_on(run).notes
    assert f"metrics.jsonl, line 3 {said}" in note and ": left out of" in note
    assert [row["step"] for row in read_jsonl(path)] == [0, 1, 3, 4]
    assert RunFolder(run).read_metrics() == [json.loads(lines[i]) for i in (0, 1, 3, 4)]


def test_the_metrics_of_a_run_that_has_finished_may_be_damaged_too(run):
    before = (run / "metrics.jsonl").read_bytes() + b"x\n"
    (run / "metrics.jsonl").write_bytes(before)
    (run / "summary.json").write_text('{"status": "finished", "steps": 6, "seconds": 3.0}')
    assert go_on(run).has_finished()
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_folder_that_is_a_link_loses_nothing_that_is_the_users(tmp_path):
    """Such as the home folder."""
    home, checkpoints = tmp_path / "home", Checkpoints(tmp_path / "run")
    (home / ".ssh").mkdir(parents=True)
    (home / ".profile").touch()
    (home / "step_000009").mkdir()
    (tmp_path / "run").mkdir()
    checkpoints.folder.symlink_to(home)
    checkpoints.write(RunState(step=1), b"")
    assert {".ssh", ".profile"} <= set(os.listdir(home))
    (home / "step_000012").symlink_to(home / ".ssh")
    checkpoints.delete_after(9)
    assert (home / ".ssh").is_dir() and not os.path.lexists(home / "step_000012")


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_whatever_is_there_is_replaced(tmp_path, kind):
    (tmp_path / "new").mkdir()
    target, outside = tmp_path / "target", tmp_path / "outside"
    outside.mkdir()
    (tmp_path / ".target.replaced").mkdir()  # of a process that was killed
    (tmp_path / ".target.replaced" / "x").touch()
    make = {"file": target.touch, "folder": target.mkdir,
            "link": lambda: target.symlink_to(outside)}  # fmt: skip
    make[kind]()
    replace_folder(tmp_path / "new", target)
    assert sorted(os.listdir(tmp_path)) == ["outside", "target"] and not target.is_symlink()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("lora/a", torch.zeros(3), "a different LoRA"),
        ("lora/c", torch.zeros(3), "a different LoRA"),
        ("optimizer/lora/0/exp_avg", "x", "optimiser is not this run's"),
        ("optimizer/lora/99/exp_avg", 1, "optimiser is not this run's"),
        ("optimizer/lora/0/more", 1, "optimiser is not this run's"),
    ],
)
def test_another_learners_checkpoint_is_refused_and_changes_nothing(run, name, value, said):
    values = learner_state.unpack(Checkpoints(run).newest().learner())
    for folder in (run / "checkpoints").glob("step_*"):
        (folder / "learner.safetensors").write_bytes(learner_state.pack({**values, name: value}))
        files = ("learner.safetensors", "progress.json")
        sums = "".join(f"{sum_of(folder / file)}  {file}\n" for file in files)
        (folder / "SHA256SUMS").write_text(sums)
    kept = [run / "config.toml", run / "metrics.jsonl"]
    before = [path.read_bytes() for path in kept]
    with pytest.raises(UserError) as caught:
        go_on(run)
    message = str(caught.value)
    assert message.startswith(f"resume {run}: step_000004: ") and said in message
    assert "\n" not in message and [path.read_bytes() for path in kept] == before


def test_the_best_evaluation_of_a_run_that_went_on_with_other_sets():
    evals = [{"step": 0, "eval/a/pass@1": 0.9}, {"step": 2, "eval/b/pass@1": 0.4},
             {"step": 4, "eval/b/pass@1": 0.3}]  # fmt: skip
    assert best(evals) is evals[1]
    assert best([{"step": 0}, {"step": 2}])["step"] == 2

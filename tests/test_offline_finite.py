"""A stage whose loss or gradient overflows skips the step, and ends where it does not recover."""

import json

import pytest
import safetensors.torch
import torch
from few_cases import few

from unslothrl.errors import RunError
from unslothrl.offline import trainers, training
from unslothrl.offline.resolve import resolve
from unslothrl.offline.run import StageRun, run
from unslothrl.tracking.run_folder import RunFolder

pytestmark = pytest.mark.real


def trained(command, folder, rows, *more):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "model": "embedded", "dataset": str(folder / "rows.jsonl"), "output_dir": str(folder),
        "eval_dataset": (str(folder / "rows.jsonl"),), "run_name": "run", "batch_size": "2",
        "train_batch_size": "1", "dtype": "float32", "max_lora_rank": "4", "eval_every": "0",
        **dict(more),
    }  # fmt: skip
    return run(resolve(command, given))


def pairs(number, margin):
    return [
        {"prompt": f"{n}?", "chosen": f"{n}.", "rejected": "?", "margin": margin}
        for n in range(number)
    ]


@pytest.mark.parametrize("steps", few([1, 5]))
def test_a_loss_that_overflows_ends_a_stage(steps, tmp_path):
    """Each margin is finite in float32, their sum over a micro-batch is not."""
    rows = pairs(10, 3e38)
    options = ("max_steps", str(steps)), ("train_batch_size", "2"), ("save_every", "1")
    last = min(steps, 3)
    with pytest.raises(RunError, match=f"{last} steps? in a row had a loss .*: lower --lr") as told:
        trained("rm", tmp_path, rows, *options)
    assert "\n" not in str(told.value)
    found = RunFolder(tmp_path / "run")
    assert [row["train/skipped_updates"] for row in found.read_metrics()] == [1] * last
    assert not list(found.path.glob("adapters/v*/*.safetensors")) or steps > 1
    for path in found.path.glob("adapters/v*/adapter_model.safetensors"):
        assert all(t.isfinite().all() for t in safetensors.torch.load_file(path).values())
    summary = json.loads((found.path / "summary.json").read_text())
    assert summary["status"] == "failed"


@pytest.mark.parametrize("wrong", few(["gradient", "loss"]))
def test_a_step_that_is_not_finite_changes_nothing(wrong, tmp_path, monkeypatch):
    """The second of 3 steps: in one of its micro-batches the loss is infinite, or in both the
    gradient overflows to infinity."""
    states, batches = [], 0

    class Overflowing(trainers.SftTrainer):
        def compute_loss(self, *args, **kwargs):
            nonlocal batches
            loss = super().compute_loss(*args, **kwargs)
            if self.model.training:
                batches += 1
                if wrong == "loss" and batches == 3:
                    return loss + torch.inf
                if wrong == "gradient" and batches in {3, 4}:
                    return loss + (loss - loss.detach()) * 3e38 * 1e30
            return loss

        def _get_grad_norm(self, model, grad_norm=None):
            norm = super()._get_grad_norm(model, grad_norm)
            trained = [p for p in model.parameters() if p.requires_grad]
            states.append(torch.cat([p.detach().flatten().clone() for p in trained]))
            return norm

    monkeypatch.setitem(training.TRAINERS, resolve("sft", {}).options.__class__, Overflowing)
    rows = [{"prompt": f"{n}?", "completion": f"{n}."} for n in range(6)]
    assert trained("sft", tmp_path, rows, ("weight_decay", "0.1")) == 0
    before_first, before_second, before_third = states
    assert (before_first != before_second).any() and (before_second == before_third).all()
    found = RunFolder(tmp_path / "run").read_metrics()
    assert [row["train/skipped_updates"] for row in found] == [0, 1, 0]
    losses = [row["train/loss"] for row in found]
    assert losses[0] > 0 and losses[2] > 0 and (losses[1] is None) == (wrong == "loss")


def test_an_infinite_adapter_ends_a_stage():
    stage = object.__new__(StageRun)
    stage.model, stage.step = torch.nn.Linear(2, 2), 1
    stage._check_finite({}, 9)
    torch.nn.init.constant_(stage.model.bias, torch.inf)
    with pytest.raises(RunError, match="step 1: the adapter has values that are not finite"):
        stage._check_finite({}, 9)

"""What a stage trains and reports does not depend on the size of its micro-batches. A step whose
loss or gradient overflows is skipped, and a stage ends where it does not recover.

The runs have unequal micro-batches: 6 rows in a step of 8, 5 rows to evaluate on.
"""

import json
import shutil
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from few_cases import few

from unslothrl.config.offline_options import RmOptions, SftOptions
from unslothrl.errors import RunError
from unslothrl.offline import models, trainers, training
from unslothrl.offline.resolve import resolve
from unslothrl.offline.run import StageRun, run
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.weights import base_model

pytestmark = pytest.mark.real

LONG = "I would say that it is twelve, but I am not sure of it at all."
ANSWERS = [("3", LONG), ("No.", "Yes"), (LONG, "?"), ("1 2 3", "3 2 1"), ("a", LONG), (LONG, "b")]
TIMES = ("timing/", "memory/")


def trained(command, folder, train, held, **more):
    for name, rows in (("train.jsonl", train), ("held.jsonl", held)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "model": "embedded", "dataset": f"{folder}/train.jsonl", "dtype": "float32",
        "eval_dataset": (f"{folder}/held.jsonl",), "output_dir": str(folder), "run_name": "run",
        "max_lora_rank": "4", **more,
    }  # fmt: skip
    return run(resolve(command, given))


def steps_of(command, folder, micro, **more):
    """Runs one step. -> its rows of metrics.jsonl"""
    rows = [
        {"prompt": f"Is it {n}?", "chosen": better, "rejected": worse}
        for n, (better, worse) in enumerate(ANSWERS)
    ]
    given = {
        "run_name": f"{command}{micro}", "max_steps": "1", "batch_size": "8", "lr": "1e-2",
        "train_batch_size": str(micro), "lr_schedule": "constant", "warmup_steps": "0", **more,
    }  # fmt: skip
    assert trained(command, folder, rows, rows[1:], **given) == 0
    return RunFolder(folder / f"{command}{micro}").read_metrics()


def figures(row):
    return {n: v for n, v in row.items() if not n.startswith(TIMES) and isinstance(v, float)}


@pytest.mark.parametrize("command", few(["dpo", "sft", "rm"]))
def test_micro_batches_change_nothing(command, tmp_path):
    """The rounding of sums in another order, at a loss of about 7, is below 1e-5."""
    few, many = steps_of(command, tmp_path, 4), steps_of(command, tmp_path, 1)
    assert [row["step"] for row in few] == [0, 1]
    for ours, theirs in zip(few, many, strict=True):
        assert figures(ours) and figures(ours) == pytest.approx(figures(theirs), rel=2e-4, abs=2e-5)
    assert few[1]["train/grad_norm"] > 0.01
    if command == "dpo":  # the policy still is the reference: all pairs are ties
        assert few[0]["eval/held/accuracy"] == few[1]["train/accuracy"] == 0.5
        assert few[0]["eval/held/margin"] == 0


LINEAR = {"episodes": "9", "lr_schedule": "linear", "eval_every": "0"}


@pytest.mark.parametrize("command", few(["sft", "dpo", "rm"]))
def test_the_learning_rate_is_that_of_a_run_of_rl(command, tmp_path):
    given = {**LINEAR, "max_steps": "4", "warmup_steps": "2", "lr_floor": "0.5"}
    rows = steps_of(command, tmp_path, 4, **given)
    assert [row["train/lr"] for row in rows] == pytest.approx([5e-3, 1e-2, 1e-2, 7.5e-3])


@pytest.mark.slow
def test_a_run_that_becomes_longer_has_the_learning_rates_of_its_new_length(tmp_path):
    steps_of("sft", tmp_path, 4, **LINEAR, max_steps="2")
    assert run(resolve("sft", {"resume": str(tmp_path / "sft4"), "max_steps": "4"})) == 0
    rows = RunFolder(tmp_path / "sft4").read_metrics()
    assert [row["train/lr"] for row in rows] == pytest.approx([1e-2, 5e-3, 5e-3, 2.5e-3])


@pytest.mark.parametrize("pad", ["<|im_end|>", "<|pad|>"])
def test_figures_of_a_reward_model_are_means_over_pairs(pad, tmp_path):
    """Those of before the first step and after it, against scores of one answer at a time, at its
    last token also where a base pads with what ends a turn. Saved, a LoRA is rounded."""
    base = base_model.prepare("embedded")
    shutil.copytree(base, tmp_path / "base")
    settings = tmp_path / "base/tokenizer_config.json"
    settings.write_text(settings.read_text().replace("<|pad|>", pad))
    found = steps_of("rm", tmp_path, 4, seed="5", model=str(tmp_path / "base"))
    tokenizer = base_model.load_tokenizer(base)
    options = RmOptions(dtype="float32", max_lora_rank=4, lora_alpha=16, lora_dropout=0.0, seed=5)
    asked = [(f"Is it {n}?", *both) for n, both in enumerate(ANSWERS)][1:]

    def score(model, asked, said):
        text = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{said}<|im_end|>"
        return models.scores_of(model, [tokenizer(text, add_special_tokens=False)["input_ids"]])[0]

    for row, adapter, rounded in ((found[0], None, 1e-5), (found[1], "v000001", 5e-3)):
        start = adapter and tmp_path / "rm4/adapters" / adapter
        model = models.reward_model(base, options, start)
        each = [score(model, q, better) - score(model, q, worse) for q, better, worse in asked]
        gaps, loss = torch.stack(each), row["eval/held/loss"]
        assert loss == pytest.approx(-F.logsigmoid(gaps).mean().item(), abs=rounded)
        assert row["eval/held/margin"] == pytest.approx(gaps.mean().item(), abs=rounded)
        assert row["eval/held/accuracy"] == pytest.approx((gaps > 0).float().mean().item())


def test_weights_are_what_a_figure_is_a_mean_of():
    labels = torch.tensor([[5, -100, 7, 8], [-100, -100, -100, 4]])  # the first is not predicted
    assert trainers.SftTrainer.weights_of(None, {"labels": labels}) == (3, {})
    mask = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]])
    pairs = trainers.PairTrainer
    usual, own = pairs.weights_of(pairs, {"input_ids": mask, "completion_mask": mask})
    assert usual == 2
    of_logits = {"logits/chosen": 4, "logits/rejected": 3}
    assert own == {"entropy": 7, "mean_token_accuracy": 4, **of_logits}
    assert pairs.weights_of(pairs, {"input_ids": mask}) == (2, {})
    newest = SimpleNamespace(mode="eval", figures={"eval": {"accuracy": [(0.25, 4)]}})
    better, worse = torch.tensor([1.0, 2, 3, 4]), torch.tensor([0.0, 2, 3, 5])
    trainers.PairTrainer.count_ties(newest, "accuracy", better, worse)
    assert newest.figures["eval"]["accuracy"] == [(0.5, 4)]
    trainers.PairTrainer.count_ties(newest, "accuracy", torch.ones(1), torch.zeros(1))
    assert newest.figures["eval"]["accuracy"] == [(1.0, 4)]
    assert trainers.mean([(1.0, 4), (0.0, 1)]) == 0.8


TWO = {"position_ids": [[0, 1, 0], [0, 1, 2]], "attention_mask": [[1, 1, 0], [1, 1, 1]]}


@pytest.mark.parametrize(
    ("inputs", "is_padded", "rows"),
    [
        ({"input_ids": [[5, 6], [7, 8], [9, 1]]}, False, 3),
        ({"position_ids": [[0, 1, 2, 0, 0, 1]]}, False, 3),
        ({"position_ids": [[0, 1, 0, 1, 0, 0]]}, True, 2),
        (TWO, True, 2),
    ],
)
def test_rows_of_a_micro_batch(inputs, is_padded, rows):
    tensors = {name: torch.tensor(value) for name, value in inputs.items()}
    trainer = SimpleNamespace(args=SimpleNamespace(pad_to_multiple_of=8 if is_padded else None))
    assert trainers.SftTrainer.rows_in(trainer, tensors) == rows


@pytest.mark.parametrize("steps", few([1, 5]))
def test_a_loss_that_overflows_ends_a_stage(steps, tmp_path):
    """Each margin is finite in float32, their sum over a micro-batch is not."""
    rows = [{"prompt": f"{n}?", "chosen": "a", "rejected": "?", "margin": 3e38} for n in range(10)]
    sizes = {"batch_size": "2", "train_batch_size": "2", "eval_every": "0", "save_every": "1"}
    last = min(steps, 3)
    with pytest.raises(RunError, match=f"{last} steps? in a row had a loss .*: lower --lr"):
        trained("rm", tmp_path, rows, rows, max_steps=str(steps), **sizes)
    found = RunFolder(tmp_path / "run")
    assert [row["train/skipped_updates"] for row in found.read_metrics()] == [1] * last
    assert not list(found.path.glob("adapters/v*/*.safetensors")) or steps > 1
    for path in found.path.glob("adapters/v*/adapter_model.safetensors"):
        assert all(t.isfinite().all() for t in safetensors.torch.load_file(path).values())
    assert json.loads((found.path / "summary.json").read_text())["status"] == "failed"


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

    monkeypatch.setitem(training.TRAINERS, SftOptions, Overflowing)
    rows = [{"prompt": f"{n}?", "completion": f"{n}."} for n in range(6)]
    sizes = {"batch_size": "2", "train_batch_size": "1", "eval_every": "0"}
    assert trained("sft", tmp_path, rows, rows, weight_decay="0.1", **sizes) == 0
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

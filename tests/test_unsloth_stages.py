"""`unslothrl sft`, `dpo` and `rm` with Unsloth against a loss written by hand on the same rows.

Unsloth's kernels run under Triton's interpreter, in a process of its own; the loss by hand goes
through PEFT. `make unsloth-test` runs this.
"""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from conftest import run_script
from test_offline_gradients import PROMPT, ROWS, log_probs
from test_unsloth import LAYERS, TOLERANCE, small_base
from unsloth_stages_on_cpu import CENTRE

from unslothrl.backends import peft
from unslothrl.config.offline_options import RmOptions, SftOptions
from unslothrl.offline import models
from unslothrl.rewards.model import HEAD_FILE, MEAN, STD, WEIGHT
from unslothrl.weights import base_model
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE, write_adapter

BETA = 0.3
SHORT = ROWS[1:3]  # each token takes Triton's interpreter 0.1 s

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def base(folder) -> Path:
    return small_base("plain", folder)


@pytest.fixture(scope="module")
def starts(base, folder) -> dict[str, Path]:
    """Adapters to start from: of a policy, and of a reward model with its head."""
    backend = peft.load(
        base, dtype=torch.bfloat16, rank=8, alpha=16, dropout=0.0, seed=0, packs=False
    )
    generator = torch.Generator().manual_seed(7)
    found = {}
    with torch.no_grad():
        for _, parameter in sorted(backend.parameters().items()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    for number, name in enumerate(("policy", "rm")):
        found[name] = write_adapter(backend.publish(number), folder / name)
    head = torch.randn(1, backend.model.config.hidden_size, generator=generator)
    tensors = {WEIGHT: head, MEAN: torch.zeros(1), STD: torch.ones(1)}
    safetensors.torch.save_file(tensors, found["rm"] / HEAD_FILE)
    return found


@pytest.fixture(scope="module")
def steps(base, starts, folder):
    """name -> what unsloth_stages_on_cpu.py has kept of a step."""
    files = {"rows.jsonl": SHORT, "pairs.jsonl": SHORT[:1]}
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (base, *(folder / name for name in files), starts["policy"], starts["rm"], folder)
    run_script("unsloth_stages_on_cpu.py", *given, cwd=folder, TRITON_INTERPRET="1")
    return {path.stem: torch.load(path, weights_only=True) for path in folder.glob("*.pt")}


OF_LORA = {"dtype": "bfloat16", "max_lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.0}


@pytest.fixture(scope="module")
def policy(base, starts):
    return models.policy(base, SftOptions(**OF_LORA), starts["policy"])


@pytest.fixture(scope="module")
def tokens(base):
    tokenizer = base_model.load_tokenizer(base)
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def pairs(tokens):
    """[(prompt, chosen, rejected)] as ids."""
    both = ("chosen", "rejected")
    return [
        (tokens(PROMPT.format(row["prompt"])), *(tokens(row[k] + "<|im_end|>") for k in both))
        for row in SHORT
    ]


def compare(model, loss, step):
    """The loss by hand and its gradients with those of a step; all that is trained is compared."""
    model.zero_grad()
    loss.backward()
    mine = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    theirs = {name: g for name, g in step["gradients"].items() if ".ref." not in name}
    assert mine.keys() == theirs.keys() and len(mine) >= LAYERS * 7 * 2
    assert step["dtypes"] == {"torch.float32"}
    assert sum(step["losses"]) == pytest.approx(loss.item(), rel=TOLERANCE)
    norms = {name: ((theirs[name] - g).norm() / g.norm()).item() for name, g in mine.items()}
    assert max(norms.values()) < TOLERANCE, max(norms.items(), key=lambda each: each[1])


def rows_of(step, key):
    """[(ids, values of `key`)] of the rows of all batches, without their padding."""
    found = {}
    for batch in step["batches"]:
        columns = (batch[name] for name in ("input_ids", key, "attention_mask"))
        for ids, values, mask in zip(*columns, strict=True):
            found[tuple(ids[mask.bool()].tolist())] = tuple(values[mask.bool()].tolist())
    return found


def test_sft(steps, policy, pairs):
    step = steps["sft"]
    rows = [(prompt, reply) for prompt, reply, _ in pairs]
    assert rows_of(step, "labels") == {tuple(p + r): (*[-100] * len(p), *r) for p, r in rows}
    every = torch.cat([log_probs(policy, p, r) for p, r in rows])
    compare(policy, -every.mean(), step)


def test_rows_of_a_pack_do_not_see_each_other(steps, policy, pairs):
    (batch,) = steps["packed"]["batches"]
    starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
    found = [ids.tolist() for ids in batch["input_ids"][0].tensor_split(starts[1:])]
    rows = [(prompt, reply) for prompt, reply, _ in pairs if prompt + reply in found]
    assert len(rows) == len(found) >= 2
    every = torch.cat([log_probs(policy, p, r) for p, r in rows])
    compare(policy, -every.mean(), steps["packed"])


@pytest.mark.parametrize("name", ["dpo", "cached"])
def test_dpo(name, steps, policy, pairs):
    step, pairs = steps[name], pairs[:1]
    expected = {tuple(prompt + reply) for prompt, *both in pairs for reply in both}
    assert set(rows_of(step, "completion_mask")) == expected
    losses = []
    for prompt, *both in pairs:
        better, worse = (log_probs(policy, prompt, each).sum() for each in both)
        margin = (better - better.detach()) - (worse - worse.detach())
        losses.append(-F.logsigmoid(BETA * margin))
    compare(policy, torch.stack(losses).mean(), step)


def test_rm(steps, base, starts, pairs):
    step, pairs = steps["rm"], pairs[:1]
    rows = {tuple(prompt + reply) for prompt, *both in pairs for reply in both}
    assert set(rows_of(step, "input_ids")) == rows
    model = models.reward_model(base, RmOptions(**OF_LORA), starts["rm"])
    body, head = model.get_base_model().model, model.get_base_model().score
    weight = head.modules_to_save["default"].weight
    losses = []
    for prompt, *both in pairs:
        ids = (torch.tensor([prompt + reply]) for reply in both)
        states = (body(input_ids=each).last_hidden_state[0, -1].float() for each in ids)
        better, worse = (F.linear(state, weight)[0] for state in states)
        losses.append(-F.logsigmoid(better - worse) + CENTRE * (better + worse) ** 2)
    compare(model, torch.stack(losses).mean(), step)


@pytest.mark.parametrize(
    ("name", "forwards", "backwards"),
    [("sft", 2, 2), ("packed", 1, 1), ("dpo", 2, 1), ("cached", 3, 1), ("rm", 1, 1)],
)
def test_unsloths_fused_functions_ran(name, forwards, backwards, steps):
    counts = steps[name]["counts"]
    for function in ("LoRA_QKV", "LoRA_W", "LoRA_MLP"):
        assert counts[f"{function}.backward"] == LAYERS * backwards
        assert counts[f"{function}.forward"] >= LAYERS * forwards


@pytest.mark.parametrize("name", ["sft", "dpo", "rm"])
def test_adapters_are_of_the_same_form(name, steps, folder, starts):
    (saved,) = (folder / "runs" / name / "adapters").iterdir()
    started = starts["rm" if name == "rm" else "policy"]
    shapes = [
        {key: value.shape for key, value in safetensors.torch.load_file(path).items()}
        for path in (saved / WEIGHTS_FILE, started / WEIGHTS_FILE)
    ]
    assert shapes[0] == shapes[1]
    configs = [json.loads((path / CONFIG_FILE).read_text()) for path in (saved, started)]
    for key in ("peft_type", "r", "lora_alpha", "target_modules", "task_type", "modules_to_save"):
        assert configs[0][key] == configs[1][key]
    assert (saved / HEAD_FILE).exists() == (name == "rm")

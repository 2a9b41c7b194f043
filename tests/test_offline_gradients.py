"""What a run of `unslothrl sft`, `dpo` or `rm` trains on, against losses written out here.

Each test runs the command with its own data for one step in float32, captures what the trainer gave
the model and the gradient before the optimiser, and computes both again from the rows.
"""

import json

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from environment_files import rows_in
from few_cases import few
from unsloth_stages_on_cpu import capture

from unslothrl import embedded
from unslothrl.backends import check_patches, lora
from unslothrl.commands import cli
from unslothrl.config.offline_options import DpoOptions, RmOptions, SftOptions
from unslothrl.errors import RunError
from unslothrl.offline import models, training
from unslothrl.offline.resolve import resolve
from unslothrl.offline.run import run
from unslothrl.rewards.model import HEAD_FILE
from unslothrl.weights import base_model
from unslothrl.weights.adapter import write_adapter

pytestmark = pytest.mark.real

# Of the gradient's norm: float32 rounds after each matrix product, whose sums every processor adds
# in an order of its own; 28 layers of 7 projections and 2 products of the attention, and back.
TOLERANCE = torch.finfo(torch.float32).eps * (2 * 28 * (7 + 2)) ** 0.5  # 2.7e-6
ROWS = [
    {"prompt": "What is 1 + 2?", "chosen": "It is 3.", "rejected": "It is 12, I would say."},
    {"prompt": "Say hello.", "chosen": "Hello to you!", "rejected": "No."},
    {"prompt": "Why?", "chosen": "Because.", "rejected": "Why not?"},
    {"prompt": "Count to three, please.", "chosen": "1 2 3", "rejected": "3 2 1 0"},
]
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def captured(monkeypatch):
    """-> run(command, *options): (the batches of the step, its gradients by name)."""
    kept = {"batches": [], "losses": [], "gradients": {}}
    monkeypatch.setattr(training, "TRAINERS", dict(training.TRAINERS))
    capture(kept)

    def one_step(command, folder, *, rows=ROWS, **flags):
        kept["batches"].clear()
        data = rows_in(folder, rows)
        given = {
            "model": "embedded", "dataset": data, "eval_dataset": (data,),
            "output_dir": str(folder / "runs"), "run_name": command, "max_steps": "1",
            "batch_size": "4", "dtype": "float32", "max_grad_norm": "0", "eval_every": "0",
            "max_lora_rank": "8", **flags,
        }  # fmt: skip
        assert run(resolve(command, given)) == 0
        return kept["batches"], kept["gradients"]

    return one_step


def by_hand(model, loss, gradients):
    """Compares the gradient of `loss` with what the trainer had. Everything trained is compared."""
    model.zero_grad()
    loss.backward()
    mine = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert mine.keys() == gradients.keys() and len(mine) >= 4 * 7 * 2
    norm = torch.sqrt(sum((g**2).sum() for g in mine.values()))
    gap = torch.sqrt(sum(((mine[n] - gradients[n]) ** 2).sum() for n in mine))
    assert norm > 1e-3
    assert gap / norm < TOLERANCE


EXACT = {"dtype": "float32", "max_lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.0}


@pytest.fixture
def base():
    return base_model.prepare("embedded")


@pytest.fixture
def tokens(tokenizer):
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def log_probs(model, prompt, reply):
    """[reply's tokens]: of each after what stands before it, alone in its batch."""
    ids = torch.tensor([prompt + reply])
    logits = model(input_ids=ids).logits[0].float()
    return torch.stack(
        [F.log_softmax(logits[at - 1], -1)[ids[0, at]] for at in range(len(prompt), ids.shape[1])]
    )


@pytest.mark.parametrize("packing", [False, True])
def test_sft(captured, tmp_path, base, tokens, packing):
    micro, batch_size = ("1", "1") if packing else ("2", "4")
    sizes = {"train_batch_size": micro, "batch_size": batch_size, "max_length": "120"}
    batches, gradients = captured("sft", tmp_path, packing=packing, **sizes)
    rows = [
        (tokens(PROMPT.format(row["prompt"])), tokens(row["chosen"] + "<|im_end|>")) for row in ROWS
    ]
    found = [row for b in batches for row in zip(b["input_ids"], b["labels"], strict=True)]
    if packing:
        ((ids, labels),) = found
        starts = (batches[0]["position_ids"][0] == 0).nonzero().flatten().tolist()[1:]
        found = list(zip(ids.tensor_split(starts), labels.tensor_split(starts), strict=True))
        rows = [(p, r) for p, r in rows if p + r in [ids.tolist() for ids, _ in found]]
        assert len(rows) == len(found) >= 2
    trained = {tuple(i[i != 0].tolist()): tuple(labels[i != 0].tolist()) for i, labels in found}
    # the first token of a row in a pack follows another row: it is no label
    assert trained == {tuple(p + r): (*[-100] * len(p), *r) for p, r in rows}
    model = models.policy(base, SftOptions(**EXACT), None)
    every = torch.cat([log_probs(model, p, r) for p, r in rows])
    by_hand(model, -every.sum() / len(every), gradients)


@pytest.mark.parametrize(
    ("loss_type", "reference"),
    few([("sigmoid", "cached"), ("sigmoid", "adapter"), ("ipo", "cached")]),
)
def test_dpo_after_another_stage(captured, tmp_path, base, tokens, loss_type, reference):
    """It learns what the assistant says, also in an answer of several turns; `ipo` divides by the
    number of tokens that are learnt."""
    turns = [("assistant", "It is 3."), ("user", "Are you sure?"), ("assistant", "Yes, it is.")]
    several = [{"role": role, "content": said} for role, said in turns]
    rows = [{**ROWS[0], "chosen": several}, *ROWS[1:3], {**ROWS[3], "rejected": several}]
    start = embedded.TURNS  # an adapter that is not the base
    rank = json.loads((start / "adapter_config.json").read_text())["r"]
    batches, gradients = captured(
        "dpo", tmp_path, rows=rows, adapter=str(start), beta="0.3", loss_type=loss_type,
        reference=reference, train_batch_size="2", max_lora_rank=str(rank),
    )  # fmt: skip

    def answer(said):
        """[(ids, is learnt)]"""
        if isinstance(said, str):
            return [(tokens(said + "<|im_end|>"), True)]
        first, last = (tokens(turns[n][1] + "<|im_end|>") for n in (0, 2))
        return [(first, True), (tokens("\n" + PROMPT.format("Are you sure?")), False), (last, True)]

    expected, losses, is_ipo = {}, [], loss_type == "ipo"
    model = models.policy(base, DpoOptions(**EXACT), start)
    for row in rows:
        prompt, ratios = tokens(PROMPT.format(row["prompt"])), []
        for which in ("chosen", "rejected"):
            parts = answer(row[which])
            ids = [token for part, _ in parts for token in part]
            learnt = [is_learnt for part, is_learnt in parts for _ in part]
            expected[tuple(prompt + ids)] = (*[0] * len(prompt), *map(int, learnt))
            found = log_probs(model, prompt, ids)[torch.tensor(learnt)].sum()
            ratio = found - found.detach()  # the policy still is the reference
            ratios.append(ratio / (sum(learnt) if is_ipo else 1))
        gap = ratios[0] - ratios[1]
        losses.append((gap - 1 / (2 * 0.3)) ** 2 if is_ipo else -F.logsigmoid(0.3 * gap))
    trained = {
        tuple(ids[there.bool()].tolist()): tuple(mask[there.bool()].tolist())
        for batch in batches
        for ids, there, mask in zip(
            batch["input_ids"], batch["attention_mask"], batch["completion_mask"], strict=True
        )
    }
    assert trained == expected
    trained_only = {n: g for n, g in gradients.items() if ".default." in n}
    by_hand(model, torch.stack(losses).mean(), trained_only)


def test_rm(captured, tmp_path, base, tokens):
    batches, gradients = captured("rm", tmp_path, train_batch_size="2")
    replies = [(row["prompt"], [row["chosen"], row["rejected"]]) for row in ROWS]
    pairs = [[tokens(PROMPT.format(q) + r + "<|im_end|>") for r in both] for q, both in replies]
    trained = {
        tuple(ids[mask.bool()].tolist())
        for batch in batches
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    }
    assert trained == {tuple(each) for both in pairs for each in both}
    model = models.reward_model(base, RmOptions(**EXACT), None)
    body, head = model.get_base_model().model, model.get_base_model().score

    def score(ids):
        last = body(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].float()
        return F.linear(last, head.modules_to_save["default"].weight)[0]

    losses = [-F.logsigmoid(score(better) - score(worse)) for better, worse in pairs]
    by_hand(model, torch.stack(losses).mean(), gradients)
    # the head is saved beside a plain adapter
    (folder,) = (tmp_path / "runs" / "rm" / "adapters").iterdir()
    saved = safetensors.torch.load_file(folder / HEAD_FILE)["weight"]
    assert saved.shape == (1, 128) and saved.dtype == torch.float32
    names = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    assert names and all(".lora_" in name for name in names)
    assert json.loads((folder / "adapter_config.json").read_text())["modules_to_save"] is None


@pytest.mark.slow
def test_a_reward_model_is_exported_with_its_head_and_scores_as_its_card_says(
    captured, tmp_path, monkeypatch, capsys
):
    captured("rm", tmp_path)
    run_folder, target = tmp_path / "runs" / "rm", tmp_path / "judge"
    words = ["export", "--adapter", str(run_folder), "--output", str(target), "--to"]
    assert cli.main([*words, "merged"]) == 2 and "is a reward model" in capsys.readouterr().err
    assert cli.main([*words, "adapter"]) == 0
    assert f"train --reward rm:{target}\n" in capsys.readouterr().out
    (folder,) = (run_folder / "adapters").iterdir()
    assert (target / HEAD_FILE).read_bytes() == (folder / HEAD_FILE).read_bytes()
    code = (target / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(target)
    exact = (  # as it stands it computes in bfloat16
        '/base", dtype="float32")\nfrom unslothrl.backends import peft\nimport torch\n'
        "peft.keep_4bit_weights_packed(base, torch.float32)\n"
    )
    assert code.count('/base")\n') == 1
    names = {}
    exec(code.replace('/base")\n', exact), names)
    turns = [(each["role"], each["content"]) for each in names["turns"]]
    assert names["text"] == "".join(f"<|im_start|>{r}\n{s}<|im_end|>\n" for r, s in turns)[:-1]
    model = models.reward_model(base_model.prepare("embedded"), RmOptions(**EXACT), folder)
    (score,) = models.scores_of(model, names["ids"]["input_ids"].tolist())
    assert names["score"].item() == pytest.approx(score.item(), abs=1e-4)


def test_a_model_without_unsloths_patches_is_refused(base):
    model = models.policy(base, SftOptions(**EXACT), None)
    with pytest.raises(RunError, match=r"Unsloth's patches are not in force.*--backend peft"):
        check_patches(model)


@pytest.mark.parametrize(
    ("alpha", "use_rslora", "scaling"), [(4.5, False, 4.5 / 8), (4, True, 4 / 8**0.5)]
)
def test_a_reward_model_goes_on_at_the_scale_of_its_adapter(
    base, tmp_path, alpha, use_rslora, scaling
):
    saved = write_adapter(
        lora.pack_adapter(models.policy(base, SftOptions(**EXACT), None), 1, "embedded"), tmp_path
    )
    path = saved / "adapter_config.json"
    settings = json.loads(path.read_text()) | {"lora_alpha": alpha, "use_rslora": use_rslora}
    path.write_text(json.dumps(settings))
    model = models.reward_model(base, RmOptions(**EXACT), saved)
    assert {m.scaling["default"] for m in model.modules() if hasattr(m, "lora_A")} == {scaling}
    again = write_adapter(lora.pack_adapter(model, 2, "embedded"), tmp_path)
    kept = json.loads((again / "adapter_config.json").read_text())
    assert (kept["lora_alpha"], kept["use_rslora"]) == (alpha, use_rslora)

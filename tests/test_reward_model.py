"""A reward model as a reward: `--reward rm:runs/NAME`."""

import json

import numpy as np
import pytest
import safetensors.numpy
from fakes import completion, task
from few_cases import few

from unslothrl import rewards
from unslothrl.config.offline_options import RmOptions
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.records import Group
from unslothrl.rewards import model
from unslothrl.rewards.reward import IN_LEARNER
from unslothrl.training.group_source import RewardModel


def head(folder, weight=((1.0, 2.0),), mean=(0.5,), std=(2.0,), dtype=np.float32):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"weight": weight, "mean": mean, "std": std}
    tensors = {name: np.asarray(value, dtype) for name, value in arrays.items()}
    safetensors.numpy.save_file(tensors, folder / model.HEAD_FILE)
    return folder


def test_the_newest_adapter_of_a_run_is_meant(tmp_path):
    for name in ("v000002", "v000010", "v9.old"):
        head(tmp_path / "run" / "adapters" / name)
    newest = tmp_path / "run" / "adapters" / "v000010"
    (chosen,) = rewards.choose((f"rm:{tmp_path}/run=0.5",))
    assert (chosen.name, chosen.weight, chosen.runs) == ("rm", 0.5, IN_LEARNER)
    assert chosen.function == str(newest)
    assert model.in_full(f"rm:{tmp_path}/run=0.5") == f"rm:{newest}=0.5"
    assert model.in_full(f"rm:{newest}") == f"rm:{newest}"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "no such folder: set --reward rm:runs/NAME"),
        (lambda folder: folder.mkdir(), "it has no score_head.safetensors, so it is no reward"),
        (lambda folder: (folder / "adapters").mkdir(parents=True), "this run has saved no adapter"),
        (lambda folder: head(folder, dtype=np.float16), "damaged"),
        (lambda folder: head(folder, weight=((1.0,), (2.0,))), "damaged"),
        (lambda folder: (head(folder) / model.HEAD_FILE).write_bytes(b"\1" * 8), "damaged"),
        (lambda folder: head(folder, weight=((1.0, np.nan),)), "damaged"),
        (lambda folder: head(folder, std=(0.0,)), "damaged"),
    ],
)
def test_what_is_no_reward_model_is_refused(tmp_path, make, said):
    make(tmp_path / "it")
    with pytest.raises(UserError, match=said) as error:
        rewards.choose((f"rm:{tmp_path}/it",))
    assert "\n" not in str(error.value)


def group(*lengths, lost=()):
    completions = tuple(
        completion(length, finish_reason="lost" if i in lost else "stop")
        for i, length in enumerate(lengths)
    )
    ones, zeros = (1.0,) * len(lengths), (0.0,) * len(lengths)
    return Group(task("t/0", (7, 8)), completions, {"accuracy": ones, "rm": zeros}, ones)


def test_every_candidate_gets_its_score_times_the_weight():
    asked = []

    def judge(samples):
        asked.extend((sample.prompt_ids, tuple(sample.completion_ids)) for sample in samples)
        return [10.0 * len(asked), -1.0, 2.5]

    found = RewardModel("rm", 0.5, False, judge).judged([group(1, 2), group(1)])
    assert asked == [((7, 8), (10,)), ((7, 8), (10, 11)), ((7, 8), (10,))]
    assert [each.rewards["rm"] for each in found] == [(15.0, -0.5), (1.25,)]
    assert found[0].rewards["accuracy"] == (1.0, 1.0) and found[0].scores == (1.0, 1.0)
    assert found[0].totals == (16.0, 0.5)


def test_alone_its_sign_is_what_is_right_and_one_whose_environment_failed_earns_nothing():
    alone = RewardModel("rm", 1.0, True, lambda samples: [0.1, -3.0])
    (judged,) = alone.judged([group(1, 2, 3, lost=(2,))])
    assert judged.rewards["rm"] == (0.1, -3.0, 0.0) and judged.scores[:2] == (1.0, 0.0)


def test_only_a_model_makes_a_judge(tmp_path):
    found = RewardModel.of(Config(reward=("accuracy", f"rm:{head(tmp_path / 'it')}=2")), list)
    assert (found.name, found.weight, found.is_first) == ("rm", 2.0, False)
    assert RewardModel.of(Config(reward=("accuracy",)), list) is None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of `unslothrl rm` in float32."""
    from unslothrl.offline.resolve import resolve
    from unslothrl.offline.run import run

    folder = tmp_path_factory.mktemp("rm")
    flags = {
        "model": "embedded", "output_dir": str(folder), "run_name": "rm", "max_steps": "2",
        "batch_size": "8", "eval_problems": "6", "dtype": "float32", "max_lora_rank": "8",
    }  # fmt: skip
    assert run(resolve("rm", flags)) == 0
    return folder / "rm"


@pytest.mark.real
@pytest.mark.parametrize("packs", few([False, True]))
def test_the_learner_scores_as_the_trained_model_does(trained, packs):
    import torch

    from unslothrl.backends import peft
    from unslothrl.offline import models
    from unslothrl.records import Sample
    from unslothrl.weights import base_model

    base, folder = base_model.prepare("embedded"), model.folder_of(f"rm:{trained}")
    options = RmOptions(dtype="float32", max_lora_rank=8, lora_alpha=16, lora_dropout=0.0)
    whole = models.reward_model(base, options, folder)
    tensors = safetensors.numpy.load_file(folder / model.HEAD_FILE)
    assert tensors["std"][0] > 0
    rows = [((5, 6, 7), (8, 9)), ((5, 6, 7), (10, 11, 12, 13)), ((20, 21), (22,))]
    wanted = models.scores_of(whole, [(*prompt, *reply) for prompt, reply in rows])
    backend = peft.load(
        base, dtype=torch.float32, rank=4, alpha=8, dropout=0.0, seed=1, packs=packs
    )
    backend.add_reward_model(folder, normalize=False)
    assert backend.model.training  # or nothing would be recomputed, nor dropped
    samples = [
        Sample(prompt, reply, (0.0,) * len(reply), np.zeros(len(reply), np.float32), 0)
        for prompt, reply in rows
    ]
    with torch.no_grad(), backend.reward_model():
        found = backend.sequence_scores(samples)
    assert torch.allclose(found, wanted, atol=1e-5, rtol=0) and wanted.std() > 1e-3
    with torch.no_grad():  # the policy is as it was, and the model's LoRA is not trained
        assert not torch.equal(backend.sequence_scores(samples), found)
    assert all("reward" not in name for name in backend.parameters())
    normal = (wanted - float(tensors["mean"][0])) / float(tensors["std"][0])
    backend.score_head = {k: torch.from_numpy(v) for k, v in tensors.items()}
    with torch.no_grad(), backend.reward_model():
        assert torch.allclose(backend.sequence_scores(samples), normal, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.real
def test_a_run_is_rewarded_by_it(trained, tmp_path):
    """Every reward in the rollouts is the model's of what was drawn, the same on resume."""

    from unslothrl.commands import cli
    from unslothrl.offline import models
    from unslothrl.weights import base_model

    flags = {
        "learner": "grpo", "model": "embedded", "output_dir": tmp_path, "run_name": "rl",
        "engine": "transformers", "cluster": "local", "number_of_actors": 0, "max_steps": 1,
        "batch_size": 2, "num_candidates": 2, "topk": 2, "eval_every": 0, "dtype": "float32",
        "max_new_tokens": 64, "train_batch_size": 2,
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    words += ["--reward", "accuracy", "--reward", f"rm:{trained}=0.5"]
    assert cli.main([*words, "--objective.no_normalize_reward_model"]) == 0
    run = tmp_path / "rl"
    rows = [json.loads(line) for line in (run / "rollouts/step_000001.jsonl").open()]
    base, folder = base_model.prepare("embedded"), model.folder_of(f"rm:{trained}")
    options = RmOptions(dtype="float32", max_lora_rank=8, lora_alpha=16, lora_dropout=0.0)
    whole = models.reward_model(base, options, folder)
    tokenizer = base_model.load_tokenizer(base)
    for row in rows:
        end = "<|im_end|>" if row["finish_reason"] == "stop" else ""
        ids = tokenizer(row["prompt"] + row["completion"] + end, add_special_tokens=False)
        wanted = 0.5 * models.scores_of(whole, [ids["input_ids"]])[0].item()
        assert row["rewards"]["rm"] == pytest.approx(wanted, abs=1e-4)
    assert f"rm:{folder}=0.5" in (run / "config.toml").read_text()

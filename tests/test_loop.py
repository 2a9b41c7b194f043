"""The loop with every learner, in this process: real base, real engine, real run folder."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from environments_page import files
from few_cases import few
from runs_compared import metrics
from runs_compared import rows as rows_of

from unslothrl.actors.actor import Actor
from unslothrl.algorithms import objectives
from unslothrl.backends.lora import LoraBackend
from unslothrl.commands import cli
from unslothrl.config.toml_files import read_toml
from unslothrl.config.values import RUN
from unslothrl.rewards.reward import overlong
from unslothrl.weights import adapter_use

pytestmark = pytest.mark.real

SMALL = {
    "cluster": "local", "engine": "transformers", "number_of_actors": 0, "batch_size": 6,
    "num_candidates": 4, "topk": 4, "train_batch_size": 16, "max_steps": 2, "eval_every": 0,
    "save_every": 1,
}  # fmt: skip


@pytest.fixture
def train(tmp_path, capfd):
    """-> a function that runs the command and returns (exit code, run folder, output, errors)."""

    def run(**options):
        flags = {**SMALL, "output_dir": tmp_path / "runs", "run_name": "x", **options}
        flags = {RUN.flag(name): value for name, value in flags.items()}
        several = {name: v if isinstance(v, list) else [v] for name, v in flags.items()}
        arguments = [f"--{n}={v}" for n, values in several.items() for v in values if v is not True]
        arguments += [f"--{name}" for name, value in flags.items() if value is True]
        code = cli.main(arguments)
        out, err = capfd.readouterr()
        return code, tmp_path / "runs" / "x", out, err

    return run


def rollouts(folder: Path, step: int) -> list[dict]:
    return rows_of(folder / "rollouts" / f"step_{step:06d}.jsonl")


@pytest.mark.parametrize("learner", few(objectives.names(), among=["grpo"]))
def test_every_learner_trains(learner, train):
    objective = objectives.load(learner)
    filters = objective.filter_low > 0 or objective.filter_high < 1 or objective.max_resample > 0
    code, folder, _, err = train(learner=learner, updates_per_rollout=2)
    assert code == 0, err
    rows = metrics(folder)
    assert [row["policy_version"] for row in rows] == [1, 2]
    for row in rows:
        assert np.isfinite([v for k, v in row.items() if k.startswith("train/")]).all()
        assert row["train/grad_norm"] > 0 and row["train/skipped_updates"] == 0
        assert ("train/value_loss" in row) == objective.has_critic
        assert ("rollout/resamples" in row) == filters
        assert ("reward/overlong" in row) == objective.overlong
        assert row["train/sampler_gap"] < 0.01  # against the old policy, whatever was updated since
    first, last = (
        safetensors.torch.load_file(folder / f"adapters/v{v:06d}/adapter_model.safetensors")
        for v in (1, 2)
    )
    assert any(not first[name].equal(last[name]) for name in first)
    assert not any("critic" in name for name in first)
    use = adapter_use.read(folder / "adapters/v000002")
    assert use is not None and (use.base, use.system_prompt) == ("embedded", "")
    saved = read_toml(folder / "config.toml")
    assert saved["learner"] == learner and saved["updates_per_rollout"] == 2
    named = objective.aggregation if isinstance(objective.aggregation, str) else None
    assert saved.get("aggregation") == named


@pytest.mark.slow
def test_a_batch_of_truncated_completions_is_skipped_with_a_line(train):
    code, folder, out, _ = train(
        learner="grpo", mask_truncated=True, max_new_tokens=2, overlong_cache=1
    )
    assert code == 0 and "every completion was truncated" in out
    assert (folder / "report.html").exists()
    assert {row["reward/overlong"] for row in metrics(folder)} == {-1.0}


@pytest.mark.slow
def test_kl_in_the_reward_and_a_frozen_policy(train):
    code, folder, _, _ = train(
        learner="ppo", kl="reward", kl_coefficient=0.1, freeze_steps=1, num_candidates=1, topk=1,
        max_steps=3, critic_lr=1e-2, lr=1e-3, lr_schedule="linear", warmup_steps=1, lr_floor=0.5,
    )  # fmt: skip
    assert code == 0
    rows = metrics(folder)
    assert [row["policy_version"] for row in rows] == [0, 1, 2]
    assert rows[0]["train/grad_norm"] == 0 and rows[0]["train/critic_grad_norm"] > 0
    assert rows[0]["train/kl_reference"] == pytest.approx(0, abs=1e-6)
    assert [row["train/lr"] for row in rows] == [1e-3, 1e-3, 7.5e-4]


NOT_FINITE = """
from unslothrl.algorithms.objective import Objective
def broken(ratio, logprobs, advantages, clip):
    return ratio * float("nan"), advantages > 9
OBJECTIVE = Objective(clip=broken)
"""


@pytest.mark.parametrize("kind", few(["updates", "frozen policy", "not finite"], 0))
def test_the_learner_leaves_the_card_before_an_actor_generates(kind, train, tmp_path, monkeypatch):
    """Also after a step that publishes nothing: its cache is freed and its base offloaded."""
    (tmp_path / "broken.py").write_text(NOT_FINITE)
    options = {
        "frozen policy": {"learner": "ppo", "freeze_steps": 2},
        "not finite": {"learner": tmp_path / "broken.py"},
        "updates": {"learner": "grpo", "updates_per_rollout": 2},
    }[kind]  # fmt: skip
    events = []

    def record(owner, name, event):
        inner = getattr(owner, name)

        def call(self, *arguments):
            events.append(event)
            return inner(self, *arguments)

        monkeypatch.setattr(owner, name, call)

    record(LoraBackend, "to_device", "on")
    record(LoraBackend, "to_host", "off")
    record(Actor, "collect", "generate")
    code, folder, _, err = train(number_of_actors=1, learner_chunk_size=0, **options)
    assert code == 0, err
    before = [events[i - 1] for i, event in enumerate(events) if event == "generate"]
    before = [event for event in before if event != "generate"]  # that takes longer than a slice
    assert before == ["off", "off"] and events[-1] == "off"
    assert events.count("on") >= 2  # something was computed in both steps
    versions = [row["policy_version"] for row in metrics(folder)]
    assert versions == ([0, 0] if kind == "frozen policy" else [1, 2])


FAILING = """
def most(completion, answer):
    return 1 / (len(completion) % 3)
def all(completion, answer):
    raise ValueError("no luck")
"""


def test_a_reward_in_a_users_file_trains_and_its_failures_are_counted(train, tmp_path):
    (tmp_path / "mine.py").write_text(FAILING)
    code, folder, out, err = train(
        learner="grpo", reward=[f"{tmp_path}/mine.py:most=0.5", "boxed"], max_steps=1
    )
    assert code == 0, err
    (row,) = metrics(folder)
    rows = rollouts(folder, 1)
    assert row["reward/failed"] == sum(len(c["completion"]) % 3 == 0 for c in rows) > 0
    earned = {0: 0.0, 1: 0.5, 2: 0.25}  # half of 1 / (length % 3), nothing where that fails
    for candidate in rows:
        assert candidate["rewards"]["most"] == earned[len(candidate["completion"]) % 3]
        assert candidate["score"] == 2 * candidate["rewards"]["most"]
    assert "ZeroDivisionError" in out and row["reward/boxed"] == 0
    assert read_toml(folder / "config.toml")["reward"] == (f"{tmp_path}/mine.py:most=0.5", "boxed")


def test_a_run_whose_reward_always_fails_stops_with_a_line(train, tmp_path):
    """On what a model writes; any other is found out by tests/test_trial.py's."""
    later = FAILING.replace("raise", "if '{' in completion: return 1\n    raise")
    (tmp_path / "mine.py").write_text(later)
    code, folder, out, err = train(learner="grpo", reward=[f"{tmp_path}/mine.py:all"])
    assert code == 1 and err.count("\n") == 1 and "resume" not in out
    assert "reward all failed on 24 of 24 completions (ValueError: no luck (mine.py, " in err
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"


def test_overlong_by_hand():
    # limit 10, cache 4: free up to 6 tokens, then -1/4 a token; never above 0, never below -1
    def punish(length):
        return overlong(length, limit=10, cache=4)

    assert [punish(n) for n in (0, 6, 7, 8, 10, 12)] == [0, 0, -0.25, -0.5, -1, -1]
    falls = [punish(n) for n in range(15)]
    assert falls == sorted(falls, reverse=True)


SHAPED = """
def shaped(completions, answers, level, prompts):
    assert all(prompt.strip() and "<|im_start|>" not in prompt for prompt in prompts)
    return [
        {"reward": len(text) / 100 + int(lv or 0), "score": float(answer in text)}
        for text, answer, lv in zip(completions, answers, level)
    ]
"""


def test_a_table_with_conversations_and_a_batch_reward_train(train, tmp_path):
    """CSV with messages as JSON, columns that are named, two eval sets, a reward and its score."""
    rows = [
        {"chat": json.dumps([{"role": "user", "content": f"What is {300 + i} + 411?"}]),
         "meta": json.dumps({"gold": str(711 + i)}), "level": i % 3}
        for i in range(12)
    ]  # fmt: skip
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "shaped.py").write_text(SHAPED)
    code, folder, _, err = train(
        dataset=f"{tmp_path / 'rows.csv'}[:10]", prompt_column="chat", answer_column="meta.gold",
        eval_dataset=["sums=embedded", f"table={tmp_path / 'rows.csv'}"], eval_problems=5,
        eval_candidates=2, eval_every=2, reward=f"{tmp_path / 'shaped.py'}:shaped",
        eval_temperature=0.5,
    )  # fmt: skip
    assert code == 0, err
    first = metrics(folder)[0]
    for name in ("sums", "table"):
        assert 0 <= first[f"eval/{name}/pass@1"] <= first[f"eval/{name}/best_of_n"] <= 1
    assert first["eval/sums/pass@1"] > 0.1
    for row in rollouts(folder, 1):
        assert int(row["rewards"]["shaped"]) in (0, 1, 2) and row["score"] in (0.0, 1.0)
    assert {row["task"].split("/")[0] for row in rollouts(folder, 1)} == {"rows.csv"}


def test_two_turns_train_with_the_observations_masked(train, tmp_path):
    (tmp_path / "calculator.py").write_text(files()["calculator.py"])
    code, folder, _, err = train(
        learner="grpo", environment=f"{tmp_path}/calculator.py:Calculator", max_new_tokens=120,
        max_steps=1,
    )  # fmt: skip
    assert code == 0, err
    (row,) = metrics(folder)
    assert row["train/sampler_gap"] < 0.01 and row["train/grad_norm"] > 0
    rows = rollouts(folder, 1)
    earned = [candidate["rewards"]["environment"] for candidate in rows]
    assert row["reward/environment"] == pytest.approx(np.mean(earned))
    answered = [c["completion"] for c in rows if c["rewards"]["environment"]]
    assert answered and all("\n= " in text for text in answered)
    assert 1 < row["episode/turns"] <= 2 and row["episode/lost"] == 0
    assert row["episode/observed_tokens"] > 0 and row["episode/sequences"] == 1

"""DistRL-LLM's own command line: every flag of it, with its meaning."""

import json

import pytest
from runs_compared import rows
from stopped_run import as_flags
from test_fit import gpus

from unslothrl.commands import cli
from unslothrl.commands.signatures import ALL_COMMANDS
from unslothrl.config.toml_files import read_toml
from unslothrl.planning import fit
from unslothrl.runs.resolve import resolve
from unslothrl.tracking.trackers import TrackedRun

DEFAULTS = {  # as it documents them
    "model": "unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "dataset": "HuggingFaceH4/MATH-500",
    "lr": 2e-5, "max_new_tokens": 1200, "max_prompt_tokens": 350, "temperature": 1.2,
    "episodes": 15, "num_candidates": 16, "batch_size": 30, "learner_chunk_size": 8,
    "train_batch_size": 8, "topk": 16, "save_every": 100, "eval_every": 10, "number_of_actors": 2,
    "number_of_learners": 1, "learner": "pg", "max_lora_rank": 32, "lora_alpha": 16,
    "lora_dropout": 0.0, "actor_gpu_usage": 0.91, "learner_gpu_usage": 0.35,
}  # fmt: skip
SMALL = {  # another value of each
    "model": "embedded", "dataset": "problems.jsonl", "run_name": "x", "project_name": "maths",
    "lora_save_path": "final", "lr": 1e-4, "max_new_tokens": 12, "max_prompt_tokens": 40,
    "temperature": 1.0, "episodes": 2, "num_candidates": 4, "batch_size": 4,
    "learner_chunk_size": 2, "train_batch_size": 16, "topk": 2, "save_every": 1, "eval_every": 2,
    "number_of_actors": 1, "number_of_learners": 1, "learner": "grpo", "max_lora_rank": 8,
    "lora_alpha": 8, "lora_dropout": 0.1, "actor_gpu_usage": 0.5, "learner_gpu_usage": 0.4,
}  # fmt: skip


def parsed(arguments):
    context = ALL_COMMANDS["train"].make_context("train", list(arguments))
    return {name: value for name, value in context.params.items() if value not in (None, [], ())}


def test_its_defaults_are_a_recipe_and_but_for_the_problems_ours():
    assert parsed([]) == {}
    machine = gpus(24_564, 24_564, 24_564)
    config = resolve({"recipe": "distrl"}, machine).config
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    own = {**DEFAULTS, **fit.TASK}
    assert {name: getattr(resolve({}, machine).config, name) for name in own} == own
    other = resolve({"dataset": "HuggingFaceH4/MATH-500"}, machine).config
    assert {name: getattr(other, name) for name in DEFAULTS} == DEFAULTS and not other.eval_dataset


def test_every_flag_with_a_value_reaches_its_option(tmp_path, here):
    (tmp_path / "problems.jsonl").write_text('{"problem": "What is 100 + 200?", "answer": "300"}\n')
    assert SMALL.keys() == {*DEFAULTS, "run_name", "project_name", "lora_save_path"}
    flags = parsed(as_flags(SMALL))
    assert flags == {name: str(value) for name, value in SMALL.items()}
    config = resolve(flags, gpus(24_564, 24_564, 24_564)).config
    paths = {"dataset": str(tmp_path / "problems.jsonl"), "lora_save_path": str(tmp_path / "final")}
    assert {name: getattr(config, name) for name in SMALL} == {**SMALL, **paths}


def test_the_project_is_that_of_the_flag_then_of_the_trackers_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "of-wandb")
    named, other = (TrackedRun("x", "1", tmp_path, {"project_name": n}) for n in ("maths", None))
    assert named.project("WANDB_PROJECT") == "maths"
    assert (other.project("WANDB_PROJECT"), other.project("NONE")) == ("of-wandb", "unslothrl")


@pytest.mark.real
def test_a_job_runs_with_all_of_them(tmp_path, capfd, here):
    known = [{"problem": f"What is 1{i}0 + 2{i}5?", "answer": str(305 + 20 * i)} for i in range(4)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in known * 2))
    more = "--cluster local --engine transformers --eval_candidates 1"
    assert cli.main([*as_flags(SMALL), *more.split()]) == 0
    folder = tmp_path / "runs" / "x"
    steps = [row for row in rows(folder / "metrics.jsonl") if "rollout/tokens" in row]
    assert len(steps) == 4  # 2 episodes of the 5 rows that are not held out, 4 a step
    trained = [row["train/selected_completions"] for row in steps if "train/loss" in row]
    assert trained and max(trained) <= 8  # the best 2 candidates of 4 prompts
    saved = read_toml(folder / "config.toml")
    assert saved["project_name"] == "maths" and saved["max_lora_rank"] == 8
    assert (tmp_path / "final" / "adapter_model.safetensors").is_file()

"""Run folders as a run would write them, of any size, for the tests and the bench of the report."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fakes import task

from unslothrl.config.offline_options import TABLES
from unslothrl.config.toml_files import to_toml
from unslothrl.records import (
    FROM_THE_ENVIRONMENT,
    Call,
    Completion,
    Failure,
    Group,
    Transcript,
    Turn,
)
from unslothrl.tracking import origin
from unslothrl.tracking.rows import evaluation_rows, rollout_rows
from unslothrl.tracking.run_folder import RunFolder, write_tokens
from unslothrl.training.metrics import episode_metrics

CONFIG = (
    'learner = "grpo"\nmodel = "embedded"\ndataset = "embedded"\nreward = ["accuracy", "format"]\n'
    "batch_size = {prompts}\nnum_candidates = {candidates}\nmax_new_tokens = 256\nlr = {lr}\n"
    "shuffle_rewards = false\n"
)
TEXT = "so we add the two numbers and carry one then check the sum again 17 42 = +"
WORDS = TEXT.split(" ")
HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>]]>-->"
    "\x00\x1b[2J\u202ereversed\u202c \u2028 \ud83d half {title} ${1} `x` \\u003c <b>bold</b> é 漢"
)

Write = Callable[[random.Random, int], str]


def written(draw: random.Random, length: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(length))


def made_group(
    draw: random.Random, name: str, candidates: int, right: float, length: int, write: Write
) -> Group:
    """Candidates of which about a share of `right` are right."""
    completions, scores = [], []
    for _ in range(candidates):
        text = write(draw, max(1, round(draw.gauss(length, length / 4))))
        pieces = len(text.split(" "))
        logprobs = tuple(-abs(draw.gauss(0, 0.6)) for _ in range(pieces))
        end = "length" if draw.random() < 0.05 else "stop"
        drawn = Completion.drawn(tuple(range(pieces)), logprobs, end, 0)
        completions.append(replace(drawn, text=text, generator="actor-0"))
        scores.append(float(draw.random() < right))
    rewards = {"accuracy": tuple(scores), "format": tuple(draw.choice((0.5, 1.0)) for _ in scores)}
    return Group(task(name), tuple(completions), rewards, tuple(scores))


def episodes_of(draw: random.Random, group: Group, write: Write) -> Group:
    """The group's candidates as episodes of up to three turns, the last of them lost."""
    made, failures, earned = [], (), list(group.scores)
    for number, completion in enumerate(group.completions):
        calls = (Call("multiply", json.dumps({"a": 6, "b": write(draw, 2)})),)
        turns = [
            Turn(write(draw, 6), f"= {write(draw, 4)}", 0.25, 1, int(draw.random() < 0.3), calls)
            for _ in range(draw.randint(0, 2))
        ]
        turns.append(Turn(completion.text, reward=group.scores[number]))
        text = Transcript(tuple(turns)).text("\n")
        made.append(replace(completion, text=text, transcript=Transcript(tuple(turns))))
    if draw.random() < 0.3:
        made[-1] = replace(made[-1], finish_reason="lost")
        reason = f"ZeroDivisionError: {write(draw, 1)} (tools.py line 3)"
        earned[-1] = 0.0
        failures = (Failure(FROM_THE_ENVIRONMENT, reason, "", len(made) - 1),)
    rewards = {FROM_THE_ENVIRONMENT: tuple(earned)}
    return Group(group.task, tuple(made), rewards, tuple(earned), failures)


def tokens_of(draw: random.Random, group: Group) -> list[dict[str, Any]]:
    """As `training.metrics.Trace` makes them: words for tokens."""
    found = []
    for completion in group.completions:
        words = completion.text.split(" ")
        pieces = [f"{word} " for word in words[:-1]] + words[-1:]
        gaps = [draw.gauss(0, 0.01) * (30 if draw.random() < 0.02 else 1) for _ in pieces]
        found.append({"pieces": pieces, "logprobs": completion.logprobs.tolist(), "gaps": gaps,
                      "advantages": None, "left_out": 0})  # fmt: skip
    return found


def make_run(
    path: Path,
    number_of_steps: int = 12,
    prompts: int = 4,
    candidates: int = 4,
    length: int = 30,
    write: Write = written,
    lr: float = 2e-5,
    eval_every: int = 5,
    has_turns: bool = False,
    problems: int = 20,
) -> RunFolder:
    """A run that gets better. Every second step draws the prompts of the step before again."""
    draw = random.Random(path.name)
    config = CONFIG.format(prompts=prompts, candidates=candidates, lr=lr)
    folder = RunFolder.create(path.parent, path.name, config)
    known = origin.Origin("unslothrl --learner grpo", "2026-11-22 08:15", {"torch": "2.13.0"})
    origin.write(folder.path, known)
    folder.log({"step": 0, **evaluate(folder, draw, 0, 0.3, write, problems)})
    for step in range(1, number_of_steps + 1):
        share = 0.3 + 0.6 * step / number_of_steps
        groups = [
            made_group(draw, f"{(step - 1) // 2 * prompts + i}", candidates, share, length, write)
            for i in range(prompts)
        ]
        if has_turns:
            groups = [episodes_of(draw, group, write) for group in groups]
        chosen = tuple(i for i in range(candidates) if i % 4 != 3)
        assigned = [
            replace(g, advantages=tuple(t - fmean(g.totals) for t in g.totals), chosen=chosen)
            for g in groups
        ]
        folder.write_rows("rollouts", step, list(rollout_rows(assigned)))
        if not has_turns:
            of_rows = [each for group in groups for each in tokens_of(draw, group)]
            write_tokens(folder, step, dict(enumerate(of_rows)))
        metrics = metrics_of(draw, step, number_of_steps, groups)
        metrics |= episode_metrics([one for group in groups for one in group.completions])
        if step % eval_every == 0 or step == number_of_steps:
            metrics |= evaluate(folder, draw, step, share, write, problems)
        folder.log({"step": step, "policy_version": step, **metrics})
    return folder


def evaluate(
    folder: RunFolder, draw: random.Random, step: int, right: float, write: Write, problems: int
) -> dict[str, float]:
    groups = [made_group(draw, f"held-{i}", 2, right, 20, write) for i in range(problems)]
    folder.write_rows("evals", step, evaluation_rows({"held_out": groups}))
    return {
        "eval/held_out/pass@1": fmean(score for group in groups for score in group.scores),
        "eval/held_out/best_of_n": fmean(max(group.scores) for group in groups),
        "eval/held_out/mean_length": 20.0,
        "timing/eval_s": 4.0,
    }


def metrics_of(
    draw: random.Random, step: int, number_of_steps: int, groups: list[Group]
) -> dict[str, float]:
    count = sum(len(group.scores) for group in groups)
    tokens = sum(len(c.token_ids) for group in groups for c in group.completions)
    done = step / number_of_steps
    return {
        "reward/mean": sum(sum(group.totals) for group in groups) / count,
        **{
            f"reward/{name}": sum(sum(group.rewards[name]) for group in groups) / count
            for name in groups[0].rewards
        },
        "reward/failed": 0,
        "reward/zero_signal_groups": sum(len(set(g.totals)) == 1 for g in groups),
        "rollout/score": sum(sum(group.scores) for group in groups) / count,
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": 2500 + draw.gauss(0, 100),
        "rollout/mean_length": tokens / count,
        "rollout/truncated": 0.05,
        "rollout/staleness": 0,
        "train/loss": draw.gauss(0, 0.01),
        "train/entropy": 0.9 - 0.4 * done,
        "train/sampler_gap": 0.002 + abs(draw.gauss(0, 0.0004)),
        "train/sampler_gap_p99": 0.02 + abs(draw.gauss(0, 0.004)),
        "train/ess": 0.99,
        "train/kl_reference": 0.02 * done,
        "train/grad_norm": 0.2 + abs(draw.gauss(0, 0.05)),
        "train/clip_fraction": 0.0,
        "train/correction_truncated": 0.0,
        "train/skipped_updates": 0,
        "train/lr": 2e-5 * (1 - 0.9 * done),
        "memory/learner_peak_mb": 5200 + 20 * math.sin(step),
        "memory/actor_peak_mb": 7900.0,
        "timing/generation_s": 5.0 + draw.random(),
        "timing/reward_s": 0.2,
        "timing/update_s": 2.0 + draw.random() / 2,
        "timing/sync_s": 0.1,
        "timing/step_s": 8.5 + draw.random(),
    }


def make_stage(
    path: Path, command: str, number_of_steps: int = 12, eval_every: int = 4, **given: Any
) -> RunFolder:
    """A run of `unslothrl sft`, `dpo` or `rm` that gets better."""
    draw = random.Random(path.name)
    given = {"model": "embedded", "run_name": path.name, "lr": 2e-4, **given}
    folder = RunFolder.create(path.parent, path.name, to_toml(TABLES[command].config(**given)))
    folder.log({"step": 0, **of_stage(command, "eval/held_out", 0.0), "timing/eval_s": 2.0})
    for step in range(1, number_of_steps + 1):
        done = step / number_of_steps
        row = of_stage(command, "train", min(1.0, max(0.0, done + draw.gauss(0, 0.05))))
        if step % eval_every == 0 or step == number_of_steps:
            row |= {**of_stage(command, "eval/held_out", 0.9 * done), "timing/eval_s": 2.0}
        folder.log({
            "step": step, **row, "train/grad_norm": 0.4, "train/lr": 2e-4 * (1 - 0.9 * done),
            "train/tokens": 2000 * step, "samples_seen": 16 * step, "epoch": done,
            "timing/step_s": 0.5, "memory/learner_peak_mb": 700.0,
        })  # fmt: skip
    return folder


def of_stage(command: str, prefix: str, done: float) -> dict[str, float]:
    """A row of training or of an evaluation, `done` from 0 to 1."""
    pairs = {"loss": 0.7 - 0.5 * done, "accuracy": 0.5 + 0.45 * done, "margin": 2 * done}
    found = {
        "sft": {"loss": 2.5 - done, "token_accuracy": 0.4 + 0.4 * done, "entropy": 2 - done},
        "dpo": {**pairs, "reward_chosen": done, "reward_rejected": -done,
                "logprob_chosen": -40.0 + done, "logprob_rejected": -50.0 - done},
        "rm": {**pairs, "reward_mean": done},
    }[command]  # fmt: skip
    return {f"{prefix}/{name}": value for name, value in found.items()}

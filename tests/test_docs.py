"""What docs/algorithms.md shows runs as it stands there."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from unslothrl import rewards
from unslothrl.algorithms import objectives
from unslothrl.algorithms.aggregation import Denominators
from unslothrl.algorithms.losses import Tokens, policy_loss
from unslothrl.rewards.scorer import Completed, Scorer

ROOT = Path(__file__).parents[1]


def documented_example() -> str:
    """The Python of docs/algorithms.md."""
    text = (ROOT / "docs" / "algorithms.md").read_text()
    return text.split("```python\n")[1].split("```")[0]


def test_the_example_has_the_gradient_of_its_formula(tmp_path):
    # d/drho of 4/tau sigmoid(tau (rho - 1)) is 4 s (1 - s), at rho = 1 exactly 1: with advantages
    # 2 and -1, each one token of two sequences, the gradient is -2/2 and 1/2
    (tmp_path / "sapo.py").write_text(documented_example())
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    tokens = Tokens([1, 1], logprobs, torch.zeros(2), torch.tensor([2.0, -1.0]), logprobs.detach())
    objective = objectives.load(str(tmp_path / "sapo.py"))
    policy_loss(objective, tokens, Denominators(2, 2, 8)).value.backward()
    assert torch.allclose(logprobs.grad, torch.tensor([-1.0, 0.5]))


def test_the_example_trains_as_a_learner(tmp_path):
    """In both processes that read it, with a flag that sets a part of it."""
    (tmp_path / "sapo.py").write_text(documented_example())
    done = subprocess.run(
        [sys.executable, ROOT / "train_distributed.py", "--learner", "sapo.py", "--max_steps", "2",
         "--batch_size", "6", "--number_of_actors", "0", "--engine", "transformers",
         "--eval_every", "0", "--aggregation", "token", "--epochs_per_rollout", "2"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("sapo-")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2] and all("train/loss" in row for row in rows)
    assert 'aggregation = "token"' in (folder / "config.toml").read_text()


def test_the_documented_rewards_run(tmp_path):
    text = (ROOT / "docs" / "rewards.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "mine.py").write_text(text.replace("    ...", "    return level"))
    made = [
        Completed("so 7", 2, "7", {"level": 3}, "P"),
        Completed("no", 1, "7", {"level": 4}, "P"),
    ]
    expected = {"reward": [1.0, 0.0], "judge": [3.0, 4.0], "batch": [0.004, 0.002]}
    for name, values in expected.items():
        scorer = Scorer(rewards.choose((f"{tmp_path}/mine.py:{name}",)))
        try:
            found = scorer.score(made)
        finally:
            scorer.close()
        assert (found.rewards[name], found.failures) == (values, [])


def test_every_reward_is_documented():
    text = (ROOT / "docs" / "rewards.md").read_text()
    for name, one in rewards.REWARDS.items():
        (row,) = [
            line for line in text.splitlines() if line.startswith(f"| `{name}` | ") and one.weight
        ]
        assert f"| {one.weight:g} |" in row

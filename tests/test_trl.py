"""Losses, gradients and advantages against TRL 1.10.0's own code. `make trl-test` runs this.

Differences that are set, not hidden: TRL's standard deviation divides by n - 1 and gets 1e-4 added;
its cispo bound is absolute (5 is our 1 + 4); its KL estimate is by default multiplied by the ratio
(DeepSeek-V3.2), which is turned off here for the paper's.
"""

import dataclasses
import json
import os
import random
import sys
from pathlib import Path

import pytest
import torch
from conftest import run_script
from test_docs import documented_example

from unslothrl import embedded
from unslothrl.algorithms import objectives
from unslothrl.algorithms.advantages import ADVANTAGES
from unslothrl.algorithms.losses import Denominators, Tokens, policy_loss

pytestmark = pytest.mark.slow

LENGTHS = [5, 1, 3, 4]
LIMIT = 8  # max_new_tokens
CLIPS = {"epsilon": 0.2, "epsilon_high": 0.2, "beta": 0.0}
GRPO = {"loss_type": "grpo", **CLIPS}
SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
TRL_OPTIONS = {  # learner -> the options of TRL's trainer for the same loss
    "grpo": GRPO,
    "dapo": {**GRPO, "loss_type": "dapo", "epsilon_high": 0.28},
    "dr_grpo": {**GRPO, "loss_type": "dr_grpo"},
    "rloo": CLIPS,
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0, "beta": 0.0},
    "gspo": {**GRPO, **SEQUENCE},
    "grpo with KL": {**GRPO, "beta": 0.04, "use_bias_correction_kl": False},
    "sapo": {"loss_type": "sapo", "beta": 0.0},  # the example of docs/algorithms.md
}
SPREAD = {"gspo": 2e-3, "rloo": 0.3}  # how far policy and old are apart, so that some are clipped
REWARDS = [[1.0, 0.0, 0.5, 0.0], [2.0, 2.0, 2.0, 2.0], [0.1, 0.2, 0.3, 1.3]]


def make_case(learner: str) -> dict:
    draw = random.Random(learner)
    width = max(LENGTHS)

    def rows(make):
        return [[make() for _ in range(width)] for _ in LENGTHS]

    logprobs = rows(lambda: draw.uniform(-3, -0.1))
    old = [[p + draw.gauss(0, SPREAD.get(learner, 0.4)) for p in row] for row in logprobs]
    reference = [[p + draw.gauss(0, 0.3) for p in row] for row in logprobs]
    trainer = "rloo" if learner == "rloo" else "grpo"
    inputs = {
        "completion_mask": [[int(t < length) for t in range(width)] for length in LENGTHS],
        "advantages": [1.3, -0.7, -1.1, 0.4],
        "num_items_in_batch": sum(LENGTHS),
    }
    if trainer == "rloo":
        inputs["old_logps"] = [sum(row[:n]) for row, n in zip(old, LENGTHS, strict=True)]
    else:
        inputs |= {"old_per_token_logps": old, "ref_per_token_logps": reference}
    options = {**TRL_OPTIONS[learner], "max_completion_length": LIMIT}
    return {
        "trainer": trainer, "options": options, "inputs": inputs, "logprobs": logprobs,
        "old": old, "reference": reference,
    }  # fmt: skip


CASES = {learner: make_case(learner) for learner in TRL_OPTIONS}
ADVANTAGE_CASES = {
    "standardised": {"trainer": "grpo", "options": {"scale_rewards": "group"}, "rewards": REWARDS},
    "centred": {"trainer": "grpo", "options": {"scale_rewards": "none"}, "rewards": REWARDS},
    "leave_one_out": {"trainer": "rloo", "options": {}, "rewards": REWARDS},
}


@pytest.fixture(scope="module")
def trl_results(tmp_path_factory):
    """What TRL says of every case."""
    site = Path(os.environ.get("UNSLOTHRL_TRL_SITE", Path(sys.prefix) / "peers" / "trl"))
    if not (site / "trl").is_dir():
        pytest.fail(f"TRL is not in {site}: run `make trl-test`")
    folder = tmp_path_factory.mktemp("trl")
    source, target = folder / "in.json", folder / "out.json"
    cases = {"losses": list(CASES.values()), "advantages": list(ADVANTAGE_CASES.values())}
    source.write_text(json.dumps(cases))
    given = (source, target, embedded.BASE)
    run_script("trl_losses.py", *given, cwd=folder, PYTHONPATH=str(site), HF_HUB_OFFLINE="1")
    found = json.loads(target.read_text())
    assert found["version"] == "1.10.0"
    return found


def flat(rows: list[list[float]]) -> torch.Tensor:
    values = [v for row, length in zip(rows, LENGTHS, strict=True) for v in row[:length]]
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("learner", CASES)
def test_losses_and_gradients_are_trls(learner, trl_results, tmp_path):
    case, theirs = CASES[learner], trl_results["losses"][list(CASES).index(learner)]
    if learner == "sapo":
        (tmp_path / "sapo.py").write_text(documented_example())
        objective = objectives.load(str(tmp_path / "sapo.py"))
    else:
        objective = objectives.load(learner.split()[0])
    if learner.endswith("KL"):
        objective = dataclasses.replace(objective, kl="loss", kl_coefficient=0.04)
    logprobs = flat(case["logprobs"]).requires_grad_()
    old = flat(case["old"])
    ours = policy_loss(
        objective,
        Tokens(
            lengths=LENGTHS,
            logprobs=logprobs,
            entropies=torch.zeros_like(old),
            advantages=torch.tensor(case["inputs"]["advantages"], dtype=torch.float64)
            .repeat_interleave(torch.tensor(LENGTHS)),
            sampler=old,  # no correction
            old=old,
            reference=flat(case["reference"]),
        ),
        Denominators(len(LENGTHS), sum(LENGTHS), LIMIT),
    )  # fmt: skip
    ours.value.backward()
    assert ours.clipped > 0 or learner in ("cispo", "sapo")
    assert ours.value.item() == pytest.approx(theirs["loss"], abs=1e-6)
    assert torch.allclose(logprobs.grad, flat(theirs["gradient"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ADVANTAGE_CASES)
def test_advantages_are_trls(name, trl_results):
    theirs = trl_results["advantages"][list(ADVANTAGE_CASES).index(name)]
    ours = ADVANTAGES[name](REWARDS, ddof=1, epsilon=1e-4)
    assert [a for group in ours for a in group] == pytest.approx(theirs, abs=1e-6)

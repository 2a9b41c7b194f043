"""What is trained on a rollout whose tokens were drawn under older versions: by hand."""

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import task

from unslothrl.algorithms import objectives
from unslothrl.config.options import Config
from unslothrl.learners.passes import Passes
from unslothrl.records import Batch, Completion, Group
from unslothrl.sharding.split import Split
from unslothrl.training import credit

SAMPLER = (0.1, 0.5)  # what versions 3 and 5 gave the two tokens
NOW = (0.4, 0.4)  # what the learner, at version 6, gives them before the step's updates


class TwoTokens:
    """A backend whose parameters are its log-probabilities of the only sample's two tokens."""

    split, dtype = Split(), torch.float32

    def __init__(self):
        self.logprobs = torch.tensor(NOW).log().requires_grad_()

    def micro_batches(self, samples, sequences, context):
        return [list(range(len(samples)))]

    def token_logprobs(self, samples, temperature, entropy_gradient=False):
        return self.logprobs * 1.0, torch.zeros(2)

    def reference(self):
        return nullcontext()


def stale_sample(learner: Passes, several_updates: bool):
    """Through credit assignment, with advantage 1 for both tokens."""
    drawn = Completion((7, 8), tuple(map(math.log, SAMPLER)), (True, True), (3, 5), "stop")
    group = Group(task("a"), (drawn, drawn), {"accuracy": (1.0, -1.0)}, (1.0, 0.0))

    def measure(samples):
        known = zip(samples, learner.measure(samples, False), strict=True)
        return [replace(sample, **measured) for sample, measured in known]

    config = replace(Config(), select="topk", topk=1, updates_per_rollout=1 + several_updates)
    _, (sample,) = credit.assign([group], learner.objective, config, 0, measure)
    assert sample.policy_version == 3  # the oldest
    return replace(sample, advantages=np.ones(2, np.float32))


@pytest.fixture
def learner():
    config = replace(Config(), temperature=1.0, max_new_tokens=8, train_batch_size=4)
    return Passes(TwoTokens(), objectives.load("grpo"), config, lambda done, tokens: None)


@pytest.mark.parametrize("several_updates", [False, True])
def test_staleness_is_corrected_by_w_and_rho_is_the_learners_own(learner, several_updates):
    """w = 0.4 / 0.1, bounded at 2, and 0.4 / 0.5; rho is 1 in the first update."""
    sample = stale_sample(learner, several_updates)
    assert (sample.logprobs is None) is not several_updates
    first = learner.forward_backward(Batch((sample,), 1, 2))
    assert first.loss == pytest.approx(-(2 + 0.8) / 2)
    assert (first.clipped, first.corrected) == (0, 1)
    assert learner.backend.logprobs.grad.tolist() == pytest.approx([-2 / 2, -0.8 / 2])


def test_later_updates_clip_against_the_learners_policy_before_the_step(learner):
    """The first token has moved from 0.4 to 0.6 since: rho 1.5 is clipped at 1.2; the second to
    0.44: rho 1.1. Both keep their w: against the samplers they are 6 and 0.88."""
    sample = stale_sample(learner, several_updates=True)
    with torch.no_grad():
        learner.backend.logprobs.copy_(torch.tensor([0.6, 0.44]).log())
    second = learner.forward_backward(Batch((sample,), 1, 2))
    assert second.loss == pytest.approx(-(2 * 1.2 + 0.8 * 1.1) / 2)
    assert (second.clipped, second.corrected) == (1, 1)
    assert learner.backend.logprobs.grad.tolist() == pytest.approx([0, -0.8 * 1.1 / 2])
    gaps = [abs(math.log(now / then)) for now, then in zip(NOW, SAMPLER, strict=True)]
    assert np.abs(second.difference).tolist() == pytest.approx(gaps)

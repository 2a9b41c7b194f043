"""What is trained on a rollout whose tokens were drawn under older versions: by hand."""

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import task

from unslothrl.algorithms import objectives
from unslothrl.learners.passes import Hyperparameters, Passes
from unslothrl.training import batching, credit
from unslothrl.training.metrics import staleness_metrics
from unslothrl.types import Batch, Completion, Group, Measured, Sample

SAMPLER = (0.1, 0.5)  # what versions 3 and 5 gave the two tokens
NOW = (0.4, 0.4)  # what the learner, at version 6, gives them before the step's updates


class TwoTokens:
    """A backend whose parameters are its log-probabilities of the only sample's two tokens."""

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
    selected = credit.assign(
        [group],
        objectives.load("grpo"),
        select="topk",
        topk=1,
        seed=0,
        measure=lambda samples: [
            replace(sample, measured=measured)
            for sample, measured in zip(samples, learner.measure(samples, False), strict=True)
        ],
        several_updates=several_updates,
    )
    (sample,) = selected.samples
    assert sample.policy_version == 3  # the oldest
    return replace(sample, advantages=np.ones(2, np.float32))


@pytest.fixture
def learner():
    settings = Hyperparameters(temperature=1.0, max_new_tokens=8, micro_batch=4)
    return Passes(TwoTokens(), objectives.load("grpo"), settings, lambda done, tokens: None)


@pytest.mark.parametrize("several_updates", [False, True])
def test_staleness_is_corrected_by_w_and_rho_is_the_learners_own(learner, several_updates):
    """w = 0.4 / 0.1, bounded at 2, and 0.4 / 0.5; rho is 1 in the first update."""
    sample = stale_sample(learner, several_updates)
    assert (sample.measured is None) is not several_updates
    first = learner.forward_backward(Batch((sample,), 1, 2))
    assert first.loss == pytest.approx(-(2 + 0.8) / 2)
    assert (first.clipped, first.corrected) == (0, 1)
    gradient = learner.backend.logprobs.grad
    assert gradient.tolist() == pytest.approx([-2 / 2, -0.8 / 2])


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
    assert second.learner_logprobs.tolist() == pytest.approx(np.log(NOW).tolist())


def updated(learner_name: str, moved=NOW, advantage: float = 1.0, reference=NOW, **parts):
    """-> (the stats of an update, its gradient) of the two tokens by another objective, where the
    policy has moved from `NOW` to `moved` since the rollout was measured."""
    objective = replace(objectives.load(learner_name), **parts)
    settings = Hyperparameters(temperature=1.0, max_new_tokens=8, micro_batch=4)
    passes = Passes(TwoTokens(), objective, settings, lambda done, tokens: None)
    logprobs = np.log(np.array(NOW, np.float32))
    measured = Measured(logprobs, np.log(np.array(reference, np.float32)))
    sample = replace(
        stale_sample(passes, several_updates=True),
        measured=measured,
        advantages=np.full(2, advantage, np.float32),
    )
    with torch.no_grad():
        passes.backend.logprobs.copy_(torch.tensor(moved).log())
    stats = passes.forward_backward(Batch((sample,), 1, 2))
    return stats, passes.backend.logprobs.grad.tolist()


def test_a_ratio_of_the_whole_sequence_is_weighed_by_the_mean_of_its_tokens_w():
    """All tokens have the same ratio, whose gradient each has a share of: w is 2 and 0.8, 1.4 on
    average. GSPO takes the mean over the sequence, RLOO's product has a gradient for each token."""
    stats, gradient = updated("gspo")
    assert stats.loss == pytest.approx(-1.4)
    assert gradient == pytest.approx([-1.4 / 2, -1.4 / 2])
    stats, gradient = updated("rloo")
    assert stats.loss == pytest.approx(-1.4)
    assert gradient == pytest.approx([-1.4, -1.4])
    moved = (0.44, 0.36)  # s = sqrt(1.1 * 0.9)
    stats, gradient = updated("gspo", moved, clip_low=0.5, clip_high=0.5)
    ratio = math.sqrt(1.1 * 0.9)
    assert stats.loss == pytest.approx(-1.4 * ratio)
    assert gradient == pytest.approx([-1.4 * ratio / 2] * 2)


def test_clip_higher_bounds_rho_and_w_is_bounded_by_itself():
    """DAPO lets rho rise to 1.28. With a negative advantage a rho that has risen is not clipped,
    one that has fallen under 0.8 is; w stays 2 and 0.8 in each case."""
    moved = (0.6, 0.44)  # rho 1.5 and 1.1
    stats, gradient = updated("dapo", moved)
    assert stats.loss == pytest.approx(-(2 * 1.28 + 0.8 * 1.1) / 2)
    assert gradient == pytest.approx([0, -0.8 * 1.1 / 2])
    stats, gradient = updated("dapo", moved, advantage=-1.0)
    assert stats.loss == pytest.approx((2 * 1.5 + 0.8 * 1.1) / 2)
    assert gradient == pytest.approx([2 * 1.5 / 2, 0.8 * 1.1 / 2])
    stats, gradient = updated("dapo", (0.28, 0.44), advantage=-1.0)  # rho 0.7
    assert stats.loss == pytest.approx((2 * 0.8 + 0.8 * 1.1) / 2)
    assert gradient == pytest.approx([0, 0.8 * 1.1 / 2])


def test_the_kl_in_the_loss_is_not_weighed():
    """k3 of 0.4 against 0.2 is 1/2 - 1 + ln 2, with the gradient 1 - 1/2; the other token's is 0.
    As in GRPO, equation 3: neither rho nor w stands before it."""
    stats, gradient = updated("grpo", reference=(0.2, 0.4), kl="loss", kl_coefficient=0.1)
    assert stats.loss == pytest.approx(-1.4 + 0.1 * (math.log(2) - 0.5) / 2)
    assert gradient == pytest.approx([-2 / 2 + 0.1 * 0.5 / 2, -0.8 / 2])


def test_staleness_by_hand():
    """Version 6 is trained. Of the first completion an environment has put in the second token;
    the others are 3, 1, 2 and 0 versions behind."""
    group = Group(
        task("a"),
        (
            Completion((7, 8, 9), (-1.0, 0.0, -1.0), (True, False, True), (3, 3, 5), "stop"),
            Completion((7, 8), (-1.0, -1.0), (True, True), (4, 6), "stop"),
        ),
        {"accuracy": (1.0, 0.0)},
        (1.0, 0.0),
    )
    assert staleness_metrics([group], 6, most=2) == {
        "rollout/staleness": 3,
        "rollout/staleness_mean": 6 / 4,
        **{f"rollout/staleness_{n}": 1 / 4 for n in range(4)},  # over the bound too
    }
    assert staleness_metrics([group], 6, most=0) == {"rollout/staleness": 3}


class Table:
    """A backend whose parameters are the log-probabilities of tokens, by their ids."""

    def __init__(self):
        self.logprobs = torch.full((6,), -1.0, requires_grad=True)

    def micro_batches(self, samples, sequences, context):
        return [[index] for index in range(len(samples))]

    def token_logprobs(self, samples, temperature, entropy_gradient=False):
        ids = torch.tensor([id for sample in samples for id in sample.completion_ids])
        return self.logprobs[ids], torch.zeros(len(ids))

    def reference(self):
        return nullcontext()


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("aggregation", "gradient"),
    [
        ("token", [-3 / 6, 1 / 6, 1 / 6, 1 / 6, 0, 0]),
        ("sequence", [-3 / 4, 1 / 12, 1 / 12, 1 / 12, 0, 0]),
        ("constant", [-3 / 32, 1 / 32, 1 / 32, 1 / 32, 0, 0]),
    ],
)
def test_shares_of_any_size_add_up_to_the_gradient_of_the_batch(learners, aggregation, gradient):
    """A completion of token 0 with advantage 3, one of the tokens 1 to 3 with -1, and two of a
    token each without a gradient, which are left out but counted: 4 sequences, 6 tokens, 8 at most
    a completion. With three learners one has nothing, with five three."""
    objective = replace(objectives.load("grpo"), aggregation=aggregation)
    settings = Hyperparameters(temperature=1.0, max_new_tokens=8, micro_batch=4)
    samples = [
        Sample((9,), ids, (-1.0,) * len(ids), np.full(len(ids), advantage, np.float32), 0)
        for ids, advantage in [((0,), 3.0), ((1, 2, 3), -1.0), ((4,), 0.0), ((5,), 0.0)]
    ]
    (batch,) = batching.batches(samples, [True, True, False, False], 1, seed=0)
    parts = batching.split_batch(batch, learners)
    assert sum(not part.samples for part in parts) == max(0, learners - 2)
    total, loss = torch.zeros(6), 0.0
    for part in parts:
        passes = Passes(Table(), objective, settings, lambda done, tokens: None)
        stats = passes.forward_backward(part)
        loss += stats.loss
        if part.samples:
            total += passes.backend.logprobs.grad
    assert total.tolist() == pytest.approx(gradient)
    assert loss == pytest.approx(sum(gradient))  # rho is 1

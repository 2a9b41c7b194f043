"""Learners that divide the work of one, in processes of their own: its gradient."""

import dataclasses

import numpy as np
import pytest
import torch
from few_cases import few
from test_backend import LENGTHS, samples
from test_exchange import meet
from test_shards import GRPO, LRS, PPO, batch, joined, learner_on

from unslothrl.errors import UserError
from unslothrl.learners.exchange import pack, unpack

pytestmark = pytest.mark.real

LARGEST, RELATIVE = 1e-6, 5e-6  # of a gradient's difference; of a tensor's difference, by norms


def known(learner) -> list:
    """Samples with shared prompts, and what the learner says of them."""
    plain = list(samples())
    plain[1:4] = [dataclasses.replace(s, prompt_ids=plain[0].prompt_ids) for s in plain[1:4]]
    return [
        dataclasses.replace(
            s,
            **measured,
            sampler_logprobs=measured["logprobs"] + np.float32(0.01),
            returns=np.linspace(0, 1, s.tokens, dtype=np.float32),
        )
        for s, measured in zip(plain, learner.measure(plain, reference=True), strict=True)
    ]


def gradients(learner, part) -> dict[str, np.ndarray]:
    """By name, summed over all learners where there are several."""
    update = learner.forward_backward(part)
    parameters = learner._parameters()
    if learner.exchange is not None:
        unpack(learner.exchange.sum(pack(parameters, True), 60.0), parameters)
    names = [name for each in learner._trained().values() for name in each]
    found = {n: p.grad.numpy() for n, p in zip(names, parameters, strict=True)}
    return {**found, "loss": np.array(update.loss), "difference": update.difference}


def together(rank, world_size, address, stores, base, split, settings):
    """-> what is measured and the gradient, as one of several learners."""
    learner = joined(rank, world_size, address, stores, base, split, settings)
    whole = known(learner)
    each = learner.config.learners_per_part
    parts = np.array_split(np.arange(len(whole)), world_size // each)
    part = batch(whole[i] for i in parts[rank // each])
    found = gradients(learner, part)
    learner.close()
    return [each.logprobs for each in whole], found


CONTEXT, SHARDS = "context_parallel", "learner_shards"
TENSORS, STAGES = "learner_tensor_parallel", "pipeline_stages"
CASES = {
    "context": (2, {CONTEXT: 2}, GRPO),
    "tensors": (2, {TENSORS: 2}, GRPO),
    "stages": (2, {STAGES: 2}, GRPO),
    "context, ppo, recomputed, a shared base": (
        2, {CONTEXT: 2, SHARDS: 2}, {**PPO, "recompute": True},
    ),
    "context, two groups": (4, {CONTEXT: 2}, GRPO),
    "context, ppo, four, keys repeated, a shared base": (4, {CONTEXT: 4, SHARDS: 2}, PPO),
    "tensors, ppo, recomputed": (2, {TENSORS: 2}, {**PPO, "recompute": True}),
    "stages, ppo, recomputed": (2, {STAGES: 2}, {**PPO, "recompute": True}),
    "stages, padded, two groups": (4, {STAGES: 2}, {**GRPO, "packs": False}),
}  # fmt: skip


@pytest.mark.parametrize("case", few(CASES))
def test_several_get_the_gradient_of_one(case, bases):
    world_size, split, settings = CASES[case]
    base = bases["biases"]
    learner = learner_on(base, 0, {}, settings)
    whole = known(learner)
    expected = gradients(learner, batch(whole))
    found = meet(together, world_size, base, split, settings)
    logprobs, _ = found[-1]
    for one, other in zip(logprobs, whole, strict=True):
        assert np.abs(one - other.logprobs).max() <= 2e-6
    for _, gradient in found:
        for name in expected.keys() - {"loss", "difference"}:
            difference = gradient[name] - expected[name]
            assert np.abs(difference).max() <= LARGEST, name
            assert np.linalg.norm(difference) <= RELATIVE * np.linalg.norm(expected[name]), name
    if world_size == 2:
        assert float(found[-1][1]["loss"]) == pytest.approx(float(expected["loss"]), abs=1e-6)
        assert len(found[-1][1]["difference"]) == sum(n for _, n in LENGTHS)


def test_heads_that_cannot_be_dealt_are_refused(bases):
    with pytest.raises(UserError, match="heads"):
        learner_on(bases["plain"], 0, {CONTEXT: 3}, GRPO)
    with pytest.raises(UserError, match="plain attention"):
        learner_on(bases["plain"], 0, {CONTEXT: 2}, {**GRPO, "packs": False})


def run_out(rank, world_size, address, stores, base, fails_at):
    """Rank 1 runs out of memory at an exchange. -> the checksum and note of an update."""
    learner = joined(rank, world_size, address, stores, base, {CONTEXT: 2}, GRPO)
    learner.passes.micro_batch = 4
    context, plain = learner.backend.split.context, learner.backend.split.context.exchanged
    left = [fails_at]

    def exchanged(parts: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        if rank == 1 and left[0] == 0:
            raise MemoryError("planted")
        return plain(parts)

    context.exchanged = exchanged
    done = learner.update(batch(samples()), LRS, deadline_s=60.0)
    return done.checksum, done.note


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", [2, 7])
def test_memory_that_runs_out_in_one_is_agreed_on(fails_at, bases):
    found = meet(run_out, 2, bases["plain"], fails_at)
    assert found[0][0] == found[1][0]
    assert all("memory ran out" in note for _, note in found)

"""One, two and three learners on the embedded base: the same gradient, and equal adapters."""

import dataclasses

import numpy as np
import pytest
import torch
from few_cases import few
from test_backend import LENGTHS, learner_of, make_trained, samples
from test_exchange import meet

from unslothrl.algorithms import objectives
from unslothrl.backends import peft
from unslothrl.embedded import BASE
from unslothrl.learners.exchange import pack, unpack
from unslothrl.learners.learner import Learner
from unslothrl.records import Batch
from unslothrl.training.updates import split_batch

pytestmark = pytest.mark.real

FAMILIES = {  # what divides by a denominator of the whole batch
    "token": ("grpo", {"aggregation": "token"}),
    "sequence": ("grpo", {"aggregation": "sequence"}),
    "constant": ("grpo", {"aggregation": "constant"}),
    "KL in the loss": ("grpo", {"kl": "loss", "kl_coefficient": 0.05}),
    "critic": ("ppo", {}),
}
TOKENS = sum(completion for _, completion in LENGTHS)


def learner_on_embedded() -> Learner:
    """In float32, with a LoRA and a critic that are not zero."""
    backend = peft.load(BASE, dtype=torch.float32, rank=8, alpha=16, dropout=0.0, seed=0)
    learner = learner_of(backend, BASE, objective="ppo")
    make_trained(backend)
    return learner


def batches(learner: Learner) -> list[Batch]:
    """Eight samples of five prompts, and one alone, with what the learner says of them."""
    plain = list(samples())
    plain[1:4] = [dataclasses.replace(s, prompt_ids=plain[0].prompt_ids) for s in plain[1:4]]
    known = [
        dataclasses.replace(
            sample,
            **m,
            sampler_logprobs=tuple(m["logprobs"] + 0.01),
            returns=np.linspace(0, 1, sample.tokens),
        )
        for sample, m in zip(plain, learner.measure(plain, reference=True), strict=True)
    ]
    return [Batch(tuple(known), len(LENGTHS), TOKENS), Batch(tuple(known[:1]), 4, 30)]


def begin(learner: Learner, family: str, part: Batch) -> None:
    """Its gradient of a part of a batch, under the objective of a family."""
    name, parts = FAMILIES[family]
    learner.passes.objective = dataclasses.replace(objectives.load(name), **parts)
    learner.forward_backward(part)


def gradient(learner: Learner) -> np.ndarray:
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in learner.parameters()]
    return torch.cat([each.flatten() for each in found]).numpy()


def together(rank, world_size, address, stores, known):
    """-> for each family, a learner's gradient of each batch after the exchange."""
    torch.set_num_threads(1)
    learner, found = learner_on_embedded(), {}
    learner.store = stores.pop() if stores else None
    learner.join(rank, world_size, address)
    for family in FAMILIES:
        found[family] = []
        for batch in known:
            part = split_batch(batch, world_size)[rank]
            begin(learner, family, part)
            mine = learner.parameters()
            unpack(learner.exchange.sum(pack(mine, True), 60.0), mine)
            found[family].append((len(part.samples), gradient(learner)))
    learner.close()
    return found


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether every element is within 1e-6 of the gradient's norm. Other micro-batches of one
    learner differ as much: it is float32's rounding inside the model."""
    return np.abs(found - expected).max() <= 1e-6 * np.linalg.norm(expected)


@pytest.fixture(scope="module")
def one_learner() -> tuple[list[Batch], dict[str, list[np.ndarray]]]:
    """-> (the batches, one learner's gradient of each by family)."""
    learner = learner_on_embedded()
    known, found = batches(learner), {family: [] for family in FAMILIES}
    for family, gradients in found.items():
        for batch in known:
            begin(learner, family, batch)
            gradients.append(gradient(learner))
            assert np.abs(gradients[-1]).max() > 1e-2, family
    return known, found


@pytest.mark.slow
@pytest.mark.parametrize("learners", [2, 3])
def test_processes_get_the_gradient_of_one_learner(learners, one_learner):
    known, expected = one_learner
    found = meet(together, learners, known)
    for family in FAMILIES:
        for index, alone in enumerate(expected[family]):
            counts = [of_rank[family][index][0] for of_rank in found]
            assert sum(counts) == (8, 1)[index] and (min(counts) == 0) == (index == 1)
            for of_rank in found:
                assert close(of_rank[family][index][1], alone), family


@pytest.mark.parametrize("learners", few([2, 3]))
def test_learners_in_turn_get_the_gradient_of_one_learner(learners, one_learner):
    known, expected = one_learner
    several = [learner_on_embedded() for _ in range(learners)]
    for family in FAMILIES:
        for batch, alone in zip(known, expected[family], strict=True):
            for learner, part in zip(several, split_batch(batch, learners), strict=True):
                begin(learner, family, part)
            total = sum(pack(learner.parameters(), True) for learner in several)
            for learner in several:
                unpack(total.clone(), learner.parameters())
                assert close(gradient(learner), alone), family

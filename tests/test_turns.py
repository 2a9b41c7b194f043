"""Completions of several turns: only what was sampled is measured and trained on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_backend import learner_of
from test_learner import LRS

from unslothrl.backends import packing
from unslothrl.records import Batch, Sample

pytestmark = pytest.mark.real

PROMPT, TURNS = (20, 21, 22), ((30, 31, 32), (40, 41, 42, 43), (50, 51))
SAMPLED = (True,) * 3 + (False,) * 4 + (True,) * 2  # the middle one is the environment's answer


def of_turns(advantage: float = 1.0) -> Sample:
    """A turn of 3 tokens, an observation of 4, a turn of 2."""
    ids = sum(TURNS, ())
    advantages = np.full(5, advantage, np.float32)
    return Sample(PROMPT, ids, (-1.0,) * 5, advantages, 0, sampled=SAMPLED)


def whole(sample: Sample) -> Sample:
    """The same with every token sampled."""
    tokens = len(sample.completion_ids)
    advantages = np.ones(tokens, np.float32)
    return replace(sample, sampler_logprobs=(-1.0,) * tokens, advantages=advantages, sampled=None)


def others() -> list[Sample]:
    """Of the same prompt, and of another one; each wholly sampled, said in both ways."""
    ones = np.ones(4, np.float32)
    plain = Sample(PROMPT, (60, 61, 62, 63), (-1.0,) * 4, ones, 0)
    return [plain, Sample((9, 8), (70,), (-1.0,), ones[:1], 0, sampled=(True,))]


def gradients_of(backend, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    backend.model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in backend.parameters().items()}


@pytest.mark.parametrize("form", ["shared prompts", "packed", "padded"])
def test_sampled_tokens_are_those_of_the_whole_sequence(form, bases, make_backend):
    """As if all were sampled, which they attend to; the gradient is that of these tokens alone."""
    backend = make_backend(bases["plain"], dtype="float32", packs=form != "padded")
    backend.shares_prompts = form == "shared prompts"
    backend.add_critic(seed=0)
    torch.nn.init.normal_(backend.value_head.weight)
    chosen = [of_turns(), *others()]
    full = [whole(chosen[0]), *others()]
    kept = torch.tensor(SAMPLED + (True,) * 5)
    found, entropies = backend.token_logprobs(chosen, 1.3)
    assert found.shape == entropies.shape == (sum(s.tokens for s in chosen),) == (10,)
    everything, all_entropies = backend.token_logprobs(full, 1.3)
    assert torch.allclose(found, everything[kept], atol=1e-6)
    assert torch.allclose(entropies, all_entropies[kept], atol=1e-6)
    weights = torch.linspace(-1, 1, 10)
    expected = gradients_of(backend, (everything[kept] * weights).sum())
    for name, gradient in gradients_of(backend, (found * weights).sum()).items():
        assert torch.allclose(gradient, expected[name], atol=1e-5), name
    with torch.no_grad(), backend.critic():
        values, all_values = backend.token_values(chosen), backend.token_values(full)
    assert torch.allclose(values, all_values[kept], atol=1e-6) and values.std() > 0


@pytest.mark.parametrize("packs", [True, False])
def test_where_all_are_sampled_nothing_changes(packs, bases, make_backend):
    backend = make_backend(bases["biases"], packs=packs)
    plain = [whole(of_turns()), *others()]
    marked = [replace(s, sampled=(True,) * len(s.completion_ids)) for s in plain]
    one, other = (backend.token_logprobs(batch, 1.3)[0] for batch in (plain, marked))
    assert torch.equal(one, other)
    first, second = (gradients_of(backend, values.sum()) for values in (one, other))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_rows_and_targets_by_hand():
    """Prompt 20 21 22, then 30 31 32 | 40 41 42 43 | 50 51: 30 is predicted at place 2, 50 at 9."""
    cpu = torch.device("cpu")
    pack = packing.packed([of_turns()], cpu)
    assert pack.rows.tolist() == [2, 3, 4, 9, 10]
    assert pack.targets.tolist() == [30, 31, 32, 50, 51]
    assert pack.ids[0, :12].tolist() == [20, 21, 22, *sum(TURNS, ())]
    ids, (rows, columns), targets = packing.padded([*others(), of_turns()], cpu)
    assert ids.shape == (3, 12)
    assert rows.tolist() == [0] * 4 + [1] + [2] * 5
    assert columns.tolist() == [2, 3, 4, 5, 1, 2, 3, 4, 9, 10]
    assert targets.tolist() == [60, 61, 62, 63, 70, 30, 31, 32, 50, 51]


def test_the_learner_counts_sampled_tokens(bases, make_backend):
    """Its arrays have one value for each; an observation's tokens are in no sum."""
    learner = learner_of(make_backend(bases["plain"]), bases["plain"], objective="ppo")
    chosen = [of_turns(0.5), *others()]
    known = [
        replace(s, **m, returns=np.ones(s.tokens, np.float32))
        for s, m in zip(chosen, learner.measure(chosen, reference=True), strict=True)
    ]
    for sample in known:
        for values in (sample.logprobs, sample.reference, sample.values):
            assert values.shape == (sample.tokens,)
    update = learner.update(Batch(tuple(known), 3, 10), LRS)
    assert update.tokens == len(update.values) == len(update.returns) == 10

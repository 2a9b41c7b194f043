"""The learner's updates on a real 4-bit base: critic, old log-probabilities, skipped steps."""

import dataclasses

import numpy as np
import pytest
import torch
from few_cases import few
from test_backend import LENGTHS, LRS, check_close, learner_of, samples

from unslothrl.algorithms.objective import Objective
from unslothrl.learners.learner import Learner, checksum
from unslothrl.records import Batch

pytestmark = pytest.mark.real


def batch(parts) -> Batch:
    return Batch(tuple(parts), len(LENGTHS), sum(completion for _, completion in LENGTHS))


def measured(learner, reference: bool = False):
    """The samples with what the learner says of them now, and returns for a critic."""
    plain = samples()
    return [
        dataclasses.replace(s, **m, returns=np.linspace(0, 1, len(s.completion_ids)))
        for s, m in zip(plain, learner.measure(plain, reference), strict=True)
    ]


def weights(parameters) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def changed(parameters, before) -> set[str]:
    return {name for name, p in parameters.items() if not torch.equal(p, before[name])}


def test_what_is_measured_is_what_the_first_update_sees(bases, make_backend):
    """In the order of the samples, and so that the ratio of the first update is 1."""
    learner = learner_of(make_backend(bases["plain"], dtype="float32"), bases["plain"])
    known = measured(learner, reference=True)
    for sample in known:
        assert sample.logprobs.shape == (len(sample.completion_ids),)
        assert sample.values is None
    with torch.no_grad(), learner.backend.reference():
        alone = learner.backend.token_logprobs([known[4]], 1.2)[0]
    assert known[4].reference == pytest.approx(alone.numpy(), abs=1e-5)
    plain = learner.forward_backward(batch(samples()))
    fresh = {n: p.grad.clone() for n, p in learner.backend.parameters().items()}
    assert learner.forward_backward(batch(known)).loss == pytest.approx(plain.loss, abs=1e-6)
    for name, parameter in learner.backend.parameters().items():
        assert torch.allclose(parameter.grad, fresh[name], atol=1e-6), name


def test_a_second_update_sees_the_old_policy(bases, make_backend):
    """True old log-probabilities: after a step the ratio moves, and a narrow clip acts."""
    learner = learner_of(make_backend(bases["plain"]), bases["plain"], objective="gspo")
    known = measured(learner)
    first = learner.forward_backward(batch(known))
    learner.step({"lora": 1e-2})
    second = learner.forward_backward(batch(known))
    assert first.clipped == 0 < second.clipped
    assert np.array_equal(first.difference, second.difference)  # from before any update
    assert learner.forward_backward(batch(samples())).clipped == 0  # as if it were a new rollout


@pytest.mark.parametrize("kind", few(["biases", "plain"]))
def test_the_critic_is_a_second_lora_that_leaves_the_policy_alone(kind, bases, make_backend):
    backend = make_backend(bases[kind])
    expected = learner_of(backend, bases[kind]).forward_backward(batch(samples()))
    gradient = {n: p.grad.clone() for n, p in backend.parameters().items()}

    learner = learner_of(backend, bases[kind], objective="ppo")
    assert {s.values.any() for s in measured(learner)} == {np.False_}  # it says 0 at first
    known = measured(learner)
    learner.passes.objective = dataclasses.replace(learner.passes.objective, aggregation="sequence")
    assert learner.forward_backward(batch(known)).loss == expected.loss
    for name, parameter in backend.parameters().items():
        assert torch.equal(parameter.grad, gradient[name]), name
    policy, critic = weights(backend.parameters()), weights(backend.critic_parameters())
    before = learner.publish(1)
    learner.step({"lora": 0.0, "critic": 1e-2})
    assert changed(backend.parameters(), policy) == set()
    assert learner.publish(1) == before  # the adapter that travels has no critic in it
    moved = changed(backend.critic_parameters(), critic)
    assert "value_head.weight" in moved  # the head is 0, so B moves from step 2 on, A from 3
    for _ in "AB":
        learner.forward_backward(batch(known))
        learner.step({"lora": 0.0, "critic": 1e-2})
    assert len(changed(backend.critic_parameters(), critic)) == len(critic)


def test_the_critic_learns_what_it_is_told(bases, make_backend):
    learner = learner_of(make_backend(bases["plain"]), bases["plain"], objective="ppo")
    losses = []
    for _ in range(12):
        known = measured(learner)
        losses.append(learner.forward_backward(batch(known), train_policy=False).value_loss)
        learner.step({"lora": 0.0, "critic": 1e-2})
    assert losses[-1] < 0.2 * losses[0]


def test_a_frozen_policy_stays_while_the_critic_moves(bases, make_backend):
    learner = learner_of(make_backend(bases["plain"]), bases["plain"], objective="ppo")
    before = learner.publish(1)
    critic = weights(learner.backend.critic_parameters())
    stats = learner.forward_backward(batch(measured(learner)), train_policy=False)
    result = learner.step(LRS)
    assert learner.publish(1) == before and changed(learner.backend.critic_parameters(), critic)
    assert np.isfinite(stats.loss) and result.grad_norm == 0 and result.critic_grad_norm > 0


def test_the_critics_gradient_does_not_depend_on_micro_batches(bases, make_backend):
    found = {}
    for size in (1, 8):
        backend = make_backend(bases["plain"], dtype="float32")
        learner = learner_of(backend, bases["plain"], size, objective="ppo")
        torch.nn.init.constant_(backend.value_head.weight, 1e-3)
        learner.forward_backward(batch(measured(learner)))
        found[size] = {n: p.grad.clone() for n, p in backend.critic_parameters().items()}
    check_close(found[1], found[8])


@pytest.mark.parametrize("bad", few([float("nan"), float("inf")]))
def test_a_gradient_that_is_not_finite_changes_nothing(bad, bases, make_backend):
    learner = learner_of(make_backend(bases["plain"]), bases["plain"])
    learner.forward_backward(batch(samples()))
    learner.step(LRS)
    before = learner.save_state()
    spoilt = list(samples())
    spoilt[2] = dataclasses.replace(spoilt[2], advantages=spoilt[2].advantages * bad)
    learner.forward_backward(batch(spoilt))
    result = learner.step(LRS)
    assert result.skipped and not np.isfinite(result.grad_norm)
    assert learner.save_state() == before  # neither weights nor moments
    learner.forward_backward(batch(spoilt))
    assert learner.step(LRS, finite=False).skipped and learner.save_state() == before
    learner.forward_backward(batch(samples()))
    assert not learner.step(LRS).skipped and learner.save_state() != before


def test_the_entropy_bonus_reaches_the_weights(bases, make_backend):
    """With no advantage at all, one step of the bonus raises the entropy."""
    learner = learner_of(make_backend(bases["plain"], dtype="float32"), bases["plain"])
    learner.passes.objective = Objective(entropy_coefficient=1.0)
    flat = [dataclasses.replace(s, advantages=s.advantages * 0) for s in samples()]
    first = learner.forward_backward(batch(flat))
    learner.step({"lora": 1e-2})
    assert learner.forward_backward(batch(flat)).entropy_sum > first.entropy_sum


def test_the_kl_in_the_loss_pulls_towards_the_reference(bases, make_backend):
    learner = learner_of(make_backend(bases["plain"], dtype="float32"), bases["plain"])
    learner.passes.objective = Objective(kl="loss", kl_estimator="k2", kl_coefficient=1.0)
    flat = [dataclasses.replace(s, advantages=s.advantages * 0) for s in samples()]
    first = learner.forward_backward(batch(flat))
    for _ in range(5):
        learner.step({"lora": 3e-3})
        last = learner.forward_backward(batch(flat))
    assert 0 < last.loss < 0.7 * first.loss


def test_weight_decay_reaches_the_optimiser(bases, make_backend):
    learner = learner_of(make_backend(bases["plain"]), bases["plain"])
    learner.config = dataclasses.replace(learner.config, weight_decay=0.5)
    optimizer = learner._optimizer(learner.backend.parameters())
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.5}


def test_update_is_a_gradient_and_a_step(bases, make_backend):
    one, other = (learner_of(make_backend(bases["plain"]), bases["plain"]) for _ in "ab")
    done = one.update(batch(samples()), LRS)
    stats = other.forward_backward(batch(samples()))
    assert done.grad_norm == other.step(LRS).grad_norm
    assert done.loss == stats.loss and one.save_state() == other.save_state()
    assert done.checksum == checksum(one.parameters())
    spoilt = [dataclasses.replace(s, advantages=s.advantages * np.nan) for s in samples()]
    skipped = one.update(batch(spoilt), LRS)
    assert skipped.skipped and np.isnan(skipped.grad_norm)
    assert one.save_state() == other.save_state()


@pytest.mark.parametrize("objective", ["grpo", "ppo"])
def test_a_part_may_be_empty(objective, bases, make_backend):
    """Alone it changes nothing but what weight decay and moments do; its arrays have no tokens."""
    learner = learner_of(make_backend(bases["plain"]), bases["plain"], objective=objective)
    before = learner.publish(1)
    done = learner.update(batch([]), LRS)
    assert (done.loss, done.grad_norm, done.skipped) == (0.0, 0.0, False)
    assert (done.tokens, done.sources) == (0, [])
    assert (done.values is None) == (objective == "grpo")
    assert learner.measure([], reference=True) == [] and learner.publish(1) == before


@pytest.mark.parametrize("train_policy", few([True, False]))
def test_learners_in_one_process_step_as_one(train_policy, bases, make_backend):
    """The first gradient within 1e-6 of its norm of the whole batch's, and both learners alike."""
    whole, *pair = (
        learner_of(make_backend(bases["plain"], dtype="float32"), bases["plain"], objective="ppo")
        for _ in "abc"
    )
    known = measured(whole)
    expected = whole.update(batch(known), LRS, train_policy)
    parts = [batch(known[0::2]), batch(known[1::2])]
    for result in Learner.update_in_turn(pair, parts, LRS, train_policy):
        assert result.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
        assert result.critic_grad_norm == pytest.approx(expected.critic_grad_norm, rel=1e-5)
    for name, parameter in whole.backend.parameters().items():
        assert torch.allclose(parameter, pair[0].backend.parameters()[name], atol=2e-5), name
    for _ in "ab":
        Learner.update_in_turn(pair, parts, LRS, train_policy)
    assert pair[0].save_state() == pair[1].save_state()
    before = pair[0].save_state()
    spoilt = [dataclasses.replace(s, returns=s.returns * np.nan) for s in known[1::2]]
    done = Learner.update_in_turn(pair, [parts[0], batch(spoilt)], LRS, train_policy)
    assert [one.skipped for one in done] == [True, True]
    assert pair[0].save_state() == pair[1].save_state() == before


@pytest.mark.parametrize(
    ("objective", "mean_length", "scale"), [("grpo", 6, 2**14), ("rloo", 1_200, 2**12)]
)
def test_gradients_in_float16_do_not_vanish_in_a_large_batch(
    objective, mean_length, scale, bases, make_backend
):
    """Of which these samples are a small part: their losses are divided by the whole, 2**18.9
    tokens. With rloo a token weighs as much as its sequence, however long: of 2**16.3."""
    whole = Batch(samples(), 80_000, 80_000 * mean_length)
    found = {}
    for dtype in ("float32", "float16"):
        backend = make_backend(bases["plain"], dtype=dtype)
        learner = learner_of(backend, bases["plain"], objective=objective)
        learner.forward_backward(whole)
        of_each = [p.grad.flatten() for p in learner.backend.parameters().values()]
        found[dtype] = torch.cat(of_each).double()
    assert learner.passes.scale == scale
    difference = found["float16"] - found["float32"]
    assert float(difference.norm() / found["float32"].norm()) < 0.01

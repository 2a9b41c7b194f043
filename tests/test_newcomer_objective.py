"""An objective in one new file: GMPO and a mask by entropy, as they stand in docs/algorithms.md."""

import pytest
import torch
from test_docs import documented_example
from test_objectives import make_case

from unslothrl.algorithms import objectives
from unslothrl.algorithms.losses import policy_loss


def gmpo(case) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The paper's formula, a completion at a time: -> (loss, log-probabilities, tokens clipped)."""
    logprobs = case.tokens().logprobs.requires_grad_()
    loss, clipped, start = torch.zeros((), dtype=torch.float64), 0, 0
    for i, length in enumerate(case.lengths):
        if not length:
            continue
        old = torch.tensor(case.rows["old"][i], dtype=torch.float64)
        advantage = case.rows["advantages"][i][0]
        sign = 1 if advantage > 0 else -1
        # min of sgn(A) log rho and the same clamped to +-0.4: one-sided, before the mean
        signed = sign * (logprobs[start : start + length] - old)
        bounded = torch.minimum(signed, signed.clamp(-0.4, 0.4))
        clipped += int((bounded != signed).sum())
        loss = loss - advantage * (sign * bounded).exp().prod() ** (1 / length)
        start += length
    return loss / len(case.lengths), logprobs, clipped


def high_entropy(case) -> tuple[torch.Tensor, torch.Tensor, int]:
    """DAPO's surrogate at the tokens of the highest entropies, a token at a time."""
    logprobs = case.tokens().logprobs.requires_grad_()
    loss, clipped, token = torch.zeros((), dtype=torch.float64), 0, 0
    for i, length in enumerate(case.lengths):
        ranked = sorted(case.rows["entropies"][i], reverse=True)
        # at least the 80th percentile: of 7 the first 2, of 12 the first 3, of 1, 3 and 5 the first
        kept = ranked[: {0: 0, 1: 1, 3: 1, 5: 1, 7: 2, 12: 3}[length]]
        for t in range(length):
            advantage, entropy = case.rows["advantages"][i][t], case.rows["entropies"][i][t]
            ratio = (logprobs[token] - case.rows["old"][i][t]).exp()
            bounded = ratio.clamp(0.8, 1.28)
            if entropy in kept:
                loss = loss - torch.minimum(ratio * advantage, bounded * advantage)
                clipped += bool(bounded * advantage < ratio * advantage)
            token += 1
    return loss / sum(case.lengths), logprobs, clipped


def test_an_advantage_by_hand(tmp_path):
    (tmp_path / "mine.py").write_text(documented_example(1))
    objective = objectives.load(str(tmp_path / "mine.py"))
    found = objective.advantage([[1.0, 0.0, 0.0, 0.0], [0.1] * 7], ddof=0, epsilon=0.0)
    assert found == [pytest.approx([2, -2 / 3, -2 / 3, -2 / 3]), [0.0] * 7]  # (1 - 1/4) / (3/8)


def on_policy_sampler(case, order=None, logprobs=None):
    """Sampled by the old policy itself, as in the papers: nothing to correct."""
    return case.tokens(order, logprobs=logprobs, sampler=case.tokens(order).old)


@pytest.mark.parametrize(("number", "by_hand"), [(2, gmpo), (3, high_entropy)])
@pytest.mark.parametrize("seed", range(2))
def test_loss_and_gradient_are_the_papers(number, by_hand, seed, tmp_path):
    """And micro-batches add up to the batch."""
    (tmp_path / "mine.py").write_text(documented_example(number))
    objective = objectives.load(str(tmp_path / "mine.py"))
    case = make_case(seed, [7, 1, 0, 12, 3, 5], spread=0.5)
    expected, theirs, clipped = by_hand(case)
    expected.backward()
    ours = case.tokens().logprobs.requires_grad_()
    loss = policy_loss(objective, on_policy_sampler(case, logprobs=ours), case.over())
    loss.value.backward()
    assert loss.value.item() == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-6)
    assert loss.clipped == clipped > 0
    for cut in (1, 4):
        parts = [on_policy_sampler(case, part) for part in (range(cut), range(cut, 6))]
        values = [policy_loss(objective, part, case.over()).value.item() for part in parts]
        assert sum(values) == pytest.approx(expected.item(), abs=1e-9)

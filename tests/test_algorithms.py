"""Every part of the maths against numbers worked out by hand."""

import dataclasses
import itertools
import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unslothrl.algorithms import advantages, divergence, losses, objectives, selection
from unslothrl.algorithms.advantages import ADVANTAGES
from unslothrl.algorithms.losses import Clip, Denominators, Tokens, policy_loss, value_loss
from unslothrl.algorithms.objective import Objective, learning_rate_share
from unslothrl.records import Update


def logs(*values: float) -> torch.Tensor:
    return torch.tensor([math.log(value) for value in values], dtype=torch.float64)


def numbers(*values: float, gradient: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=gradient)


@pytest.mark.parametrize(
    ("name", "options", "rewards", "expected"),
    [
        # mean of 1, 0, 0, 1 is 1/2; of 3, 0, 0 it is 1
        ("centred", {}, [[1, 0, 0, 1], [3, 0, 0]], [[0.5, -0.5, -0.5, 0.5], [2, -1, -1]]),
        # mean 2, deviations -1 0 1 -> population variance 2/3, std 0.81650; 1 / 0.81650 = 1.22474
        ("standardised", {}, [[1, 2, 3]], [[-1.2247449, 0, 1.2247449]]),
        # of the sample: variance 2/2 = 1, and with epsilon 1e-4: 1 / 1.0001
        ("standardised", {"ddof": 1, "epsilon": 1e-4}, [[1, 2, 3]], [[-1 / 1.0001, 0, 1 / 1.0001]]),
        # centred: 1 -1 | 3 -3; variance (1 + 1 + 9 + 9) / 4 = 5, std 2.236068
        ("batch_standardised", {}, [[2, 0], [6, 0]],
         [[0.4472136, -0.4472136], [1.3416408, -1.3416408]]),
        # 1 - (0 + 2) / 2 = 0, 0 - (1 + 2) / 2 = -1.5, 2 - (1 + 0) / 2 = 1.5
        ("leave_one_out", {}, [[1, 0, 2]], [[0, -1.5, 1.5]]),
    ],
)  # fmt: skip
def test_advantages_by_hand(name, options, rewards, expected):
    found = ADVANTAGES[name]([list(map(float, group)) for group in rewards], **options)
    for group, values in zip(found, expected, strict=True):
        assert group == pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize("rewards", [[0.3] * 3, [0.1] * 7, [1.3], [0.0, 0.0]])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_group_of_equals_or_of_one_has_no_signal(name, rewards):
    # 0.1 * 7 does not sum to 0.7 in floating point: the advantage must be 0 all the same
    assert ADVANTAGES[name]([rewards]) == [[0.0] * len(rewards)]
    for options in ({}, {"epsilon": 0.0} if "standardised" in name else {}):
        beside = ADVANTAGES[name]([rewards, [1.0, 0.0]], **options)
        assert beside[0] == [0.0] * len(rewards) and beside[1][0] > 0 > beside[1][1]


@pytest.mark.parametrize(
    ("rewards", "values", "gamma", "lam", "expected", "returns"),
    [
        # gamma = lambda = 0.5: delta_2 = 10 - 3 = 7, delta_1 = 0.5 * 3 - 2 = -0.5,
        # delta_0 = 0.5 * 2 - 1 = 0; A_2 = 7, A_1 = -0.5 + 0.25 * 7, A_0 = 0 + 0.25 * 1.25
        ([0, 0, 10], [1, 2, 3], 0.5, 0.5, [0.3125, 1.25, 7], [1.3125, 3.25, 10]),
        ([0, 0, 10], [1, 2, 3], 0.5, 1.0, [1.5, 3, 7], [2.5, 5, 10]),  # 0.5 * 3, -0.5 + 0.5 * 7
        ([1, 2, 4], [5, 5, 5], 1.0, 1.0, [2, 1, -1], [7, 6, 4]),  # returns 1 + 2 + 4, 2 + 4, 4
        ([3], [1], 0.9, 0.9, [2], [3]),
        ([], [], 0.9, 0.9, [], []),
    ],
)
def test_gae_by_hand(rewards, values, gamma, lam, expected, returns):
    arrays = np.array(rewards, float), np.array(values, float)
    assert [part.tolist() for part in advantages.gae(*arrays, gamma, lam)] == [expected, returns]


def test_whitening_is_over_all_tokens():
    # 1 2 | 3: mean 2, variance 2/3
    parts = advantages.whiten([np.array([1.0, 2.0]), np.array([3.0])])
    assert np.concatenate(parts) == pytest.approx([-1.2247449, 0, 1.2247449], abs=1e-6)
    assert advantages.whiten([]) == [] and len(advantages.whiten([np.array([])])[0]) == 0
    assert advantages.whiten([np.array([2.0, 2.0])])[0].tolist() == [0.0, 0.0]


def test_explained_variance():
    # returns 0 2, values 0 1: errors 0 1, variance 1/4 of 1
    assert advantages.explained_variance(np.array([0.0, 1.0]), np.array([0.0, 2.0])) == 0.75
    assert advantages.explained_variance(np.array([0.0, 1.0]), np.array([2.0, 2.0])) == 0.0


# Ratios: log-ratios ln 4 and ln 1 in the first sequence, ln 9 in the second


def test_ratios_by_hand():
    log_ratio, lengths = logs(4, 1, 9), [2, 1]
    assert losses.token(log_ratio, lengths).tolist() == pytest.approx([4, 1, 9])
    assert losses.sequence(log_ratio, lengths).tolist() == pytest.approx([2, 2, 9])  # sqrt(4 * 1)
    assert losses.trajectory(log_ratio, lengths).tolist() == pytest.approx([4, 4, 9])
    assert losses.one(log_ratio, lengths).tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", losses.RATIOS)
def test_ratios_on_policy_are_exactly_one_and_empty_sequences_are_fine(name):
    assert losses.RATIOS[name](torch.zeros(3), [0, 2, 0, 1]).tolist() == [1, 1, 1]
    assert losses.RATIOS[name](torch.zeros(0), [0, 0]).shape == (0,)


@pytest.mark.parametrize(
    ("ratios", "weights", "clip", "expected", "has_acted", "gradient"),
    [
        # min(1.5, 1.3) = 1.3 (clipped), min(0.5, 0.8) = 0.5, min(-1.5, -1.3) = -1.5,
        # min(-0.5, -0.8) = -0.8 (clipped)
        ((1.5, 0.5, 1.5, 0.5), (1, 1, -1, -1), Clip(0.2, 0.3), [-1.3, -0.5, 1.5, 0.8],
         [True, False, False, True], [0, -1, 1, 0]),
        # dual 3 bounds the loss of bad tokens alone: min is -2 * 10 = -20, the bound 3 * -2 = -6
        # (acts); at ratio 2 it is -4. Advantage +2 at ratio 10: clipped at 1.2 * 2 = 2.4 as ever.
        ((10, 2, 10), (-2, -2, 2), Clip(0.2, 0.2, 3.0), [6, 4, -2.4], [True, False, True],
         [0, 2, 0]),
    ],
)  # fmt: skip
def test_surrogate_clips_what_has_moved_too_far(
    ratios, weights, clip, expected, has_acted, gradient
):
    ratio = numbers(*ratios, gradient=True)
    terms, acted = losses.surrogate(ratio, ratio, numbers(*weights), clip)
    assert terms.tolist() == pytest.approx(expected) and acted.tolist() == has_acted
    terms.sum().backward()
    assert ratio.grad.tolist() == gradient


def test_weight_bounds_the_weight_and_keeps_the_gradient():
    # ratios 0.5, 3, 9 under 1 + 4 = 5 and no lower bound: weights 0.5, 3, 5 (bounded);
    # loss -w A log pi with A = 2 and log pi = -1, -2, -3: 1, 12, 30; gradient -w A: -1, -6, -10
    logprobs = numbers(-1, -2, -3, gradient=True)
    terms, acted = losses.weight(numbers(0.5, 3, 9), logprobs, numbers(2, 2, 2), Clip(1.0, 4.0))
    assert terms.tolist() == [1, 12, 30] and acted.tolist() == [False, False, True]
    terms.sum().backward()
    assert logprobs.grad.tolist() == [-1, -6, -10]


def test_no_clip_is_the_plain_product():
    terms, acted = losses.none(numbers(7.0), numbers(-1.0), numbers(2.0), Clip())
    assert terms.tolist() == [-14] and not acted.any()


def test_divergence_by_hand():
    # d = ln 2: k1 0.693147; k2 0.240227; k3 1/2 - 1 + 0.693147
    d = logs(2)
    expected = {"k1": 0.6931472, "k2": 0.2402265, "k3": 0.1931472}
    found = {name: estimate(d).item() for name, estimate in divergence.ESTIMATORS.items()}
    assert found == pytest.approx(expected)
    assert divergence.k3(d.numpy())[0] == pytest.approx(0.1931472)
    assert [k(torch.zeros(1)).item() for k in divergence.ESTIMATORS.values()] == [0, 0, 0]
    # KL of (0.5, 0.5) against (0.8, 0.2): 0.5 ln(0.5/0.8) + 0.5 ln(0.5/0.2) = 0.2231436
    for estimate in (divergence.k1, divergence.k3):  # which average to it
        assert estimate(logs(0.5 / 0.8, 0.5 / 0.2)).mean().item() == pytest.approx(0.2231436)


# Off-policy corrections: weights 4 and 1 in the first sequence, 0.1 in the second

OLD, SAMPLER = logs(4, 1, 0.1), logs(1, 1, 1)


@pytest.mark.parametrize(
    ("kind", "bounds", "expected", "has_acted"),
    [
        ("truncated", {}, [2, 1, 0.1], [True, False, False]),
        ("truncated", {"high": 3.0}, [3, 1, 0.1], [True, False, False]),
        ("masked", {}, [4, 1, 0], [False, False, True]),  # 0.5 to 5
        ("masked", {"low": 0.05, "high": 3.0}, [0, 1, 0.1], [True, False, False]),
        # geometric means 2 and 0.1: the first stays, whole; usual bounds keep neither
        ("geometric", {"low": 0.5, "high": 3.0}, [1, 1, 0], [False, False, True]),
        ("geometric", {}, [0, 0, 0], [True, True, True]),
    ],
)
def test_off_policy_corrections_by_hand(kind, bounds, expected, has_acted):
    factors, acted = losses.correction(kind, OLD, SAMPLER, [2, 1], **bounds)
    assert factors.tolist() == pytest.approx(expected) and acted.tolist() == has_acted


@pytest.mark.parametrize("kind", ("none", *losses.BOUNDS))
def test_corrections_are_one_where_sampler_and_learner_agree(kind):
    factors, acted = losses.correction(kind, OLD, OLD, [0, 2, 1])
    assert factors.tolist() == [1, 1, 1] and not acted.any()
    old = OLD.clone().requires_grad_()
    assert not losses.correction(kind, old, SAMPLER, [2, 1])[0].requires_grad
    assert losses.correction(kind, OLD[:0], OLD[:0], [0])[0].shape == (0,)


# Aggregation: terms 1 2 | (none) | 6, N = 3, 3 tokens, generation limit 10


def test_aggregation_by_hand():
    terms, lengths, over = numbers(1, 2, 6), [2, 0, 1], Denominators(3, 3, 10)
    assert losses.over_tokens(terms, lengths, over).item() == 3  # 9 / 3
    assert losses.over_sequences(terms, lengths, over).item() == 2.5  # (1.5 + 0 + 6) / 3
    assert losses.over_constant(terms, lengths, over).item() == pytest.approx(0.3)  # 9 / 30


def test_value_loss_by_hand():
    # value 3, return 1: (3 - 1)^2 / 2 = 2. Clipped to old 2.5 + 0.2 = 2.7: (2.7 - 1)^2 / 2 = 1.445,
    # the larger counts. Value 1, return 1, old 2: 0, clipped 1.8: 0.8^2 / 2 = 0.32 counts.
    values, returns = numbers(3, 1, gradient=True), numbers(1, 1)
    objective, over = Objective(aggregation="token"), Denominators(2, 1, 1)  # a sum
    loss = value_loss(objective, [1, 1], values, numbers(2.5, 2), returns, over, clip=0.2)
    assert loss.item() == pytest.approx(2 + 0.32)
    loss.backward()
    assert values.grad.tolist() == [2, 0]  # the clipped one no longer moves
    assert value_loss(objective, [1, 1], values, numbers(0, 0), returns, over, 0.0).item() == 2


def test_topk_keeps_the_best_in_candidate_order():
    assert selection.topk([0.1, 0.9, -1.0, 0.5], k=2, seed=0) == [1, 3]
    assert selection.topk([0.1, 0.9], k=2, seed=0) == [0, 1]


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=7), st.integers(1, 7), st.integers(0, 99))
def test_max_variance_is_the_best_of_all_subsets(rewards, k, seed):
    k = min(k, len(rewards))
    chosen = selection.max_variance([float(r) for r in rewards], k, seed)
    best = max(statistics.pvariance(s) for s in itertools.combinations(rewards, k))
    assert statistics.pvariance([rewards[i] for i in chosen]) == pytest.approx(best)


def test_balanced_takes_as_many_of_both_sides_as_there_are():
    rewards = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    for seed in range(10):
        chosen = selection.balanced(rewards, k=4, seed=seed)
        assert len(chosen) == 4 and sum(rewards[i] for i in chosen) == 2
        # one above: the others fill the rest
        assert selection.balanced([1.0, 0.0, 0.0, 0.0], k=4, seed=seed) == [0, 1, 2, 3]
    assert sum(rewards[i] for i in selection.balanced(rewards, k=3, seed=0)) == 2


@pytest.mark.parametrize("name", selection.SELECTIONS)
@given(
    rewards=st.lists(st.floats(-2, 2), min_size=1, max_size=9),
    k=st.integers(1, 9),
    seed=st.integers(0, 2**62),
)
def test_a_selection_is_a_set_of_indices_that_the_seed_decides(name, rewards, k, seed):
    choose = selection.SELECTIONS[name]
    chosen = choose(rewards, k, seed)
    assert chosen == sorted(set(chosen)) and set(chosen) <= set(range(len(rewards)))
    assert len(chosen) == (len(rewards) if name == "all" else min(k, len(rewards)))
    assert chosen == choose(rewards, k, seed)


@pytest.mark.parametrize("name", ["topk", "balanced", "random", "max_variance"])
def test_ties_and_draws_follow_the_seed(name):
    picks = {tuple(selection.SELECTIONS[name]([1.0] * 6, 2, seed)) for seed in range(40)}
    assert len(picks) > 5


MIDDLE = (0.01, 0.99)
DAPO = (objectives.load("dapo").filter_low, objectives.load("dapo").filter_high)
ONE_RIGHT, ONE_WRONG = [1.0] + [0.0] * 1023, [1.0] * 1023 + [0.0]


@pytest.mark.parametrize(
    ("rewards", "scores", "bounds", "kept"),
    [
        ([1.0, 0.0], [1.0, 0.0], MIDDLE, True),
        ([1.0, 1.1], [1.0, 1.0], MIDDLE, False),  # all solved, formats differ
        ([0.0, 0.1], [0.0, 0.0], MIDDLE, False),
        ([0.5, 0.5], [1.0, 0.0], MIDDLE, False),  # nothing to prefer
        ([0.0, 0.1], [0.0, 0.0], (0.0, 1.0), True),
        ([1.0, 1.1], [1.0, 1.0], DAPO, False),
        ([0.0, 0.1], [0.0, 0.0], DAPO, False),
        (ONE_RIGHT, ONE_RIGHT, DAPO, True),
        (ONE_WRONG, ONE_WRONG, DAPO, True),
        # a scale of their own, as DAPO's rewards are 1 and -1: the mean is no accuracy
        ([1.0, -1.0, -1.0], [1.0, -1.0, -1.0], DAPO, True),
        ([2.0, 0.0, 2.0], [2.0, 0.0, 2.0], DAPO, True),
        ([-200.0, -100.0, -150.0], [-200.0, -100.0, -150.0], DAPO, True),
        ([0.5] * 3, [1.0, -1.0, -1.0], DAPO, False),
    ],
)
def test_groups_are_kept_by_accuracy_and_signal(rewards, scores, bounds, kept):
    assert selection.keeps(rewards, scores, *bounds) is kept


def test_how_many_prompts_to_draw_next():
    # half of 8 were kept, 4 are missing: 8 more; none kept: a whole batch; never more than that
    assert selection.how_many_to_draw(4, kept=4, drawn=8, at_most=32) == 8
    assert selection.how_many_to_draw(4, kept=0, drawn=8, at_most=32) == 32
    assert selection.how_many_to_draw(30, kept=1, drawn=32, at_most=32) == 32
    assert selection.how_many_to_draw(1, kept=2, drawn=3, at_most=32) == 2  # 1.5, rounded up


def test_schedules_by_hand():
    # 2 of warm-up: 1/2, 1; then steps 3 to 7 of 7 go from 1 towards the floor 0.2 of an eighth
    linear = [learning_rate_share("linear", step, 7, warmup=2, floor=0.2) for step in range(1, 9)]
    assert linear == pytest.approx([0.5, 1, 1, 0.84, 0.68, 0.52, 0.36, 0.2])
    # cosine at the middle is half way; (1 + cos(pi / 4)) / 2 = 0.853553
    cosine = [learning_rate_share("cosine", step, 4) for step in range(1, 6)]
    assert cosine == pytest.approx([1, 0.8535534, 0.5, 0.1464466, 0])
    assert [learning_rate_share("constant", s, 3, warmup=4) for s in (1, 2, 3)] == [0.25, 0.5, 0.75]
    assert learning_rate_share("cosine", 1, 1) == 1.0 and learning_rate_share("linear", 9, 7) == 0.0


def test_diagnostics_by_hand():
    # differences 0 and ln 3: weights 1 and 3, (1 + 3)^2 / (2 (1 + 9)) = 0.8
    sampler = np.array([-1.0, -1.0 - math.log(3)])
    one = Update(difference=np.array([-1.0, -1.0]) - sampler, sources=[("actor-0", 3, 2)])
    result = divergence.sampler_agreement([[one]])
    assert result["train/sampler_gap"] == pytest.approx(math.log(3) / 2)
    assert result["train/ess"] == pytest.approx(0.8)
    (found,) = divergence.by_source(one).items()
    assert found == (("actor-0", 3), pytest.approx((2, math.log(3), math.log(3) ** 2)))


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("tokens", [1, 2, 3, 50, 101, 2000])
def test_parts_of_an_update_agree_as_the_whole_does(parts, tokens):
    """However they are dealt out: here the largest gaps may all be in the last part."""
    gaps = np.sort(np.random.default_rng(tokens).standard_exponential(tokens))
    ends = [tokens * i // parts for i in range(parts + 1)]
    dealt = [gaps[a:b] for a, b in itertools.pairwise(ends)]
    found = [Update(difference=-gap, sources=[("a", i, len(gap))]) for i, gap in enumerate(dealt)]
    result = divergence.sampler_agreement([found])
    weights = np.exp(-gaps)
    assert result["train/sampler_gap"] == pytest.approx(gaps.mean())
    assert result["train/sampler_gap_p99"] == np.percentile(gaps, 99)
    assert result["train/ess"] == pytest.approx(weights.sum() ** 2 / (tokens * (weights**2).sum()))
    sources = {key: value for part in found for key, value in divergence.by_source(part).items()}
    assert sum(tokens for tokens, *_ in sources.values()) == tokens
    assert sum(squares for *_, squares in sources.values()) == pytest.approx((gaps**2).sum())


def test_a_gap_that_is_no_number_shows():
    part = Update(difference=np.array([0.1, np.nan, *np.zeros(300)]), sources=[("a", 0, 302)])
    assert all(math.isnan(v) for v in divergence.sampler_agreement([[part]]).values())


@pytest.mark.parametrize(("advantage", "dual"), [(1.0, 0.0), (-1.0, 3.0), (0.0, 0.0)])
def test_a_trajectory_that_has_run_away_has_no_gradient_but_a_number(advantage, dual):
    """1,000 tokens, each 0.1 likelier: the product is beyond float32, and the clip holds it."""
    logprobs = torch.full((1000,), -1.0, requires_grad=True)
    objective = dataclasses.replace(
        objectives.load("rloo"), ratio="trajectory", clip_dual=dual, correction="none"
    )
    tokens = Tokens(
        [1000], logprobs, torch.zeros(1000), torch.full((1000,), advantage),
        logprobs.detach(), old=torch.full((1000,), -1.1),
    )  # fmt: skip
    loss = policy_loss(objective, tokens, Denominators(1, 1000, 1000)).value
    loss.backward()
    assert torch.isfinite(loss) and logprobs.grad.eq(0).all()

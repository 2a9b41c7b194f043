"""What completions say of a policy: by hand, by counting every case, and by drawing many sets."""

import itertools
import math
import statistics

import numpy as np
import pytest
from few_cases import few

from unslothrl.algorithms.estimates import best_of, estimate, paired, sign_test, t_quantile


def test_pass_at_k_by_hand():
    # 2 of 4 right: a pair has none in 1 of 6 cases
    assert best_of([1.0, 1.0, 0.0, 0.0], 2) == pytest.approx(5 / 6)
    assert [best_of([1.0] * c + [0.0] * (4 - c), 1) for c in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    for k in (0, 5):
        with pytest.raises(ValueError, match="best of"):
            best_of([1.0] * 4, k)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_best_of_k_is_the_mean_over_all_choices(k):
    scores = [0.0, 1.0, 0.5, 1.0, 0.25]
    every = [max(chosen) for chosen in itertools.combinations(scores, k)]
    assert best_of(scores, k) == pytest.approx(statistics.fmean(every))


def test_quantiles_are_those_of_the_tables():
    by_freedom = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045, 199: 1.972}
    for freedom, expected in by_freedom.items():
        assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=5e-4)
    assert t_quantile(0.9, 5) == pytest.approx(1.476, abs=5e-4)
    normal = statistics.NormalDist().inv_cdf(0.975)
    assert t_quantile(0.975, 100_000) == pytest.approx(normal, abs=1e-4)


def test_an_interval_of_independent_draws_is_wilsons():
    """60 of 100: 0.502 to 0.691 for the normal quantile (Wilson 1927), a little wider for t."""
    result = estimate([1.0] * 60 + [0.0] * 40)
    assert result.mean == 0.6
    assert result.low == pytest.approx(0.502, abs=3e-3) and result.low < 0.502
    assert result.high == pytest.approx(0.691, abs=3e-3) and result.high > 0.691


def test_intervals_at_the_edges():
    all_right = estimate([1.0] * 30)
    assert all_right.high == all_right.mean == 1 and all_right.low == pytest.approx(0.88, abs=0.01)
    none = estimate([0.0] * 30)
    assert none.low == none.mean == 0 and none.high == pytest.approx(1 - all_right.low)
    alike = estimate([0.5] * 30)  # as if each were one draw: nothing says that others are alike
    assert alike.low < 0.35 and alike.high > 0.65
    one = estimate([0.25])
    assert (one.mean, one.low, one.high) == (0.25, 0, 1)


def test_an_interval_does_not_shrink_for_values_that_only_rounding_tells_apart():
    """A third has no float, so that the mean of fifty of them is another number."""
    third, half = estimate([1 / 3] * 50), estimate([0.5] * 50)
    assert third.high - third.low == pytest.approx((half.high - half.low) * math.sqrt(8) / 3, 0.05)
    apart = estimate([0.1 + 0.2, 0.3] * 25)
    assert apart.low < 0.2 and apart.high > 0.4


def test_scores_on_a_scale_of_their_own_have_students_interval():
    # ten of 1, ten of -1: standard error sqrt(20 / 19) / sqrt(20), t of 19 degrees 2.093
    signs = estimate([1.0, -1.0] * 10)
    assert signs.mean == 0 and signs.high == -signs.low
    assert signs.high == pytest.approx(2.093 / math.sqrt(19), abs=1e-4)
    twos = estimate([2.0, 0.0] * 10)  # a mean of 1 is no proportion of 1
    assert (twos.low, twos.high) == pytest.approx((1 + signs.low, 1 + signs.high))
    assert estimate([-200.0, -100.0, -150.0]).low < -150 < estimate([-200.0, -100.0, -150.0]).high
    one = estimate([-3.0])
    assert (one.mean, one.low, one.high) == (-3, -3, 1)
    alone = paired([0.0], [2.0])
    assert (alone.low, alone.mean, alone.high, alone.p) == (-1, 2, 2, 1)


@pytest.mark.real  # a second each, too long for `make quick`
@pytest.mark.parametrize("n", few([1, 4, 8]))
@pytest.mark.parametrize(("a", "b"), few([(0.5, 0.5), (2, 1), (8, 0.5), (0.3, 4)]))
def test_intervals_cover_when_problems_and_completions_are_drawn_again(a, b, n):
    """500 sets of 200 problems, whose difficulties are drawn from Beta(a, b)."""
    draw = np.random.default_rng(0)
    truth = a / (a + b)
    right = draw.binomial(n, draw.beta(a, b, (500, 200))) / n
    found = [estimate(values.tolist()) for values in right]
    share = statistics.fmean(each.low <= truth <= each.high for each in found)
    assert 0.93 <= share <= 0.97


def test_a_difference_by_hand():
    # differences 0.5, 0.5, 0, 1: mean 0.5, standard error sqrt(1/6) / 2, t of 3 degrees 3.182
    result = paired([0.0, 0.5, 0.5, 0.0], [0.5, 1.0, 0.5, 1.0])
    half = 3.1824 * math.sqrt(1 / 6) / 2
    assert result.mean == 0.5
    assert (result.low, result.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-3)
    # of the 8 ways to give three differences signs, two are as far from 0
    assert result.p == 2 / 8


def test_signs_are_random_where_nothing_differs():
    assert sign_test((0.0, 0.0)) == 1 and paired([0.5] * 5, [0.5] * 5).p == 1
    draw = np.random.default_rng(2)
    shares = [sign_test(tuple(draw.standard_normal(12).tolist())) for _ in range(100)]
    assert statistics.fmean(share < 0.1 for share in shares) == pytest.approx(0.1, abs=0.05)


def test_many_differences_are_drawn_and_few_are_counted():
    for right, wrong, error in ((10, 4, 1e-9), (25, 10, 0.003)):
        # at least so many of one sign, either way
        count = right + wrong
        exact = 2 * sum(math.comb(count, k) for k in range(right, count + 1)) / 2**count
        drawn = sign_test((0.1,) * right + (-0.1,) * wrong)
        assert drawn == pytest.approx(exact, abs=error)
    assert sign_test((0.1,) * 60) == pytest.approx(0, abs=1e-4)

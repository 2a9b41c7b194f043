"""Estimates over problems, each with several completions, and how sure they are.

pass@k      1 - C(n - c, k) / C(n, k), for c right ones among n: the probability that one of k is
            right, without bias (Chen et al. 2021, "Evaluating Large Language Models Trained on
            Code", section 2.1)
interval    Wilson's for a proportion (1927), with the number of problems replaced by the effective
            one, p (1 - p) / (variance of the mean over problems), and that shortened for the
            degrees of freedom, as Korn and Graubard (1998) do for surveys: completions of one
            problem are alike, so they are no independent draws. Where a custom reward gives scores
            that are not from 0 to 1, Student's
paired      the mean difference of two policies on the same problems, its interval by Student's t,
            and the probability of one as large if signs were random: a permutation test
"""

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

LEVEL = 0.95
EXACT = 16  # problems that differ, up to which every way to give signs is tried
DRAWS = 20_000  # of signs, beyond
ROUNDING = 1e-12  # of a sum: what is nearer is equal


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems, with its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True)
class Difference(Estimate):
    """Of two policies on the same problems."""

    p: float  # of a difference as large, either way, if there were none

    def __str__(self) -> str:
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f}), {p}"


def best_of(scores: Sequence[float], k: int) -> float:
    """The mean, over all choices of k of a problem's scores, of the best: pass@k where they are 0
    or 1. A score is the best in C(those up to it, k) - C(those below it, k) choices of C(n, k).

    ValueError where k is not from 1 to n.
    """
    if not 1 <= k <= len(scores):
        raise ValueError(f"best of {k} among {len(scores)}")
    ways, up_to, choices, terms = math.comb(len(scores), k), 0, 0, []
    for score, count in sorted(Counter(scores).items()):
        up_to += count
        below, choices = choices, math.comb(up_to, k)
        terms.append(score * ((choices - below) / ways))
    return math.fsum(terms)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean and its interval; of a single problem all from 0 to 1."""
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return Estimate(mean, min(0.0, mean), max(1.0, mean))
    error = statistics.stdev(values, mean) / math.sqrt(count)
    t = t_quantile(0.5 + LEVEL / 2, count - 1)
    if min(values) < 0 or max(values) > 1:
        return Estimate(mean, mean - t * error, mean + t * error)
    z = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2)
    effective = mean * (1 - mean) / error**2 if error > ROUNDING else count
    effective *= (z / t) ** 2
    square = z * z / effective
    middle = (mean + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(mean * (1 - mean) / effective + square / (4 * effective))
    return Estimate(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)))


def t_quantile(share: float, freedom: int) -> float:
    """Of Student's t with so many degrees of freedom, for a share from a half to 1: where the
    probability of being within +-t reaches it, by halving the angle that t stands for."""
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        low, high = (angle, high) if t_within(angle, freedom) < 2 * share - 1 else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def t_within(angle: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) tan(angle)) (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for n in range(2 + is_odd, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (n - 1) / n
    return (angle + sine * total) * 2 / math.pi if is_odd else sine * total


def paired(before: Sequence[float], after: Sequence[float]) -> Difference:
    """`after` less `before`, over the same problems in the same order."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    count, mean = len(differences), statistics.fmean(differences)
    if count < 2:
        return Difference(mean, min(-1.0, mean), max(1.0, mean), 1.0)
    error = statistics.stdev(differences, mean) / math.sqrt(count)
    half = t_quantile(0.5 + LEVEL / 2, count - 1) * error
    return Difference(mean, mean - half, mean + half, sign_test(tuple(differences)))


@lru_cache(maxsize=64)  # a report asks for the same more than once
def sign_test(differences: tuple[float, ...]) -> float:
    """The share of all ways to give the differences signs whose sum is as far from 0 as theirs;
    of `DRAWS` random ones, theirs counted, where there are too many ways."""
    sizes = [abs(each) for each in differences if each]
    if not sizes:
        return 1.0
    observed = abs(math.fsum(differences)) - ROUNDING * math.fsum(sizes)
    if len(sizes) <= EXACT:
        sums = [0.0]
        for size in sizes:
            sums = [*(each + size for each in sums), *(each - size for each in sums)]
        return sum(abs(each) >= observed for each in sums) / len(sums)
    draw, as_far = random.Random(0), 1
    for _ in range(DRAWS):
        signs = draw.getrandbits(len(sizes))
        total = 0.0
        for size in sizes:
            total += size if signs & 1 else -size
            signs >>= 1
        as_far += abs(total) >= observed
    return as_far / (DRAWS + 1)

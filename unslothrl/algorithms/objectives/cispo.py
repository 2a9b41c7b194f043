"""Clipped importance sampling weights, MiniMax-M1, arXiv 2506.13585, equations 4 and 5.

    L = -1/sum_i |o_i| sum_i sum_t sg(min(rho_it, 1 + high)) A_i log pi(o_it)
    A_i = (R_i - mean(R)) / (std(R) + 1e-8)

Bounds the weight of a token instead of dropping its gradient, so rare tokens on which a change of
mind hangs keep teaching. 1 + high is 5, as ScaleRL (arXiv 2510.13786) and TRL have it; the paper
gives no number. There is no bound below.
"""

from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(
    advantage="standardised",
    ratio="token",
    clip="weight",
    clip_low=1.0,
    clip_high=4.0,
    aggregation="token",
)

"""Decoupled clip and dynamic sampling, arXiv 2503.14476, equations 8 to 13.

    L = -1/sum_i |o_i| sum_i sum_t min(rho_it A_i, clip(rho_it, 0.8, 1.28) A_i)
    0 < share of correct candidates < 1 in every group, prompts drawn again until that holds
    overlong   0 up to L_max - cache tokens, then falling to -1 at L_max   (rewards/overlong.py)

Truncated completions count in their group's statistics and stay out of the loss (section 3.4).
cache is min(1024, max_new_tokens / 4). Prompts are drawn again at most 4 times.
"""

from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(
    advantage="standardised",
    ratio="token",
    clip_low=0.2,
    clip_high=0.28,
    aggregation="token",
    mask_truncated=True,
    overlong=True,
    filter_low=1e-6,  # strictly between none and all, however many candidates there are
    filter_high=1 - 1e-6,
    max_resample=4,
)

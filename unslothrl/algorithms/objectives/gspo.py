"""Group sequence policy optimisation, arXiv 2507.18071, equations 5 to 7.

    L = -1/N sum_i min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)
    s_i = (prod_t rho_it)^(1/|o_i|),   A_i = (R_i - mean(R)) / (std(R) + 1e-8)

The ratio is the sequence's, as the reward is; it varies far less than a token's, hence the narrow
clip (section 5.1: 3e-4 and 4e-4).
"""

from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(
    advantage="standardised",
    ratio="sequence",
    clip_low=3e-4,
    clip_high=4e-4,
    aggregation="sequence",
)

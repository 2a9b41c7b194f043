"""Group relative policy optimisation, arXiv 2402.03300, equation 3.

    L = -1/N sum_i 1/|o_i| sum_t min(rho_it A_i, clip(rho_it, 1 - low, 1 + high) A_i)
    A_i = (R_i - mean(R)) / (std(R) + 1e-8)

Departs from the paper by no KL term (DistRL-LLM has none; `--objective.kl_coefficient 0.04` is the
paper's) and by the population's standard deviation.
"""

from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(advantage="standardised", ratio="token", aggregation="sequence")

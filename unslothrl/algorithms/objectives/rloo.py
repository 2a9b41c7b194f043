"""REINFORCE leave-one-out, arXiv 2402.14740, with PPO's clip as TRL has it.

    L = -1/N sum_i min(rho_i A_i, clip(rho_i, 1 - low, 1 + high) A_i),   rho_i = prod_t rho_it
    A_i = R_i - mean of the other R_j

A completion is one action, so its ratio is the product over its tokens and nothing is divided by
its length. The paper's KL in the reward is `kl = "reward"`, `kl_coefficient = 0.05`.
"""

from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(advantage="leave_one_out", ratio="trajectory", aggregation="sequence")

"""REINFORCE++ in its baseline variant, arXiv 2501.03262.

    L = -1/sum_i |o_i| sum_i sum_t min(rho_it A_i, clip(rho_it, 1 - low, 1 + high) A_i) + beta k2_it
    A_i = (R_i - mean(R)) / (std of all R_j - mean(R) of the batch + 1e-8)

The group gives the baseline and the batch the scale, so a group in which one candidate differs a
little does not weigh as much as one that is split. The KL is in the loss with k2, beta 0.001.
"""

from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(
    advantage="batch_standardised",
    ratio="token",
    aggregation="token",
    kl="loss",
    kl_estimator="k2",
    kl_coefficient=0.001,
)

"""Proximal policy optimisation with a critic, arXiv 1707.06347, equation 7.

    L = -1/sum_i |o_i| sum_i sum_t min(rho_it A_it, clip(rho_it, 1 - low, 1 + high) A_it)
    A_it by generalised advantage estimation over the critic's values, whitened over the batch
    the critic's loss: squared error with clipped values (losses.py)

The critic is a second LoRA and a value head on the same 4-bit base, with an optimiser of its own
(`critic_lr`); the two losses are stepped apart, so there is no value coefficient. Groups are not
compared: one candidate a prompt is enough.
"""

from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(advantage="gae", ratio="token", aggregation="token")

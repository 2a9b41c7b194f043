"""REINFORCE with a group baseline, as DistRL-LLM has it (Williams 1992).

    L = -1/N sum_i A_i 1/|o_i| sum_t log pi(o_it),   A_i = R_i - mean(R)

Departs from Williams by the mean over a completion's tokens instead of their sum.
"""

from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(advantage="centred", ratio="one", clip="none", aggregation="sequence")

"""GRPO done right, arXiv 2503.20783, section 3.2: without the two biases it names.

    L = -1/(N L_max) sum_i sum_t min(rho_it A_i, clip(rho_it, 1 - low, 1 + high) A_i)
    A_i = R_i - mean(R)

No standard deviation (questions that are nearly solved or hopeless weigh no more than others) and
no 1/|o_i| (long wrong answers are punished as much a token as short ones). L_max is
`--max_new_tokens`.
"""

from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(advantage="centred", ratio="token", aggregation="constant")

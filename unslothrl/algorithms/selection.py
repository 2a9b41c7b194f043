"""Which candidates of a group the learner trains on.

    topk   the k candidates with the highest advantage; k = n keeps all

Advantages come from the whole group first. Keeping only the best pushes only upwards (the mean
advantage of the selected is positive), which `train/selected_advantage_mean` shows.
"""

import random
from collections.abc import Sequence


def topk(advantages: Sequence[float], k: int, seed: int) -> list[int]:
    """The indices of the k highest advantages, in candidate order; ties are broken by `seed`."""
    draw = random.Random(seed)
    ranked = sorted(((-a, draw.random(), i) for i, a in enumerate(advantages)))
    return sorted(index for _, _, index in ranked[:k])

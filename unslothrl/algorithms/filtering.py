"""Which groups a step keeps, for dynamic sampling (DAPO, arXiv 2503.14476, section 3.2).

A group is kept when its accuracy, the mean score of its candidates, lies in [low, high], and its
rewards differ: with 1e-6 to 1 - 1e-6 that leaves out what every candidate solves or none does.
Where a custom reward gives scores that are not from 0 to 1 (1 and -1, or 2 and 0), their mean is no
accuracy: such a group is kept when its rewards differ. The loop draws other prompts in place of
those left out, at most `max_resample` times, so that the batch is full of groups that have
something to teach.

An objective that filters nothing keeps every group, also one without signal: it adds nothing to the
gradient, but it counts in the denominators, as in GRPO.
"""

import math
from collections.abc import Sequence

from unslothrl.algorithms.advantages import has_signal


def keeps(
    rewards: Sequence[float],  # [candidates]
    scores: Sequence[float],  # [candidates]
    low: float,
    high: float,
) -> bool:
    if not has_signal(rewards):
        return False
    if min(scores) < 0 or max(scores) > 1:
        return True
    return low <= math.fsum(scores) / len(scores) <= high


def how_many_to_draw(missing: int, kept: int, drawn: int, at_most: int) -> int:
    """Prompts to draw next, so that by the share kept so far `missing` of them are."""
    if kept == 0:
        return at_most
    return min(at_most, math.ceil(missing * drawn / kept))

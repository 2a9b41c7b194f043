"""The learning rate of a step, as a share of `--lr`.

    constant  1
    linear    from 1 at the first step after warm-up down to `floor`, which the step after the last
              would have
    cosine    the same on half a cosine, arXiv 1608.03983, equation 5 without restarts

Warm-up goes from 1 / warmup at the first step to 1 at step `warmup`, in equal steps. So every step
trains. After warm-up all are as in transformers, whose warm-up begins at 0.
"""

import math

SCHEDULES = ("constant", "linear", "cosine")


def share(kind: str, step: int, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """`step` counts from 1 to `total`. -> over 0, to 1; after warm-up over `floor`, or 1 where that
    is."""
    if step <= warmup:
        return step / warmup
    if kind == "constant":
        return 1.0
    done = min(1.0, (step - warmup - 1) / max(1, total - warmup))
    left = 1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2
    return floor + (1 - floor) * left

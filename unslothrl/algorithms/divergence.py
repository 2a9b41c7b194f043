"""Estimates of KL(policy || reference) from the policy's own samples (Schulman 2020,
http://joschu.net/blog/kl-approx.html), d = log pi - log pi_ref of the sampled token:

    k1 = d                   unbiased, of either sign
    k2 = d^2 / 2             biased, low variance; in the loss its gradient is that of the KL
    k3 = exp(-d) - 1 + d     unbiased, never negative; GRPO, arXiv 2402.03300, equation 4

In the reward (kl reward) the estimate is a number without gradient: reward_t - beta k. There
only k1 has the gradient of the KL, E[d grad log pi]; that of k2 and k3 vanishes near the reference,
so k1 is what a run takes unless another is named. In the
loss (kl loss) its gradient is taken: k1's there has mean zero, so it does not hold the policy
(use k2 or k3). The reference is the base with the adapter off, or the adapter that the run started
from.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:  # the driver estimates with NumPy alone
    import torch

Array = TypeVar("Array", "torch.Tensor", np.ndarray)


def k1(d: Array) -> Array:
    """[tokens] log-ratios policy - reference -> [tokens]."""
    return d


def k2(d: Array) -> Array:
    return d * d / 2


def k3(d: Array) -> Array:
    """exp(-d) - 1 + d, by expm1 so that small d keep their digits."""
    return (np.expm1(-d) if isinstance(d, np.ndarray) else (-d).expm1()) + d


ESTIMATORS: dict[str, Callable] = {"k1": k1, "k2": k2, "k3": k3}

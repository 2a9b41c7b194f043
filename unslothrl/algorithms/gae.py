"""Generalised advantage estimation (arXiv 1506.02438, equations 11 and 16), for ppo.

    delta_t = r_t + gamma V_{t+1} - V_t        V after the last token is 0: an episode ends there
    A_t     = delta_t + gamma lambda A_{t+1}
    R_t     = A_t + V_t                        what the critic learns to predict

V_t is the critic's value of the state before token t. The completion's reward stands at its last
token; with KL in the reward every token has its own share (see `divergence`). A truncated
completion ends like any other: there is no bootstrapping from its last state.

Advantages are whitened over all tokens of the batch before the policy sees them (arXiv 2403.17031),
the returns are not.
"""

from collections.abc import Sequence

import numpy as np


def gae(
    rewards: np.ndarray,  # [tokens] of one completion
    values: np.ndarray,  # [tokens]
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[np.ndarray, np.ndarray]:
    """-> (advantages, returns), each [tokens], float64."""
    values = np.asarray(values, np.float64)
    following = np.append(values[1:], 0.0)
    deltas = np.asarray(rewards, np.float64) + gamma * following - values
    advantages, running = np.zeros(len(deltas)), 0.0
    for t in reversed(range(len(deltas))):
        running = deltas[t] + gamma * lam * running
        advantages[t] = running
    return advantages, advantages + values


def whiten(parts: Sequence[np.ndarray], epsilon: float = 1e-8) -> list[np.ndarray]:
    """Every completion's [tokens], shifted and scaled to mean 0 and std 1 over all of them."""
    if not parts:
        return []
    together = np.concatenate(parts)
    if not len(together):
        return list(parts)
    mean, std = together.mean(), together.std()
    return [(part - mean) / (std + epsilon) for part in parts]


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one."""
    spread = float(np.var(returns))
    return 1.0 - float(np.var(returns - values)) / spread if spread > 0 else 0.0

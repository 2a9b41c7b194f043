"""rho, the ratio of policy and old policy, as one number a token.

    token       rho_t = pi(o_t) / pi_old(o_t)                                PPO, GRPO
    sequence    s = (prod_t rho_t)^(1 / |o|), the same for all its tokens    GSPO, arXiv 2507.18071,
                                                                             equation 7
    trajectory  prod_t rho_t, the same for all its tokens                    RLOO (arXiv 2402.14740
                                                                             models a completion as
                                                                             one action)
    one         1, with the gradient of log pi                               REINFORCE

Both are the learner's own: what the sampler would have said enters by `corrections`, never here.
On the first update after a rollout pi is pi_old, and every ratio is exactly 1.
"""

from collections.abc import Callable, Sequence

import torch

from unslothrl.algorithms.aggregation import sequence_means, spread

MOST = 80.0  # log of a product: exp(80) is a float32, and an infinite ratio has no gradient


def token(log_ratio: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[tokens] log pi - log pi_old, lengths [sequences] -> [tokens]."""
    return log_ratio.exp()


def sequence(log_ratio: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The geometric mean over each sequence."""
    return spread(sequence_means(log_ratio, lengths).exp(), lengths)


def trajectory(log_ratio: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The product over each sequence."""
    counts = torch.tensor(list(lengths), device=log_ratio.device, dtype=log_ratio.dtype)
    total = sequence_means(log_ratio, lengths) * counts
    return spread(total.clamp(max=MOST).exp(), lengths)


def one(log_ratio: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """1 + (log pi - the same, detached): its gradient is that of log pi, wherever pi_old is."""
    return 1 + (log_ratio - log_ratio.detach())


RATIOS: dict[str, Callable[[torch.Tensor, Sequence[int]], torch.Tensor]] = {
    "token": token,
    "sequence": sequence,
    "trajectory": trajectory,
    "one": one,
}

"""The policy's loss of one micro-batch, and the critic's, as their share of the whole batch's.

    l_t = w_t clip(rho_t, A_t) + beta k_t - c H_t,   L = aggregation of l_t over the batch

w, rho, clip: below, k: `divergence`, A: `advantages`. H_t is the entropy of the policy's
next-token distribution. A sequence whose mean ratio exceeds skip_threshold loses its policy term
(Colossal-RL documents a threshold on the mean over the micro-batch, which would make the gradient
depend on how the batch is split).

The critic's loss (PPO with value clipping, arXiv 1707.06347 as OpenAI's and most codes have it;
arXiv 2403.17031); R_t is the return, V_old its value before the step's first update, clip 0 is off:

    l_t = 1/2 max((V_t - R_t)^2, (clip(V_t, V_old_t - clip, V_old_t + clip) - R_t)^2)

From a loss a token to the loss of the batch: the denominator is always the whole batch's.

    token     sum_i sum_t l_it / sum_i |o_i|          DAPO, arXiv 2503.14476, equation 8
    sequence  1/N sum_i 1/|o_i| sum_t l_it            GRPO, arXiv 2402.03300, equation 3
    constant  sum_i sum_t l_it / (N * max_new_tokens) Dr. GRPO, arXiv 2503.20783, without the length
                                                      bias; the constant is the generation limit

N and sum |o_i| count every completion whose tokens are in the loss, over all micro-batches and
learners, so that neither can change the gradient. A sequence of no tokens adds nothing.

From log-probabilities to the ratio, the clip, and the weight of what another engine sampled.

rho, the ratio of policy and old policy:

    token       rho_t = pi(o_t) / pi_old(o_t)                                PPO, GRPO
    sequence    s = (prod_t rho_t)^(1 / |o|), the same for all its tokens    GSPO, arXiv 2507.18071,
                                                                             equation 7
    trajectory  prod_t rho_t, the same for all its tokens                    RLOO (arXiv 2402.14740
                                                                             models a completion as
                                                                             one action)
    one         1, with the gradient of log pi                               REINFORCE

Both are the learner's own: what the sampler would have said enters by the correction, never here.
On the first update after a rollout pi is pi_old, and every ratio is exactly 1.

What of the ratio reaches the loss:

    surrogate  l = -min(rho A, clip(rho, 1 - low, 1 + high) A)       PPO, arXiv 1707.06347, eq. 7
               with dual > 0 and A < 0:  l = -max(that min, dual A)  dual clip, arXiv 1912.09729
    weight     l = -sg(min(max(rho, 1 - low), 1 + high)) A log pi    CISPO, arXiv 2506.13585, eq. 4
    none       l = -rho A

low and high differ in DAPO (clip-higher, arXiv 2503.14476). In `weight` no token loses its
gradient, only its weight is bounded; MiniMax bounds it above alone, which low = 1 gives: rho is
positive, so that bound never acts. dual bounds the loss of tokens with negative advantage whose
ratio has grown without limit.

Off-policy corrections multiply a token's loss because another engine sampled it. w_t = pi_old(o_t)
/ pi_sampler(o_t) is the learner's own probability before any update, over what the sampler
reported: both are data, without a gradient. The sampler differs from the learner by its kernels and
roundings, and by older weights where rollouts lag behind.

    none
    truncated  min(w_t, high)                       high 2; truncated importance sampling
                                                    (Ionides 2008; Yao et al. 2025, "Your efficient
                                                    RL framework secretly brings you off-policy
                                                    training")
    masked     w_t if low <= w_t <= high else 0     0.5 to 5; IcePop (Ring-1T, arXiv 2510.18855)
    geometric  1 if low <= (prod_t w_t)^(1/|o|) <= high else 0, the whole sequence
                                                    0.99 to 1.01; the geometric sequence mask of Liu
                                                    et al. 2025, "When speed kills stability"

Denominators do not shrink with what is masked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from unslothrl.algorithms.divergence import ESTIMATORS
from unslothrl.algorithms.objective import Objective, function_of


@dataclass(frozen=True)
class Denominators:
    """What one optimiser step's losses are divided by, the same in every part of its batch."""

    sequences: int
    tokens: int
    max_new_tokens: int


def sequence_means(values: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[tokens] -> [sequences]: the mean of each run of `lengths`; 0 for a run of none."""
    return torch.stack([run.sum() / max(len(run), 1) for run in values.split(list(lengths))])


def spread(values: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[sequences] -> [tokens]: each value repeated over its sequence."""
    counts = torch.tensor(list(lengths), device=values.device)
    return values.repeat_interleave(counts)


def over_tokens(terms: torch.Tensor, lengths: Sequence[int], over: Denominators) -> torch.Tensor:
    """[tokens] terms -> their share of the batch's loss, a scalar."""
    return terms.sum() / over.tokens


def over_sequences(terms: torch.Tensor, lengths: Sequence[int], over: Denominators) -> torch.Tensor:
    return sequence_means(terms, lengths).sum() / over.sequences


def over_constant(terms: torch.Tensor, lengths: Sequence[int], over: Denominators) -> torch.Tensor:
    return terms.sum() / (over.sequences * over.max_new_tokens)


AGGREGATIONS: dict[str, Callable[[torch.Tensor, Sequence[int], Denominators], torch.Tensor]] = {
    "token": over_tokens,
    "sequence": over_sequences,
    "constant": over_constant,
}


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
    each.__name__: each for each in (token, sequence, trajectory, one)
}


@dataclass(frozen=True)
class Clip:
    """How far rho may move: down to 1 - low, up to 1 + high; dual 0 is off, else over 1."""

    low: float = 0.2
    high: float = 0.2
    dual: float = 0.0


Terms = tuple[torch.Tensor, torch.Tensor]  # ([tokens] losses, [tokens] whether the clip acted)


def surrogate(
    ratio: torch.Tensor,  # [tokens]
    logprobs: torch.Tensor,  # [tokens]
    advantages: torch.Tensor,  # [tokens]
    clip: Clip,
) -> Terms:
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip.low, 1 + clip.high) * advantages
    value = torch.minimum(unclipped, clipped)
    acted = clipped < unclipped
    if clip.dual:
        floor = torch.where(advantages < 0, clip.dual * advantages, value.detach())
        acted |= (advantages < 0) & (value < floor)
        value = torch.where(advantages < 0, torch.maximum(value, floor), value)
    return -value, acted


def weight(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, clip: Clip
) -> Terms:
    ratio = ratio.detach()
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    return -bounded * advantages * logprobs, bounded != ratio


def none(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, clip: Clip
) -> Terms:
    return -ratio * advantages, torch.zeros_like(advantages, dtype=torch.bool)


CLIPS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Clip], Terms]] = {
    each.__name__: each for each in (surrogate, weight, none)
}


BOUNDS = {"truncated": (0.0, 2.0), "masked": (0.5, 5.0), "geometric": (0.99, 1.01)}


def correction(
    kind: str,
    old: torch.Tensor,  # [tokens]
    sampler: torch.Tensor,  # [tokens]
    lengths: Sequence[int],  # [sequences]
    low: float | None = None,
    high: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> ([tokens] factors, [tokens] whether a bound acted). `low`, `high` None: the usual ones."""
    log_weights = (old - sampler).detach()
    if kind == "none":
        return torch.ones_like(log_weights), torch.zeros_like(log_weights, dtype=torch.bool)
    usual = BOUNDS[kind]
    low, high = usual[0] if low is None else low, usual[1] if high is None else high
    weights = log_weights.exp()
    if kind == "truncated":
        return weights.clamp(max=high), weights > high
    if kind == "masked":
        kept = (weights >= low) & (weights <= high)
        return torch.where(kept, weights, 0.0), ~kept
    means = spread(sequence_means(log_weights, lengths).exp(), lengths)
    kept = (means >= low) & (means <= high)
    return kept.to(log_weights.dtype), ~kept


@dataclass(frozen=True)
class Tokens:
    """What is known of the sampled tokens of a micro-batch, sequence after sequence.

    A ratio or a clip that is a function gets any of these by name.
    """

    lengths: Sequence[int]  # [sequences]
    logprobs: torch.Tensor  # [tokens], the policy's, with gradient
    entropies: torch.Tensor  # [tokens], with gradient where the objective has an entropy bonus
    advantages: torch.Tensor  # [tokens]
    sampler: torch.Tensor  # [tokens], the sampler's log-probabilities
    old: torch.Tensor | None = None  # [tokens]; None: the policy has not moved in this step
    reference: torch.Tensor | None = None  # [tokens]; None: the objective has no KL in its loss


class Loss(NamedTuple):
    value: torch.Tensor  # scalar, this micro-batch's share of the batch's loss
    clipped: int  # tokens on which the clip or skip_threshold acted
    corrected: int  # tokens on which the bounds of the correction acted


def policy_loss(objective: Objective, tokens: Tokens, over: Denominators) -> Loss:
    """The formula above."""
    old = tokens.logprobs.detach() if tokens.old is None else tokens.old
    log_ratio, advantages, lengths = tokens.logprobs - old, tokens.advantages, tokens.lengths
    named = {**vars(tokens), "old": old}
    skipped = torch.zeros_like(advantages, dtype=torch.bool)
    if objective.skip_threshold:
        ratio = function_of(RATIOS, objective.ratio, named)(log_ratio.detach(), lengths)
        skipped = spread(sequence_means(ratio, lengths) > objective.skip_threshold, lengths)
        log_ratio = torch.where(skipped, 0.0, log_ratio)  # no infinite ratio, no gradient
        advantages = torch.where(skipped, 0.0, advantages)
        named["advantages"] = advantages
    clip = Clip(objective.clip_low, objective.clip_high, objective.clip_dual)
    ratio = function_of(RATIOS, objective.ratio, named)(log_ratio, lengths)
    terms, acted = function_of(CLIPS, objective.clip, named)(
        ratio, tokens.logprobs, advantages, clip
    )
    acted = acted | skipped
    bounds = objective.correction_low, objective.correction_high
    factors, bounded = correction(objective.correction, old, tokens.sampler, lengths, *bounds)
    terms = factors * terms
    if objective.kl == "loss":
        if tokens.reference is None:
            raise ValueError("KL in the loss needs the reference's log-probabilities")
        estimate = ESTIMATORS[objective.kl_estimator](tokens.logprobs - tokens.reference)
        terms = terms + objective.kl_coefficient * estimate
    if objective.entropy_coefficient:
        terms = terms - objective.entropy_coefficient * tokens.entropies
    value = function_of(AGGREGATIONS, objective.aggregation, {})(terms, lengths, over)
    return Loss(value, int(acted.sum()), int(bounded.sum()))


def value_loss(
    objective: Objective,
    lengths: Sequence[int],
    values: torch.Tensor,  # [tokens], with gradient
    old: torch.Tensor,  # [tokens]
    returns: torch.Tensor,  # [tokens]
    over: Denominators,
    clip: float,
) -> torch.Tensor:
    """The critic's share of the batch's value loss, aggregated like the policy's."""
    errors = (values - returns).square()
    if clip:
        bounded = old + (values - old).clamp(-clip, clip)
        errors = torch.maximum(errors, (bounded - returns).square())
    return function_of(AGGREGATIONS, objective.aggregation, {})(errors / 2, lengths, over)

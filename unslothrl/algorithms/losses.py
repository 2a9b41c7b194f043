"""The loss of one micro-batch from an objective's parts, as its share of the whole batch's loss.

    l_t = w_t clip(rho_t, A_t) + beta k_t - c H_t,   L = aggregation of l_t over the batch

w, rho, clip: `clipping`, k: `divergence`, A: `advantages`. H_t is the entropy of the policy's
next-token distribution. A sequence whose mean ratio exceeds skip_threshold loses its policy term
(Colossal-RL documents a threshold on the mean over the micro-batch, which would make the gradient
depend on how the batch is split).

The critic's loss (PPO with value clipping, arXiv 1707.06347 as OpenAI's and most codes have it;
arXiv 2403.17031); R_t is the return, V_old its value before the step's first update, clip 0 is off:

    l_t = 1/2 max((V_t - R_t)^2, (clip(V_t, V_old_t - clip, V_old_t + clip) - R_t)^2)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from unslothrl.algorithms.aggregation import AGGREGATIONS, Denominators, sequence_means, spread
from unslothrl.algorithms.clipping import CLIPS, RATIOS, Clip, correction
from unslothrl.algorithms.divergence import ESTIMATORS
from unslothrl.algorithms.objective import Objective, function_of


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
    factors, bounded = correction(
        objective.correction,
        old,
        tokens.sampler,
        lengths,
        objective.correction_low,
        objective.correction_high,
    )
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
    terms = value_terms(values, old, returns, clip)
    return function_of(AGGREGATIONS, objective.aggregation, {})(terms, lengths, over)


def value_terms(
    values: torch.Tensor,  # [tokens], with gradient
    old: torch.Tensor,  # [tokens]
    returns: torch.Tensor,  # [tokens]
    clip: float = 0.0,
) -> torch.Tensor:
    """-> [tokens] losses."""
    errors = (values - returns).square()
    if clip:
        bounded = old + (values - old).clamp(-clip, clip)
        errors = torch.maximum(errors, (bounded - returns).square())
    return errors / 2

"""From a loss a token to the loss of the batch. The denominator is always the whole batch's.

    token     sum_i sum_t l_it / sum_i |o_i|          DAPO, arXiv 2503.14476, equation 8
    sequence  1/N sum_i 1/|o_i| sum_t l_it            GRPO, arXiv 2402.03300, equation 3
    constant  sum_i sum_t l_it / (N * max_new_tokens) Dr. GRPO, arXiv 2503.20783, without the length
                                                      bias; the constant is the generation limit

N and sum |o_i| count every completion whose tokens are in the loss, over all micro-batches and
learners, so that neither can change the gradient. A sequence of no tokens adds nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


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


def token(terms: torch.Tensor, lengths: Sequence[int], over: Denominators) -> torch.Tensor:
    """[tokens] terms -> their share of the batch's loss, a scalar."""
    return terms.sum() / over.tokens


def sequence(terms: torch.Tensor, lengths: Sequence[int], over: Denominators) -> torch.Tensor:
    return sequence_means(terms, lengths).sum() / over.sequences


def constant(terms: torch.Tensor, lengths: Sequence[int], over: Denominators) -> torch.Tensor:
    return terms.sum() / (over.sequences * over.max_new_tokens)


AGGREGATIONS: dict[str, Callable[[torch.Tensor, Sequence[int], Denominators], torch.Tensor]] = {
    "token": token,
    "sequence": sequence,
    "constant": constant,
}

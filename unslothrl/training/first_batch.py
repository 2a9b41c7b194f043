"""The first batch proves itself: before a run's first update, what the learners make of a few of
its sequences is checked, see `learners.proof`, and how far the sampler is from them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unslothrl.errors import RunError
from unslothrl.records import Batch, Proof
from unslothrl.tracking.proof import NOISE

MOST, SHARE = 8, 4  # sequences, and what part of the batch at most
QUARTERS, LEAST_TOKENS = 4, 32  # of the longest completion; of a quarter that is judged


def some_of(batch: Batch) -> Batch:
    """From both ends of a batch, so that some have one prompt and some another, of those with an
    advantage: where it is 0, the gradient may be rounding. Ratios are 1: see `learners.proof`."""
    samples = tuple(replace(s, logprobs=None) for s in batch.samples if s.advantages.any())
    count = min(MOST, max(2, len(samples) // SHARE), len(samples))
    chosen = samples[: count - count // 2] + samples[len(samples) - count // 2 :]
    tokens = sum(sample.tokens for sample in chosen)
    return replace(batch, samples=chosen, sequences=count, tokens=tokens)


def verdict(proofs: Sequence[Proof], version: int, is_exact: bool) -> dict[str, float]:
    """What is recorded of the learners' proofs, nothing where there is no gradient. RunError where
    one fails. `is_exact`: the sampler draws from the whole distribution, under policy `version`,
    and not from the top of it."""
    still = frozenset.intersection(*(proof.still for proof in proofs))
    apart = max(proof.apart for proof in proofs)
    gaps = by_quarter(proofs[-1], version)
    row = {"first_batch": len(proofs[-1].update.sources), "apart": apart, "still": len(still)}
    problem = ""
    if worst := next((proof for proof in proofs if proof.is_apart), None):
        what = "packed into one row" if worst.names_packs else "in one micro-batch"
        problem = (
            f"the gradient of sequences {what} is not that of one at a time ({worst.apart:.2g} of "
            f"its norm apart, where rounding makes at most {worst.limit:g})"
        )
    elif still and any(proof.is_judged for proof in proofs):
        problem = f"{len(still)} trained tensors get no gradient, {min(still)} among them"
    elif is_exact and max(gaps, default=0.0) > NOISE:
        each = ", ".join(f"{gap:.2g}" for gap in gaps)
        problem = (
            f"the engine's log-probabilities are {each} nats a token from the learner's, by "
            f"quarters of the length, where at most {NOISE:g} is rounding"
        )
    if problem:
        raise RunError(
            f"the first batch is not trained on as it should be: {problem}: `unslothrl "
            "check-model` tries the model's parts; --no_check_first_batch trains all the same"
        )
    if not all(proof.is_judged for proof in proofs):
        return {}
    return row | {f"gap_{number}": gap for number, gap in enumerate(gaps, 1)}


def by_quarter(proof: Proof, version: int) -> list[float]:
    """Mean |learner - sampler| of what `version` has drawn, by quarters of the longest completion;
    of those with enough tokens."""
    update = proof.update
    lengths = [tokens for _, _, tokens in update.sources]
    longest = max(lengths, default=0)
    quarters: list[list[float]] = [[] for _ in range(QUARTERS)]
    for (_, drawn_under, tokens), end in zip(update.sources, np.cumsum(lengths), strict=True):
        if drawn_under == version:
            for place, gap in enumerate(np.abs(update.difference[end - tokens : end])):
                quarters[place * QUARTERS // longest].append(float(gap))
    return [float(np.mean(quarter)) for quarter in quarters if len(quarter) >= LEAST_TOKENS]

"""Deals samples to learners so that all of them finish at about the same time.

All learners wait for the slowest one, so what counts is the largest share. The samples of a prompt
stay together as far as that costs no balance, for a learner computes their prompt once.

The method: the largest differencing method (Karmarkar and Karp 1982) over whole prompts, then moves
and swaps out of the largest share as long as they make it smaller. Where that leaves the shares
uneven, the same over single samples, and the better of the two. Every choice depends on the samples
alone, so it is the same in every run.
"""

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from unslothrl.config.options import Config
from unslothrl.planning.shapes import shape_of
from unslothrl.types import Sample

EVEN = 1.002  # of the mean: a largest share below it is good enough
NO_GAIN = 1e-9  # of the largest share: less is rounding
MOST_TRIED = 500_000  # samples looked at in all, so that a step of many takes a second at most


@dataclass(frozen=True)
class Costs:
    """What samples cost a learner, in trained tokens that attend to nothing."""

    shares_prompts: bool = True  # whether a prompt is computed once for all its completions
    prompt_token: float = 1.0  # it does not pass through the output layer
    pair: float = 0.0  # a token that attends to one token, in all layers

    @classmethod
    def of(cls, config: Config) -> "Costs":
        """By the multiplications of the model's layers; tokens alone where its sizes are not known.

        Attention costs 2 x its width for each pair of tokens: what two linear weights cost a token.
        """
        shares = config.backend != "unsloth"  # see backends/unsloth.py
        shape = shape_of(config.model)
        if shape is None:
            return cls(shares)
        linear = shape.linear_weights()
        whole = linear + shape.vocabulary * shape.hidden
        return cls(shares, linear / whole, 2 * shape.layers * shape.query / whole)

    def prompt(self, sample: Sample) -> float:
        """Of its prompt's passage through the linear layers."""
        return self.prompt_token * len(sample.prompt_ids)

    def completion(self, sample: Sample) -> float:
        """Of the rest: the completion, and the attention of the whole sequence, which is computed
        for every sample by itself."""
        completion = sample.length
        length = len(sample.prompt_ids) + completion
        return completion + self.pair * length * (length + 1) / 2

    def share(self, samples: Sequence[Sample]) -> float:
        """Of samples that one learner gets."""
        prompts = {sample.prompt_ids: self.prompt(sample) for sample in samples}
        if self.shares_prompts:
            return sum(prompts.values()) + sum(map(self.completion, samples))
        return sum(self.prompt(sample) + self.completion(sample) for sample in samples)


def balanced(samples: Sequence[Sample], learners: int, costs: Costs) -> list[list[int]]:
    """-> [learners] indices of each one's samples, ascending; empty where samples are too few."""
    if learners == 1:
        return [list(range(len(samples)))]
    prompts = [sample.prompt_ids if costs.shares_prompts else i for i, sample in enumerate(samples)]
    number = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
    work = _Work(
        [costs.completion(sample) for sample in samples],
        [number[prompt] for prompt in prompts],
        [costs.prompt(sample) for sample in samples],
    )
    best = _improved(_dealt(work.by_prompt(), learners, work))
    if not _are_even(best):
        other = _improved(_dealt(work.alone(), learners, work))
        best = min(best, other, key=_largest)
    return [sorted(share.members) for share in best]


@dataclass(frozen=True)
class _Work:
    """Of each sample: its own cost, its prompt's number, and what that prompt costs once."""

    own: list[float]
    prompt_of: list[int]
    prompt: list[float]

    def by_prompt(self) -> list[list[int]]:
        """The samples of each prompt."""
        together: dict[int, list[int]] = {}
        for index, number in enumerate(self.prompt_of):
            together.setdefault(number, []).append(index)
        return list(together.values())

    def alone(self) -> list[list[int]]:
        return [[index] for index in range(len(self.own))]


class _Share:
    """The samples of one learner and what they cost it."""

    def __init__(self, work: _Work):
        self.work = work
        self.members: set[int] = set()
        self.counts: Counter[int] = Counter()  # of each prompt's samples
        self.load = 0.0

    def after(self, leaving: Sequence[int] = (), coming: Sequence[int] = ()) -> float:
        """Its load, were some samples to leave and then others to come."""
        load, changed = self.load, Counter[int]()
        for index in leaving:
            number = self.work.prompt_of[index]
            changed[number] -= 1
            load -= self.work.own[index]
            if self.counts[number] + changed[number] == 0:
                load -= self.work.prompt[index]
        for index in coming:
            number = self.work.prompt_of[index]
            if self.counts[number] + changed[number] == 0:
                load += self.work.prompt[index]
            changed[number] += 1
            load += self.work.own[index]
        return load

    def change(self, leaving: Sequence[int] = (), coming: Sequence[int] = ()) -> None:
        self.load = self.after(leaving, coming)
        self.members = (self.members - set(leaving)) | set(coming)
        self.counts.subtract(self.work.prompt_of[index] for index in leaving)
        self.counts.update(self.work.prompt_of[index] for index in coming)

    def units(self) -> list[list[int]]:
        """What may leave: each sample, and all of a prompt's together."""
        together: dict[int, list[int]] = {}
        for index in sorted(self.members):
            together.setdefault(self.work.prompt_of[index], []).append(index)
        groups = [group for group in together.values() if len(group) > 1]
        return [*groups, *([index] for index in sorted(self.members))]


def _dealt(units: Sequence[list[int]], learners: int, work: _Work) -> list[_Share]:
    """Karmarkar and Karp: the two ways to deal that are most uneven become one, the largest part of
    each with the smallest of the other, until one way is left."""
    alone = _Share(work)
    ways: list[tuple[float, int, list[_Part]]] = []  # (-unevenness, number, largest part first)
    for number, unit in enumerate(units):
        cost = alone.after(coming=unit)
        ways.append((-cost, number, [(cost, unit), *[(0.0, list[int]())] * (learners - 1)]))
    heapq.heapify(ways)
    while len(ways) > 1:
        (_, number, one), (_, _, other) = heapq.heappop(ways), heapq.heappop(ways)
        pairs = zip(one, reversed(other), strict=True)
        parts = sorted(((a + b, some + more) for (a, some), (b, more) in pairs), reverse=True)
        heapq.heappush(ways, (parts[-1][0] - parts[0][0], number, parts))
    shares = [_Share(work) for _ in range(learners)]
    if ways:
        for share, (_, members) in zip(shares, ways[0][2], strict=True):
            share.change(coming=members)
    return shares


def _improved(shares: list[_Share]) -> list[_Share]:
    """The same, changed by what makes the largest share smaller until nothing does."""
    samples = sum(len(share.members) for share in shares)
    for _ in range(MOST_TRIED // max(1, samples)):
        if _are_even(shares):
            break
        largest = max(shares, key=lambda share: share.load)
        change = _best_move(largest, shares) or _best_swap(largest, shares)
        if change is None:
            break
        other, leaving, coming = change
        largest.change(leaving, coming)
        other.change(coming, leaving)
    return shares


def _largest(shares: Sequence[_Share]) -> float:
    return max(share.load for share in shares)


def _are_even(shares: Sequence[_Share]) -> bool:
    return _largest(shares) <= EVEN * sum(share.load for share in shares) / len(shares)


_Part = tuple[float, list[int]]  # cost, samples
_Change = tuple[_Share, list[int], list[int]]  # with whom, what leaves the largest, what comes


def _best_move(largest: _Share, shares: Sequence[_Share]) -> _Change | None:
    best, change = largest.load * (1 - NO_GAIN), None
    for unit in largest.units():
        left = largest.after(leaving=unit)
        for other in shares:
            if other is not largest and left < best:
                load = max(left, other.after(coming=unit))
                if load < best:
                    best, change = load, (other, unit, list[int]())
    return change


def _best_swap(largest: _Share, shares: Sequence[_Share]) -> _Change | None:
    """Of two samples, whose difference is about half of that of the shares."""
    best, change = largest.load * (1 - NO_GAIN), None
    own = largest.work.own
    for other in shares:
        if other is largest:
            continue
        theirs = sorted(other.members, key=lambda index: (own[index], index))
        sizes = [own[index] for index in theirs]
        half = (largest.load - other.load) / 2
        for index in sorted(largest.members):
            at = bisect_left(sizes, own[index] - half)
            for coming in theirs[max(0, at - 1) : at + 1]:
                load = max(
                    largest.after([index], [coming]),
                    other.after([coming], [index]),
                )
                if load < best:
                    best, change = load, (other, [index], [coming])
    return change

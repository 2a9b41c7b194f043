"""The figures of a policy on an evaluation set, with their intervals.

A majority is of the answer that most completions of a problem give (Wang et al. 2022,
self-consistency). Answers are the same where their texts are; those to mathematical rewards also
where mathematics says so, in processes that are killed where that takes too long.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unslothrl import rewards
from unslothrl.algorithms.estimates import Difference, Estimate, best_of, estimate, paired
from unslothrl.data import answers
from unslothrl.records import Group
from unslothrl.rewards.processes import ProcessPool, RewardCall
from unslothrl.rewards.reward import IN_PROCESS, IN_SANDBOX
from unslothrl.training.metrics import mean

SAME = "answercheck:same"
PROCESSES = 2
DEADLINE_S = 2.0  # for two answers, else they differ

Read = Sequence[str | None]
"""The answers of a problem's completions; None: it gives none."""


@dataclass(frozen=True)
class Grading:
    """What the first reward of a run takes for the answer of a completion."""

    answer: Callable[[str], str | None] | None = None  # None: a custom reward, which does not say
    is_maths: bool = False

    @classmethod
    def of(cls, chosen: rewards.Chosen) -> "Grading":
        reward = chosen.reward
        if reward is None or reward.runs == IN_SANDBOX:
            return cls()
        return cls(reward.answer, reward.runs == IN_PROCESS)


Values = dict[str, list[float]]
"""A figure's name -> its value for each problem, from 0 to 1."""


def values_of(groups: Sequence[Group], grading: Grading) -> Values:
    """Of each problem: pass@k for powers of two up to the candidates n, and for n itself (the mean
    of the best of k where scores are not 0 or 1), and what else is known of its completions."""
    candidates = len(groups[0].completions)
    powers = [2**i for i in range(candidates.bit_length()) if 2**i < candidates]
    values: Values = {
        f"pass@{k}": [best_of(group.scores, k) for group in groups] for k in [*powers, candidates]
    }
    if grading.answer is not None:
        read = [[grading.answer(c.text) for c in group.completions] for group in groups]
        if candidates > 2:
            values[f"majority of {candidates}"] = [
                0.0 if first is None else group.scores[first]
                for first, group in zip(winners(read, grading.is_maths), groups, strict=True)
            ]
        values["has an answer"] = [mean(a is not None for a in each) for each in read]
    values["cut off"] = [
        mean(c.finish_reason == "length" for c in group.completions) for group in groups
    ]
    return values


def lengths_of(groups: Sequence[Group]) -> float:
    """The mean length of a completion, in sampled tokens."""
    return mean(sum(c.version_counts.values()) for group in groups for c in group.completions)


@dataclass(frozen=True)
class Compared:
    """A figure of the policies of an evaluation."""

    name: str
    estimates: tuple[Estimate, ...]  # one for each policy
    difference: Difference | None  # of the last from the first, where there are two


def compared(values: Sequence[Values]) -> list[Compared]:
    """The figures of policies on the same problems."""
    return [
        Compared(
            name,
            tuple(estimate(of_policy[name]) for of_policy in values),
            paired(values[0][name], values[-1][name]) if len(values) > 1 else None,
        )
        for name in values[0]
    ]


def winners(read: Sequence[Read], is_maths: bool) -> list[int | None]:
    """Of each problem the first completion with the answer that most give; None: none has one."""
    texts = [[None if text is None else answers.normalise(text) for text in each] for each in read]
    same = same_answers(texts) if is_maths else [frozenset()] * len(texts)
    return [winner(each, pairs) for each, pairs in zip(texts, same, strict=True)]


def winner(texts: Read, same: frozenset[tuple[str, str]]) -> int | None:
    """`same`: pairs of texts that are one answer, in the order in which they come first."""
    kinds: dict[str, list[int]] = {}  # by the first text of each
    for i, text in enumerate(texts):
        if text is not None:
            kind = next((k for k in kinds if k == text or (k, text) in same), text)
            kinds.setdefault(kind, []).append(i)
    return max(kinds.values(), key=len)[0] if kinds else None  # the first of several


def same_answers(texts: Sequence[Read]) -> list[frozenset[tuple[str, str]]]:
    """Of each problem, the pairs of different texts that are mathematically the same."""
    pairs = [
        (problem, *pair)
        for problem, each in enumerate(texts)
        for pair in itertools.combinations(dict.fromkeys(t for t in each if t is not None), 2)
    ]
    if not pairs:
        return [frozenset()] * len(texts)
    with ProcessPool(PROCESSES, DEADLINE_S) as pool:
        results = pool.call([RewardCall(SAME, pair[1:]) for pair in pairs])
    found: list[set[tuple[str, str]]] = [set() for _ in texts]
    for (problem, one, other), result in zip(pairs, results, strict=True):
        if result.value is True:
            found[problem].add((one, other))
    return [frozenset(each) for each in found]

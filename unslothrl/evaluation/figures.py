"""The figures of a policy on an evaluation set, with their intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unslothrl import rewards
from unslothrl.algorithms.estimates import Difference, Estimate, best_of, estimate, paired
from unslothrl.evaluation.voting import winners
from unslothrl.records import Group
from unslothrl.training.metrics import mean


@dataclass(frozen=True)
class Grading:
    """What the first reward of a run takes for the answer of a completion."""

    answer: Callable[[str], str | None] | None = None  # None: a custom reward, which does not say
    is_maths: bool = False

    @classmethod
    def of(cls, chosen: rewards.Chosen) -> "Grading":
        reward = chosen.reward
        if reward is None or reward.runs == rewards.IN_SANDBOX:
            return cls()
        return cls(reward.answer, reward.runs == rewards.IN_PROCESS)


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

"""The reward model's part of a group's reward: computed by the learners, which have the base."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from unslothrl import rewards
from unslothrl.rewards import Chosen
from unslothrl.types import Group, Sample

Judge = Callable[[Sequence[Sample]], Sequence[float]]
"""Samples -> the reward model's score of each whole sequence."""


@dataclass(frozen=True)
class RewardModel:
    """Of a run. `is_first`: its sign is what is reported as correct too."""

    name: str
    weight: float
    is_first: bool

    @classmethod
    def of(cls, chosen: Sequence[Chosen]) -> "RewardModel | None":
        """None where no reward is a model."""
        for index, each in enumerate(chosen):
            if each.runs == rewards.IN_LEARNER:
                return cls(each.name, each.weight, index == 0)
        return None

    def judged(self, groups: Sequence[Group], judge: Judge) -> list[Group]:
        """The groups with what the model says of every candidate; 0 of one whose environment
        failed. Of an episode of several sequences the last is judged: it has the whole
        conversation."""
        samples = [
            Sample.of(*completion.sequences(group.task)[-1])
            for group in groups
            for completion in group.completions
        ]
        scores = iter(judge(samples))
        return [self._with(group, [next(scores) for _ in group.completions]) for group in groups]

    def _with(self, group: Group, scores: Sequence[float]) -> Group:
        rated = set(group.rated)
        kept = [score if i in rated else 0.0 for i, score in enumerate(scores)]
        earned = {**group.rewards, self.name: tuple(self.weight * score for score in kept)}
        right = tuple(float(score > 0) for score in kept) if self.is_first else group.scores
        return replace(group, rewards=earned, scores=right)

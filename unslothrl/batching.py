"""From scored groups to the samples of one optimiser step: advantages, selection, shares."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unslothrl.algorithms import Objective, selection
from unslothrl.algorithms.advantages import has_signal
from unslothrl.types import Batch, Group, Sample, seed_of


@dataclass(frozen=True)
class Selected:
    """The judged groups of a step."""

    groups: Sequence[Group]
    advantages: list[list[float]]  # [groups][candidates]
    chosen: list[list[int]]  # [groups] -> indices of the selected candidates

    def batch(self) -> Batch:
        """The selected candidates of the groups that have signal.

        The denominators count every selected candidate: a group without signal adds nothing to the
        gradient, so leaving its samples out saves time and changes nothing.
        """
        samples, sequences, tokens = [], 0, 0
        for group, advantages, chosen in zip(
            self.groups, self.advantages, self.chosen, strict=True
        ):
            sequences += len(chosen)
            tokens += sum(len(group.completions[i].token_ids) for i in chosen)
            if has_signal(group.totals):
                samples += [sample_of(group, i, advantages[i]) for i in chosen]
        return Batch(tuple(samples), sequences, tokens)

    def metrics(self) -> dict[str, float]:
        picked = [
            advantages[i]
            for advantages, chosen in zip(self.advantages, self.chosen, strict=True)
            for i in chosen
        ]
        return {
            "reward/zero_signal_groups": sum(not has_signal(g.totals) for g in self.groups),
            "train/selected_completions": len(picked),
            "train/selected_advantage_mean": sum(picked) / len(picked),
        }


def sample_of(group: Group, index: int, advantage: float) -> Sample:
    completion = group.completions[index]
    return Sample(
        group.task.prompt_ids,
        completion.token_ids,
        completion.logprobs,
        advantage,
        completion.policy_version,
    )


def select(groups: Sequence[Group], objective: Objective, k: int, seed: int) -> Selected:
    """Advantages over whole groups, then the k best candidates of each."""
    advantages = [objective.advantages(group.totals) for group in groups]
    chosen = [
        selection.topk(values, k, seed_of(seed, group.task.id))
        for group, values in zip(groups, advantages, strict=True)
    ]
    return Selected(groups, advantages, chosen)


def split_batch(batch: Batch, learners: int) -> list[Batch]:
    """Every learner's part, with the whole batch's denominators; parts of like total length."""
    ordered = sorted(batch.samples, key=lambda s: len(s.prompt_ids) + len(s.completion_ids))
    parts = [tuple(ordered[i::learners]) for i in range(learners)]
    return [replace(batch, samples=part) for part in parts if part]


def shuffle_rewards(group: Group, seed: int) -> Group:
    """The control experiment: the same rewards, given to the group's candidates at random."""
    order = list(range(len(group.completions)))
    random.Random(seed).shuffle(order)
    shuffled = {name: tuple(values[i] for i in order) for name, values in group.rewards.items()}
    return replace(group, rewards=shuffled)

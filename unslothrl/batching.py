"""From judged groups to the samples of a step's optimiser steps: rewards, selection, advantages."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unslothrl.algorithms import gae
from unslothrl.algorithms.advantages import ADVANTAGES, has_signal
from unslothrl.algorithms.objective import Objective
from unslothrl.algorithms.selection import ON_SUBSET, SELECTIONS
from unslothrl.types import Batch, Group, Sample, seed_of


@dataclass(frozen=True)
class Selected:
    """The judged groups of a step and what the learner gets of them."""

    groups: Sequence[Group]
    rewards: list[list[float]]  # [groups][candidates], KL included where it is in the reward
    advantages: list[list[float]]  # [groups][candidates]; with a critic the mean over tokens
    chosen: list[list[int]]  # [groups] -> indices of the selected candidates
    samples: tuple[Sample, ...]  # the selected ones, group by group
    pulls: tuple[bool, ...]  # [samples], whether it has a gradient

    def metrics(self) -> dict[str, float]:
        picked = [
            advantages[i]
            for advantages, chosen in zip(self.advantages, self.chosen, strict=True)
            for i in chosen
        ]
        return {
            "reward/zero_signal_groups": sum(not has_signal(g.totals) for g in self.groups),
            "train/selected_completions": len(picked),
            "train/selected_advantage_mean": sum(picked) / max(1, len(picked)),
        }

    def batches(self, count: int, seed: int) -> list[Batch]:
        """The samples in `count` parts of like size at random, one for each optimiser step.

        A part's denominators count all its samples: one without a gradient adds nothing, so leaving
        it out saves time and changes nothing else.
        """
        order = list(range(len(self.samples)))
        if count > 1:
            random.Random(seed).shuffle(order)
        parts = [sorted(order[i::count]) for i in range(count)]
        return [
            Batch(
                tuple(self.samples[i] for i in part if self.pulls[i]),
                sequences=len(part),
                tokens=sum(len(self.samples[i].completion_ids) for i in part),
            )
            for part in parts
            if any(self.pulls[i] for i in part)
        ]

    def with_samples(self, samples: Sequence[Sample]) -> "Selected":
        """The same with those samples that pull replaced, in order."""
        following = iter(samples)
        together = zip(self.samples, self.pulls, strict=True)
        return replace(
            self, samples=tuple(next(following) if pulls else old for old, pulls in together)
        )

    def pulling(self) -> list[Sample]:
        return [sample for sample, pulls in zip(self.samples, self.pulls, strict=True) if pulls]


def samples_of(groups: Sequence[Group]) -> list[list[Sample]]:
    """[groups][candidates], nothing judged yet."""
    return [
        [
            Sample(
                group.task.prompt_ids,
                one.token_ids,
                one.logprobs,
                np.zeros(len(one.token_ids), np.float32),
                one.policy_version,
            )
            for one in group.completions
        ]
        for group in groups
    ]


def select(
    groups: Sequence[Group],
    objective: Objective,
    choice: str,
    k: int,
    seed: int,
    *,
    samples: Sequence[Sequence[Sample]] | None = None,
    penalties: Sequence[Sequence[float]] | None = None,
) -> Selected:
    """Chooses `k` candidates of each group by `choice` and gives them their advantages.

    `samples` are the candidates' ([groups][candidates]); `penalties` are taken off their rewards.
    With a critic the advantages come later, see `with_gae`.
    """
    samples = samples_of(groups) if samples is None else samples
    rewards = [list(group.totals) for group in groups]
    if penalties is not None:
        rewards = [
            [r - p for r, p in zip(*pair, strict=True)]
            for pair in zip(rewards, penalties, strict=True)
        ]
    chosen = [
        _choose(group, values, objective, choice, k, seed_of(seed, group.task.id))
        for group, values in zip(groups, rewards, strict=True)
    ]
    advantages = _advantages(rewards, chosen, objective, choice)
    picked, pulls = [], []
    for of_group, values, indices in zip(samples, advantages, chosen, strict=True):
        for i in indices:
            tokens = len(of_group[i].completion_ids)
            picked.append(replace(of_group[i], advantages=np.full(tokens, values[i], np.float32)))
            pulls.append(objective.pulls_without_advantage or any(values[j] for j in indices))
    return Selected(groups, rewards, advantages, chosen, tuple(picked), tuple(pulls))


def _choose(
    group: Group, rewards: Sequence[float], objective: Objective, choice: str, k: int, seed: int
) -> list[int]:
    """Indices of the selected candidates, in order; truncated ones may be out of the question."""
    allowed = [
        i
        for i, one in enumerate(group.completions)
        if not (objective.mask_truncated and one.finish_reason == "length")
    ]
    if not allowed:
        return []
    return [allowed[i] for i in SELECTIONS[choice]([rewards[i] for i in allowed], k, seed)]


def _advantages(
    rewards: list[list[float]], chosen: list[list[int]], objective: Objective, choice: str
) -> list[list[float]]:
    """[groups][candidates]; 0 for those that are outside of the statistics, and with a critic."""
    found = [[0.0] * len(values) for values in rewards]
    if objective.has_critic:
        return found
    named = objective.advantage
    compute = ADVANTAGES[named] if isinstance(named, str) else named
    whole = [list(range(len(values))) for values in rewards]
    counted = chosen if choice in ON_SUBSET else whole
    filled = [(g, indices) for g, indices in enumerate(counted) if indices]
    computed = compute(
        [[rewards[g][i] for i in indices] for g, indices in filled],
        ddof=1 if objective.advantage_std == "sample" else 0,
        epsilon=objective.advantage_epsilon,
    )
    for (g, indices), values in zip(filled, computed, strict=True):
        for i, value in zip(indices, values, strict=True):
            found[g][i] = value
    return found


def with_gae(
    selected: Selected,
    gamma: float,
    lam: float,
    penalties: Sequence[np.ndarray] | None = None,
) -> Selected:
    """Token advantages and returns from the measured values; whitened over the batch.

    `penalties` are taken off each token's reward, [samples] of [tokens].
    """
    totals = [
        group.totals[i]
        for group, chosen in zip(selected.groups, selected.chosen, strict=True)
        for i in chosen
    ]
    estimates = []
    for index, (sample, total) in enumerate(zip(selected.samples, totals, strict=True)):
        if sample.measured is None or sample.measured.values is None:
            raise ValueError("generalised advantage estimation needs the critic's values")
        rewards = np.zeros(len(sample.completion_ids))
        if len(rewards):
            rewards[-1] = total
        if penalties is not None:
            rewards -= penalties[index]
        estimates.append(gae.gae(rewards, sample.measured.values, gamma, lam))
    whitened = gae.whiten([advantages for advantages, _ in estimates])
    samples = [
        replace(sample, advantages=a.astype(np.float32), returns=returns.astype(np.float32))
        for sample, a, (_, returns) in zip(selected.samples, whitened, estimates, strict=True)
    ]
    means = iter(float(a.mean()) if len(a) else 0.0 for a in whitened)
    advantages = [[0.0] * len(values) for values in selected.advantages]
    for row, chosen in zip(advantages, selected.chosen, strict=True):
        for i in chosen:
            row[i] = next(means)
    return replace(selected, samples=tuple(samples), advantages=advantages)


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

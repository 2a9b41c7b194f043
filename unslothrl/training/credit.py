"""Credit assignment: scored groups in, the samples to train on with their advantages out.

    R_i   reward_i - beta sum_t k_it            the KL only where it is in the reward
    A_it  = A_i, from the R of its group        algorithms/advantages.py
    A_it  by generalised advantage estimation   the same file, where there is a critic:
          r_it = -beta k_it, and reward_i more at the last token

beta k is the objective's `kl_coefficient` and `kl_estimator` (algorithms/divergence.py). Advantages
compare the whole group, not only what is selected of it, but for max_variance
(algorithms/selection.py). A candidate whose environment failed is not part of it.

An episode may be several sequences of tokens (`Completion.sequences`): each is a sample of its own
with the episode's advantage.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from unslothrl.algorithms.advantages import ADVANTAGES, gae, whiten
from unslothrl.algorithms.divergence import ESTIMATORS
from unslothrl.algorithms.objective import Objective, function_of
from unslothrl.algorithms.selection import ON_SUBSET, SELECTIONS
from unslothrl.config.options import Config
from unslothrl.data.formats import boxed, normalise, tagged
from unslothrl.records import Group, Sample, seed_of


def assign(
    groups: Sequence[Group],
    objective: Objective,
    config: Config,
    seed: int,
    measure: Callable[[Sequence[Sample]], Sequence[Sample]],
) -> tuple[list[Group], list[Sample]]:
    """Chooses `topk` candidates of each group by `select` and gives their tokens advantages. ->
    (the groups with both, the samples of the chosen candidates, group by group).

    `measure` gives samples with what the learners say of them, at most once: for all candidates
    where the KL is in the reward; for the chosen ones that have a gradient where several updates
    or a critic need it.
    """
    episodes: dict[tuple[int, int], list[Sample]] = {
        (g, i): [Sample.of(*each) for each in found.sequences(group.task) if not found.is_lost]
        for g, group in enumerate(groups)
        for i, found in enumerate(group.completions)
    }
    rewards = [list(map(float, group.totals)) for group in groups]
    if objective.kl == "reward" and groups:
        measured = iter(measure([s for episode in episodes.values() for s in episode]))
        for (g, i), episode in episodes.items():
            episode[:] = [next(measured) for _ in episode]
            rewards[g][i] -= sum(float(kl_penalty(s, objective).sum()) for s in episode)
    chosen = [
        _choose(group, values, objective, config, seed_of(seed, group.task.id))
        for group, values in zip(groups, rewards, strict=True)
    ]
    advantages = _group_advantages(groups, rewards, chosen, objective, config.select)
    picked = _samples(episodes, chosen, advantages, objective)
    trained = [sample for sample in picked if sample.has_gradient]
    has_several_updates = max(config.updates_per_rollout, config.epochs_per_rollout) > 1
    if objective.kl != "reward" and (has_several_updates or objective.has_critic) and trained:
        measured = iter(measure(trained))
        picked = [next(measured) if sample.has_gradient else sample for sample in picked]
    if objective.has_critic and picked:
        owners = [(g, i) for g, of in enumerate(chosen) for i in of for _ in episodes[g, i]]
        totals = [groups[g].totals[i] for g, i in owners]
        picked, means = _with_gae(picked, totals, objective, config)
        for (g, i), mean in zip(owners, means, strict=True):  # of the last sequence
            advantages[g][i] = mean
    assigned = [
        replace(group, advantages=tuple(values), chosen=tuple(indices))
        for group, values, indices in zip(groups, advantages, chosen, strict=True)
    ]
    return assigned, picked


def _samples(
    episodes: dict[tuple[int, int], list[Sample]],
    chosen: list[list[int]],
    advantages: list[list[float]],
    objective: Objective,
) -> list[Sample]:
    """Of the chosen candidates. A group whose chosen candidates all have advantage zero has no
    gradient, unless the objective has another term."""
    rows = {place: row for row, place in enumerate(episodes)}
    signal = [any(advantages[g][i] for i in indices) for g, indices in enumerate(chosen)]
    return [
        replace(
            sample,
            advantages=np.full(sample.tokens, advantages[g][i], np.float32),
            row=rows[g, i],
            has_gradient=objective.trains_without_advantage or signal[g],
        )
        for g, indices in enumerate(chosen)
        for i in indices
        for sample in episodes[g, i]
    ]


def kl_penalty(sample: Sample, objective: Objective) -> np.ndarray:
    """beta k of each token, [tokens], float64; zero where the KL is not in the reward."""
    if objective.kl != "reward":
        return np.zeros(sample.tokens)
    if sample.logprobs is None or sample.reference is None:
        raise ValueError("KL in the reward needs the reference's log-probabilities")
    difference = sample.logprobs - sample.reference
    estimate = ESTIMATORS[objective.kl_estimator](difference.astype(np.float64))
    return objective.kl_coefficient * estimate


def _choose(
    group: Group, rewards: Sequence[float], objective: Objective, config: Config, seed: int
) -> list[int]:
    """The selected candidates' indices, ascending; no lost, nor masked truncated ones."""
    allowed = [
        i
        for i, completion in enumerate(group.completions)
        if not completion.is_lost
        and not (objective.mask_truncated and completion.finish_reason == "length")
    ]
    if not allowed:
        return []
    select = SELECTIONS[config.select]
    return [allowed[i] for i in select([rewards[i] for i in allowed], config.topk, seed)]


def _group_advantages(
    groups: Sequence[Group],
    rewards: list[list[float]],
    chosen: list[list[int]],
    objective: Objective,
    select: str,
) -> list[list[float]]:
    """[groups][candidates]; 0 for those that are outside of the statistics, and with a critic."""
    advantages = [[0.0] * len(values) for values in rewards]
    if objective.has_critic:
        return advantages
    counted = chosen if select in ON_SUBSET else [group.rated for group in groups]
    filled = [(g, indices) for g, indices in enumerate(counted) if indices]
    computed = advantages_by(objective)([[rewards[g][i] for i in indices] for g, indices in filled])
    for (g, indices), values in zip(filled, computed, strict=True):
        for i, value in zip(indices, values, strict=True):
            advantages[g][i] = value
    return advantages


def advantages_by(objective: Objective) -> Callable[[list[list[float]]], list[list[float]]]:
    """What makes rewards advantages, both [groups][candidates]."""
    ddof, epsilon = int(objective.advantage_std == "sample"), objective.advantage_epsilon
    return function_of(ADVANTAGES, objective.advantage, {"ddof": ddof, "epsilon": epsilon})


def _with_gae(
    samples: Sequence[Sample], totals: Sequence[float], objective: Objective, config: Config
) -> tuple[list[Sample], list[float]]:
    """-> (the samples with token advantages, whitened over all of them, and returns; [samples] mean
    advantages). The reward of a sample's completion, of `totals`, is at its last token, less each
    token's penalty."""
    estimates = []
    for sample, total in zip(samples, totals, strict=True):
        if sample.values is None:
            raise ValueError("generalised advantage estimation needs the critic's values")
        rewards = np.zeros(sample.tokens)
        rewards[-1:] = total
        rewards = rewards - kl_penalty(sample, objective)
        estimates.append(gae(rewards, sample.values, config.gamma, config.gae_lambda))
    whitened = whiten([advantages for advantages, _ in estimates])
    estimated = [
        replace(sample, advantages=a.astype(np.float32), returns=returns.astype(np.float32))
        for sample, a, (_, returns) in zip(samples, whitened, estimates, strict=True)
    ]
    return estimated, [float(a.mean()) if len(a) else 0.0 for a in whitened]


def shuffle_rewards(group: Group, seed: int) -> Group:
    """The control: the same rewards at random within the group; a lost one's stays."""
    order, places = list(range(len(group.completions))), group.rated
    drawn = list(places)
    random.Random(seed).shuffle(drawn)
    for place, i in zip(places, drawn, strict=True):
        order[place] = i
    shuffled = {name: tuple(values[i] for i in order) for name, values in group.rewards.items()}
    return replace(group, rewards=shuffled)


# A step without signal


def why_nothing(groups: Sequence[Group], samples: Sequence[Sample]) -> str:
    """Why no sample of a step has a gradient."""
    if not groups:
        return "every group was filtered out (all correct, or none)"
    if not samples:
        return "every completion was truncated"
    if not any(any(group.totals) for group in groups):
        return f"all rewards are 0{unread(groups)}"
    differ = any(len(set(each.totals)) > 1 for each in groups)
    what = "advantages are 0" if differ else "rewards are equal"
    return f"in each of its {len(groups)} groups all {what}"


def unread(groups: Sequence[Group]) -> str:
    """How many completions hold the right answer in a usual form, for rewards that gave them 0."""
    answered = [
        (group.task.answer, each.text)
        for group in groups
        if group.task.answer and not group.failures
        for each in group.completions
    ]
    for form, read in (("between <answer> tags", tagged), ("in \\boxed{}", boxed)):
        found = [(gold, said) for gold, text in answered if (said := read(text)) is not None]
        if right := sum(normalise(said) == normalise(gold) for gold, said in found):
            return (
                f", but {right} of {len(answered)} completions have the right answer {form}: "
                "the reward does not read that form"
            )
    return ""

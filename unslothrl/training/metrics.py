"""The metrics of a step and of an evaluation, from what came of them."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from unslothrl.algorithms import diagnostics
from unslothrl.algorithms.advantages import explained_variance
from unslothrl.records import Completion, Group, Update

Metrics = dict[str, float]


def rollout_metrics(groups: Sequence[Group], failed: int, seconds: float) -> Metrics:
    """Of all groups that were drawn for a step, in so many seconds; `failed` rewards."""
    completions = [completion for group in groups for completion in group.completions]
    tokens = sum(sum(c.version_counts.values()) for c in completions)
    return {
        "reward/mean": mean_rated(groups, [group.totals for group in groups]),
        **{
            f"reward/{name}": mean_rated(groups, [group.rewards[name] for group in groups])
            for name in groups[0].rewards
        },
        "reward/failed": failed,
        "rollout/score": mean_rated(groups, [group.scores for group in groups]),
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": tokens / seconds,
        "rollout/mean_length": tokens / len(completions),
        "rollout/truncated": mean(c.finish_reason == "length" for c in completions),
        **episode_metrics(completions),
    }


def episode_metrics(completions: Sequence[Completion]) -> Metrics:
    """Of episodes with an environment; none where there is none."""
    episodes = [(c, c.transcript) for c in completions if c.transcript is not None]
    if not episodes:
        return {}
    turns = [turn for _, transcript in episodes for turn in transcript.turns]
    sequences = [
        sequence
        for completion, transcript in episodes
        for sequence in (completion, *(each for _, each in transcript.earlier))
    ]
    observed = sum(int(np.count_nonzero(~each.sampled)) for each in sequences)
    return {
        "episode/turns": len(turns) / len(episodes),
        "episode/tool_calls": sum(turn.calls for turn in turns) / len(episodes),
        "episode/failed_tool_calls": sum(turn.failed_calls for turn in turns) / len(episodes),
        "episode/observed_tokens": observed / len(episodes),
        "episode/sequences": len(sequences) / len(episodes),
        "episode/lost": sum(int(c.is_lost) for c in completions),
    }


def staleness_metrics(groups: Sequence[Group], version: int, most: int) -> Metrics:
    """How many versions the groups of a step are behind `version`, the newest: the most of them
    all and, where up to `most` may be, the share of the sampled tokens that is so many behind."""
    metrics: Metrics = {
        "rollout/staleness": version - min(group.policy_version for group in groups)
    }
    if not most:
        return metrics
    counts: Counter[int] = Counter()
    for group in groups:
        for completion in group.completions:
            for drawn_under, count in completion.version_counts.items():
                counts[version - drawn_under] += count
    total = sum(counts.values())
    mean_staleness = sum(behind * count for behind, count in counts.items()) / total
    shares = {f"rollout/staleness_{n}": counts[n] / total for n in range(max(most, *counts) + 1)}
    return {**metrics, "rollout/staleness_mean": mean_staleness, **shares}


def eval_metrics(prefix: str, groups: Sequence[Group]) -> Metrics:
    """pass@1 is the mean over candidates, best-of-n that of each group's best."""
    return {
        f"{prefix}/pass@1": mean(score for group in groups for score in group.scores),
        f"{prefix}/best_of_n": mean(max(group.scores) for group in groups),
        f"{prefix}/mean_length": mean(
            sum(completion.version_counts.values())
            for group in groups
            for completion in group.completions
        ),
    }


def update_metrics(updates: Sequence[Sequence[Update]]) -> Metrics:
    """The `train/` metrics of a step's updates, each from every learner's part."""
    parts = [one.stats for update in updates for one in update]
    firsts = [update[0] for update in updates]  # the step itself is the same in all learners
    tokens = sum(part.agreement.tokens for part in parts)
    metrics = {
        "train/loss": sum(part.loss for part in parts) / len(updates),
        "train/entropy": sum(part.entropy_sum for part in parts) / tokens,
        "train/clip_fraction": sum(part.clipped for part in parts) / tokens,
        "train/kl_reference": float(np.concatenate([part.kl for part in parts]).mean()),
        "train/correction_truncated": sum(part.corrected for part in parts) / tokens,
        **diagnostics.sampler_agreement([[p.stats.agreement for p in each] for each in updates]),
        "train/grad_norm": mean(first.grad_norm for first in firsts),
        "train/skipped_updates": sum(first.skipped for first in firsts),
        "memory/learner_peak_mb": max(one.memory_mb for update in updates for one in update),
    }
    if parts[0].values is not None:
        values = np.concatenate([part.values for part in parts])
        returns = np.concatenate([part.returns for part in parts])
        metrics |= {
            "train/value_loss": sum(part.value_loss for part in parts) / len(updates),
            "train/value_explained": explained_variance(values, returns),
            "train/critic_grad_norm": mean(first.critic_grad_norm for first in firsts),
        }
    return metrics


def mean_rated(groups: Sequence[Group], values: Sequence[Sequence[float]]) -> float:
    """The mean of the candidates' `values`, [groups][candidates], but for those that are lost."""
    pairs = zip(groups, values, strict=True)
    rated = [of_group[i] for group, of_group in pairs for i in group.rated]
    return mean(rated) if rated else 0.0


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)

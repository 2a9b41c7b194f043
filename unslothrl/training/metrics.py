"""The metrics of a step and of an evaluation, from what came of them, and the single tokens that
the report shows."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unslothrl.algorithms import divergence
from unslothrl.algorithms.advantages import explained_variance, has_signal
from unslothrl.records import Completion, Group, Sample, Update
from unslothrl.tracking.metrics import MOST_COMPLETIONS, QUANTILES, chosen_groups

Metrics = dict[str, float]
mean = statistics.fmean
SHARES = [int(name[-2:]) / 100 for name in QUANTILES]

# Of the tokens that are shown
MOST_TRACED = 200  # of a run that are traced, about
MOST_TOKENS = 40_000  # of a step, all its completions together
LONGEST = 1000  # tokens of a completion
MOST_BYTES = 4  # of a character, and so tokens
REPLACED = "\ufffd"  # what a decoder writes for a part of a character


def rollout_metrics(groups: Sequence[Group], failed: int, seconds: float) -> Metrics:
    """Of all groups that were drawn for a step, in so many seconds; `failed` rewards."""
    completions = [completion for group in groups for completion in group.completions]
    tokens = sum(sum(c.version_counts.values()) for c in completions)
    totals = rated(groups, [group.totals for group in groups])
    return {
        "reward/mean": mean(totals) if totals else 0.0,
        **dict(zip(QUANTILES, np.quantile(totals or [0.0], SHARES).tolist(), strict=True)),
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
    oldest = [drawn_under for group in groups if (drawn_under := group.policy_version) >= 0]
    metrics: Metrics = {"rollout/staleness": version - min(oldest, default=version)}
    if not most:
        return metrics
    counts: Counter[int] = Counter()
    for group in groups:
        for completion in group.completions:
            counts.update({version - v: n for v, n in completion.version_counts.items()})
    total = sum(counts.values())
    mean_staleness = sum(behind * count for behind, count in counts.items()) / total
    shares = {f"rollout/staleness_{n}": counts[n] / total for n in range(max(most, *counts) + 1)}
    return {**metrics, "rollout/staleness_mean": mean_staleness, **shares}


def eval_metrics(prefix: str, groups: Sequence[Group]) -> Metrics:
    """pass@1 is the mean over candidates, best-of-n that of each group's best."""
    return {
        f"{prefix}/pass@1": mean(score for group in groups for score in group.scores),
        f"{prefix}/best_of_n": mean(max(group.scores) for group in groups),
        f"{prefix}/mean_length": mean_length(groups),
    }


def mean_length(groups: Sequence[Group]) -> float:
    """Of a completion, in sampled tokens."""
    return mean(sum(c.version_counts.values()) for group in groups for c in group.completions)


def selection_metrics(groups: Sequence[Group]) -> Metrics:
    """What is trained on, and the signal in it."""
    selected = [group.advantages[i] for group in groups for i in group.chosen]
    without = [not has_signal([group.totals[i] for i in group.rated]) for group in groups]
    return {
        "rollout/groups": len(groups),
        "reward/zero_signal_groups": sum(without),
        "train/selected_completions": len(selected),
        "train/selected_advantage_mean": sum(selected) / max(1, len(selected)),
    }


def update_metrics(updates: Sequence[Sequence[Update]]) -> Metrics:
    """The `train/` metrics of a step's updates, each from every learner's part."""
    parts = [one for update in updates for one in update]
    firsts = [update[0] for update in updates]  # the step itself is the same in all learners
    tokens = sum(part.tokens for part in parts)
    metrics = {
        "train/loss": sum(part.loss for part in parts) / len(updates),
        "train/entropy": sum(part.entropy_sum for part in parts) / tokens,
        "train/clip_fraction": sum(part.clipped for part in parts) / tokens,
        "train/kl_reference": float(np.concatenate([part.kl for part in parts]).mean()),
        "train/correction_truncated": sum(part.corrected for part in parts) / tokens,
        **divergence.sampler_agreement(updates),
        "train/grad_norm": mean(first.grad_norm for first in firsts),
        "train/skipped_updates": sum(first.skipped for first in firsts),
        "memory/learner_peak_mb": max(part.memory_mb for part in parts),
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
    return mean(rated(groups, values) or [0.0])


def rated(groups: Sequence[Group], values: Sequence[Sequence[float]]) -> list[float]:
    pairs = zip(groups, values, strict=True)
    return [of_group[i] for group, of_group in pairs for i in group.rated]


def is_traced(step: int, total_steps: int) -> bool:
    """Every step of a short run; of a long one the first, and every so many."""
    return step == 1 or step % -(-total_steps // MOST_TRACED) == 0


class Trace:
    """Of a step: the rows of its rollouts (see `rows.rollout_rows`) whose tokens are shown.

    A learner hands over its distance from the sampler anyway (`Update.difference`), and of these
    completions its log-probabilities, which it has computed too; so neither what is computed nor
    how long it takes depends on whether a step is traced.
    """

    def __init__(self, groups: Sequence[Group], samples: Sequence[Sample]):
        shown = chosen_groups([len(group.completions) for group in groups])
        begins = np.cumsum([0, *(len(group.completions) for group in groups)]).tolist()
        self.completions: dict[int, Completion] = {
            begins[g] + i: completion
            for g in shown
            for i, completion in enumerate(groups[g].completions[:MOST_COMPLETIONS])
        }
        # By row, of those that were selected; of several sequences the last is shown.
        self.samples = {s.row: s for s in samples if s.row in self.completions}
        self.logprobs: dict[int, np.ndarray] = {
            row: sample.logprobs
            for row, sample in self.samples.items()
            if sample.logprobs is not None
        }

    def asked(self, samples: Sequence[Sample]) -> list[Sample]:
        """The same, of which some ask for what is not known yet."""
        shown = {id(s) for row, s in self.samples.items() if row not in self.logprobs}
        return [replace(s, is_traced=True) if id(s) in shown else s for s in samples]

    def saw(self, parts: Sequence[Update]) -> None:
        for part in parts:
            self.logprobs |= part.traced

    def tokens(self, pieces: Callable[[Sequence[int]], list[str]]) -> dict[int, dict[str, Any]]:
        """-> by row the tokens to be shown, for `write_tokens`; `pieces` gives their texts."""
        most = min(LONGEST, MOST_TOKENS // max(1, len(self.completions)))
        found = {}
        for row, completion in self.completions.items():
            sampled = completion.sampled[:most]
            logprobs = completion.logprobs[:most][sampled]
            gaps = advantages = None
            if (known := self.logprobs.get(row)) is not None:
                gaps = by_token(known[: len(logprobs)].astype(np.float64) - logprobs, sampled)
            values = self.samples[row].advantages if row in self.samples else np.zeros(0)
            if len(values) and (values != values[0]).any():  # a critic's
                advantages = by_token(values, sampled)
            found[row] = {
                "pieces": pieces(completion.token_ids[:most].tolist()),
                "logprobs": by_token(logprobs, sampled),
                "gaps": gaps,
                "advantages": advantages,
                "left_out": max(0, len(completion.token_ids) - most),
            }
        return found


def by_token(values: np.ndarray, sampled: np.ndarray) -> list[float | None]:
    """[sampled tokens] -> [tokens], None where a token was not sampled."""
    given = iter(values.tolist())
    return [next(given) if was_sampled else None for was_sampled in sampled.tolist()]


class Pieces:
    """Gives tokens their texts, by a tokenizer of its own that is loaded when the first is asked
    for: it is used in another thread than the run's."""

    def __init__(self, load: Callable[[], Any]):
        self.load = load
        self.tokenizer: Any = None
        self.known: dict[tuple[int, ...], str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; where several are one character, it is the last one's."""
        pieces: list[str] = []
        begin = 0
        for end in range(1, len(ids) + 1):
            text = self._text(tuple(ids[begin:end]))
            is_part = text.endswith(REPLACED) and end - begin < MOST_BYTES and end < len(ids)
            pieces.append("" if is_part else text)
            if not is_part:
                begin = end
        return pieces

    def _text(self, ids: tuple[int, ...]) -> str:
        if ids not in self.known:
            self.tokenizer = self.tokenizer or self.load()
            text = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
            first = self.tokenizer.convert_ids_to_tokens(ids[0]) or ""
            if first.startswith("\u2581") and not text.startswith(" "):  # SentencePiece's space
                text = f" {text}"
            self.known[ids] = text
        return self.known[ids]

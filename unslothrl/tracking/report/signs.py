"""What a newcomer should look at: rules over the metrics of a run, each with what to do about it.

A rule takes the rows of metrics.jsonl and the run's options, and returns what it has seen, or None.
Beginning and end are the means of the first and the last tenth of the steps, of three at least.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unslothrl.tracking.metrics import Points, Row, components, eval_sets, mean, series, short

LEAST = 3  # steps at either end
NEAR_BEST = 0.9  # of a score of at most 1
PLACES = 50  # of a tenth of a run at which its mean is looked at
WARNING, NOTE = "warning", "note"

Rows = Sequence[Row]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Sign:
    """Something in a run that asks for a look."""

    title: str
    seen: str
    advice: str
    level: str = WARNING


def never_right(rows: Rows, options: Options) -> Sign | None:
    """Every step's score is 0."""
    points = series(rows, "rollout/score")
    if len(points) < LEAST or any(value for _, value in points):
        return None
    return Sign(
        "No completion was ever right",
        f"The score was 0 in all {len(points)} steps: what is never sampled cannot be learnt.",
        "Read some completions below. If answers are right and counted as wrong, check them with "
        "`unslothrl score`. If they are cut off, raise --max_new_tokens. Otherwise begin with "
        "easier problems, a larger --model or more --num_candidates.",
    )


def always_right(rows: Rows, options: Options) -> Sign | None:
    """The score is nearly 1 from the beginning."""
    points = series(rows, "rollout/score")
    values = [value for _, value in points]
    if len(points) < LEAST or min(values) < 0.97 or max(values) > 1:  # over 1: a scale of its own
        return None
    return Sign(
        "Nearly everything was right from the start",
        f"The score was never below {short(min(values))}.",
        "There is little to learn from these problems: use harder ones.",
        NOTE,
    )


def no_signal(rows: Rows, options: Options) -> Sign | None:
    """Most groups of the last steps have equal rewards."""
    points, groups = series(rows, "reward/zero_signal_groups"), options.get("batch_size")
    if len(points) < LEAST or not groups:
        return None
    share = ends(points)[1] / groups
    if share < 0.7:
        return None
    if near_best(rows):
        return Sign(
            "Most problems are solved by now",
            f"In {share:.0%} of the groups of the last steps all candidates earned the same, at a "
            f"score of {short(ends(series(rows, 'rollout/score'))[1])}.",
            "There is little left to learn from these problems: stop here, or go on with harder "
            "ones.",
            NOTE,
        )
    return Sign(
        "Most groups had nothing to learn from",
        f"In {share:.0%} of the groups of the last steps all candidates earned the same, so their "
        "advantages are 0.",
        "Problems that are always or never solved teach nothing: mix in others, raise "
        "--num_candidates or --temperature, or set --learner dapo, which redraws such groups.",
    )


def near_best(rows: Rows) -> bool:
    """Whether the score of the last steps is nearly the 1 of a run where everything is right."""
    points = series(rows, "rollout/score")
    return len(points) >= LEAST and NEAR_BEST <= ends(points)[1] <= 1


def collapse(rows: Rows, options: Options) -> Sign | None:
    """The reward has fallen far below its best."""
    points = series(rows, "reward/mean")
    if len(points) < 2 * LEAST:
        return None
    window = window_of(points)
    last_start = len(points) - window
    stride = max(1, window // PLACES)  # a long run is not gone through at every step
    means = [
        (points[i + window - 1][0], mean([value for _, value in points[i : i + window]]))
        for i in [*range(0, last_start, stride), last_start]
    ]
    step, best = max(means, key=lambda point: point[1])
    last, lowest = means[-1][1], min(value for _, value in means)
    if best - last < 0.5 * (best - lowest) or best - last < 0.2 * max(abs(best), 0.25):
        return None
    return Sign(
        "The reward collapsed",
        f"Its mean fell from {short(best)} at about step {step} to {short(last)}.",
        f"Use the adapter from before the fall (about step {step}). Look at sampler gap, entropy "
        "and length at that time, then lower --lr or --max_grad_norm.",
    )


def entropy_collapse(rows: Rows, options: Options) -> Sign | None:
    """The policy has become nearly deterministic."""
    points = series(rows, "train/entropy")
    if len(points) < 2 * LEAST:
        return None
    first, last = ends(points)
    if last > 0.2 * first or last > 0.1:
        return None
    return Sign(
        "Candidates have become alike",
        f"The entropy fell from {short(first)} to {short(last)} nats per token.",
        "The policy tries little that is new. That is fine if the reward is near its best; "
        "otherwise raise --temperature, or lower --lr.",
        NOTE,
    )


def length_drift(rows: Rows, options: Options) -> Sign | None:
    """Completions have become much longer or shorter."""
    points = series(rows, "rollout/mean_length")
    if len(points) < 2 * LEAST:
        return None
    first, last = ends(points)
    if 0.5 * first < last < 1.6 * first:
        return None
    return Sign(
        f"Completions became {'longer' if last > first else 'shorter'}",
        f"Their mean length went from {short(first)} to {short(last)} tokens.",
        "Read completions from both times. If they are longer but no better, the loss often "
        "favours length (--learner dr_grpo does not). If they are shorter, the reward may ask for "
        "no reasoning.",
        NOTE,
    )


def truncated(rows: Rows, options: Options) -> Sign | None:
    """Many completions of the last steps are cut off."""
    points = series(rows, "rollout/truncated")
    if len(points) < LEAST or (last := ends(points)[1]) < 0.2:
        return None
    has_turns = bool(series(rows, "episode/turns"))
    limit = None if has_turns else options.get("max_new_tokens")
    lengths = "--max_new_tokens or --max_episode_tokens" if has_turns else "--max_new_tokens"
    return Sign(
        "Many completions were cut off",
        f"{last:.0%} of the completions of the last steps reached the limit"
        + (f" of {limit} tokens" if limit else "")
        + ", most before an answer.",
        f"Raise {lengths}, or ask for shorter answers in --system_prompt.",
    )


def growing_gap(rows: Rows, options: Options) -> Sign | None:
    """Sampler and learner have drifted apart."""
    points = series(rows, "train/sampler_gap")
    if len(points) < 2 * LEAST:
        return None
    first, last = ends(points)
    if last < 3 * first or last < 0.03:
        return None
    return Sign(
        "The sampler gap grew",
        f"The mean distance of sampler and learner went from {short(first)} to {short(last)} nats "
        "per token.",
        "The learner trains on completions that are less and less its own: lower --lr or "
        "--max_staleness, or set --objective.correction truncated.",
    )


def large_gap(rows: Rows, options: Options) -> Sign | None:
    """Sampler and learner differ much from the beginning."""
    points = series(rows, "train/sampler_gap")
    if len(points) < LEAST or (first := ends(points)[0]) < 0.1:
        return None
    return Sign(
        "Sampler and learner disagree",
        f"They were {short(first)} nats per token apart from the start; 0.002 to 0.02 is usual.",
        "Colour tokens by their gap below to see whether a few or all differ. Then set "
        "--objective.correction truncated, or another --engine.",
    )


def not_finite(rows: Rows, options: Options) -> Sign | None:
    """Updates were skipped."""
    skipped = [(step, value) for step, value in series(rows, "train/skipped_updates") if value]
    if not skipped:
        return None
    count = int(sum(value for _, value in skipped))
    return Sign(
        "Updates were not finite",
        f"{count} {'update was' if count == 1 else 'updates were'} skipped, the first in step "
        f"{skipped[0][0]}: a loss or gradient overflowed.",
        "One in many steps does no harm; if there are several, lower --lr or --max_grad_norm.",
    )


def failed_rewards(rows: Rows, options: Options) -> Sign | None:
    """Rewards could not be computed."""
    failed = [(step, value) for step, value in series(rows, "reward/failed") if value]
    if not failed:
        return None
    return Sign(
        "Rewards failed",
        f"{sum(value for _, value in failed):,.0f} could not be computed and counted as 0, in "
        f"{len(failed)} {'step' if len(failed) == 1 else 'steps'}, the first of them step "
        f"{failed[0][0]}.",
        "The run's output names the exception. Try the function with `unslothrl score`; slow ones "
        "need a larger --reward_timeout.",
    )


def silent_reward(rows: Rows, options: Options) -> Sign | None:
    """One of several rewards never said anything."""
    names = components(rows)
    if len(names) < 2 or len(series(rows, "reward/mean")) < LEAST:
        return None
    silent = [n for n in names if not any(value for _, value in series(rows, n))]
    if not silent or len(silent) == len(names):
        return None
    named = ", ".join(name.removeprefix("reward/") for name in silent)
    return Sign(
        f"No completion ever earned {named}",
        "It was 0 in every step and contributed nothing to the training.",
        "Check with `unslothrl score` that it can be earned at all, and that the system prompt "
        "asks for what it rewards.",
        NOTE,
    )


def eval_fell(rows: Rows, options: Options) -> Sign | None:
    """Fewer problems of a held-out set are solved than before."""
    rewards = series(rows, "reward/mean")
    for name in eval_sets(rows):
        points = series(rows, f"eval/{name}/pass@1")
        if len(points) < 2 or len(rewards) < 2 or points[-1][1] > points[0][1] - 0.03:
            continue
        first, last = ends(rewards)
        return Sign(
            "Held-out problems are solved less often",
            f"pass@1 on {name} went from {short(points[0][1])} to {short(points[-1][1])}, the "
            f"reward in training from {short(first)} to {short(last)}.",
            "Rising rewards with falling evaluations mean that the reward is earned without being "
            "right, or that training problems are memorised. If neither is so, lower --lr.",
        )
    return None


def few_effective(rows: Rows, options: Options) -> Sign | None:
    """Importance weights leave few tokens effective."""
    points = series(rows, "train/ess")
    if len(points) < LEAST or (last := ends(points)[1]) > 0.8:
        return None
    return Sign(
        "Few tokens count",
        f"Sampler and learner differ so much that only {last:.0%} of the tokens would be "
        "effective.",
        "Lower --max_staleness or --lr.",
    )


def too_short(rows: Rows, options: Options) -> Sign | None:
    """Too few steps to judge."""
    count = len(series(rows, "reward/mean"))
    if count >= 2 * LEAST:
        return None
    return Sign(
        "Too early to say",
        f"There {'is 1 step' if count == 1 else f'are {count} steps'}; most signs need "
        f"{2 * LEAST}.",
        "Rewards of single steps scatter; the evaluations before and after tell more.",
        NOTE,
    )


Rule = Callable[[Rows, Options], Sign | None]
RULES: tuple[Rule, ...] = (
    never_right,
    collapse,
    eval_fell,
    not_finite,
    failed_rewards,
    no_signal,
    truncated,
    growing_gap,
    large_gap,
    few_effective,
    length_drift,
    entropy_collapse,
    silent_reward,
    always_right,
    too_short,
)


def found(rows: Rows, options: Options, rules: Sequence[Rule] = RULES) -> list[Sign]:
    """The signs of a run, warnings first."""
    signs = [sign for rule in rules if (sign := rule(rows, options)) is not None]
    return sorted(signs, key=lambda sign: sign.level != WARNING)


def window_of(points: Points) -> int:
    """How many steps are its beginning, or its end."""
    return max(LEAST, len(points) // 10)


def ends(points: Points) -> tuple[float, float]:
    """The means of the beginning and the end of a curve."""
    window = window_of(points)
    values = [value for _, value in points]
    return mean(values[:window]), mean(values[-window:])

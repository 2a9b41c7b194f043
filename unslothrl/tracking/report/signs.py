"""What a newcomer should look at: one table of rules over the metrics of a run of any kind.

A rule's test takes a run and returns what fills the blanks of the rule's sentence, or None.
Beginning and end are the means of the first and the last tenth of the steps: see `RunHistory.ends`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from unslothrl.tracking.metrics import Points, components, is_number
from unslothrl.tracking.metrics import short as n
from unslothrl.tracking.origin import DPO, RL, RM, SFT
from unslothrl.tracking.report.history import LEAST, RunHistory

CHANCE, NEAR_CHANCE = 0.5, 0.05  # of pairs, and what may be luck
FELL = 0.03  # of a share
WARNING, NOTE = "warning", "note"

Blanks = Mapping[str, Any] | None


@dataclass(frozen=True)
class Rule:
    """What is looked for in runs of some kinds."""

    title: str
    test: Callable[[RunHistory], Blanks]
    seen: str  # a sentence with {blanks}
    advice: str
    level: str = WARNING
    kinds: tuple[str, ...] = (RL,)
    of: str = ""  # the metric whose chart shows it, where the test does not say

    @property
    def metric(self) -> str:
        return self.of or getattr(self.test, "metric", "")

    @property
    def limit(self) -> float | None:
        return getattr(self.test, "limit", None)


class Sign(NamedTuple):
    rule: Rule
    seen: str  # what it has seen in a run


def found(run: RunHistory) -> list[Sign]:
    """The signs of a run, warnings first."""
    signs = [
        Sign(rule, rule.seen.format(**blanks))
        for rule in RULES
        if run.kind in rule.kinds and (blanks := rule.test(run)) is not None
    ]
    return sorted(signs, key=lambda sign: sign.rule.level != WARNING)


# Tests


class Trend:
    """A metric over the steps, at least one."""

    def __init__(self, points: Points, ends: tuple[float, float]):
        self.points = points
        self.ends = ends  # means of the beginning and the end: see `RunHistory.ends`
        self.values = [value for _, value in points]
        self.trained = points[-1][1] if points[-1][0] >= 2 * LEAST else math.nan
        self.lowest = min(points, key=lambda point: point[1])
        self.highest = max(points, key=lambda point: point[1])
        self.best = self.highest[1]


@dataclass(frozen=True)
class On:
    """Whether something holds of a metric that `least` steps have; * is any evaluation set."""

    metric: str
    holds: Callable[[Trend], bool]
    least: int = 2 * LEAST
    limit: float | None = None  # beyond which it does, in the metric's chart

    def __call__(self, run: RunHistory) -> Blanks:
        for name in run.sets if "*" in self.metric else [""]:
            points = run.points(self.metric.replace("*", name))
            ends = run.ends(self.metric.replace("*", name), self.least)
            if ends is None or not self.holds(found := Trend(points, ends)):
                continue
            first, last = (points[0][1], points[-1][1]) if name else ends
            at = [step for step, value in points if value]
            return {
                "set": name, "steps": len(points), "first": n(first), "last": n(last),
                "share": f"{last:.0%}", "lowest": n(found.lowest[1]), "at": found.lowest[0],
                "best": f"{found.best:.0%}", "best_at": found.highest[0],
                "total": f"{sum(found.values):,.0f}", "began": at[0] if at else 0,
            }  # fmt: skip
        return None


def no_signal(is_solved: bool, run: RunHistory) -> Blanks:
    """Most groups of the last steps have equal rewards, and most problems are solved or not."""
    equal, groups = run.ends("reward/zero_signal_groups"), run.options.get("batch_size")
    if equal is None or not groups or equal[1] / groups < 0.7:
        return None
    score = (run.ends("rollout/score") or (0.0, 0.0))[1]
    is_near_best = 0.9 <= score <= 1  # over 1: a scale of its own
    blanks = {"share": f"{equal[1] / groups:.0%}", "score": n(score)}
    return blanks if is_near_best == is_solved else None


def collapse(run: RunHistory) -> Blanks:
    """The reward has fallen far below its best."""
    points = run.points("reward/mean")
    if len(points) < 2 * LEAST:
        return None
    window = max(LEAST, len(points) // 10)
    means = np.convolve([value for _, value in points], np.full(window, 1 / window), "valid")
    at, last = int(means.argmax()), float(means[-1])
    best, lowest = float(means[at]), float(means.min())
    if best - last < max(0.5 * (best - lowest), 0.2 * max(abs(best), 0.25)):
        return None
    return {"best": n(best), "step": points[at + window - 1][0], "last": n(last)}


def silent_reward(run: RunHistory) -> Blanks:
    names = components(run.rows)
    silent = [name for name in names if not any(run.values(name))]
    if not 0 < len(silent) < len(names) or len(run.values("reward/mean")) < LEAST:
        return None
    return {"names": ", ".join(name.removeprefix("reward/") for name in silent)}


def not_finite(run: RunHistory) -> Blanks:
    names = ("train/loss", "train/grad_norm")
    steps = [r["step"] for r in run.rows if any(m in r and not is_number(r[m]) for m in names)]
    return {"steps": len(steps), "first": steps[0]} if steps else None


def rises(loss: Trend) -> bool:
    """Whether a loss is higher than it was, by more than noise."""
    best, gained = loss.lowest[1], loss.values[0] - loss.lowest[1]
    return loss.values[-1] - best > max(0.02 * abs(best), 0.1 * gained)


def margin_without_accuracy(run: RunHistory) -> Blanks:
    margins = run.ends("train/margin", 2 * LEAST)
    is_wider = margins is not None and margins[1] > margins[0]
    fell = On("eval/*/accuracy", lambda c: CHANCE + NEAR_CHANCE < c.best >= c.values[-1] + FELL, 2)
    return fell(run) if is_wider else None


def chosen_less_likely(run: RunHistory) -> Blanks:
    ends, beta = run.ends("train/reward_chosen", 2 * LEAST), run.options.get("beta")
    if ends is None or not is_number(beta) or not beta or ends[1] / beta > -5:
        return None
    return {"nats": n(-ends[1] / beta)}


def not_evaluated(run: RunHistory) -> Blanks:
    return {} if run.ends("train/loss", 2 * LEAST) and not run.sets else None


OFFLINE = (SFT, DPO, RM)
PAIRS = (DPO, RM)

RULES = (
    Rule("No completion was ever right",
         On("rollout/score", lambda c: not any(c.values), 2),
         "The score was 0 in all {steps} steps: what is never sampled cannot be learnt.",
         "Read some completions below. If answers are right and counted as wrong, check them with "
         "`unslothrl score`. If they are cut off, raise --max_new_tokens. Otherwise begin with "
         "easier problems, a larger --model or more --num_candidates."),
    Rule("The reward collapsed", collapse,
         "Its mean fell from {best} at about step {step} to {last}.",
         "Use the adapter from before the fall. Look at sampler gap, entropy and length at that "
         "time, then lower --lr or --max_grad_norm.", of="reward/mean"),
    Rule("Held-out problems are solved less often",
         On("eval/*/pass@1", lambda c: c.values[-1] <= c.values[0] - FELL, 2),
         "pass@1 on {set} went from {first} to {last}.",
         "Rising rewards with falling evaluations mean that the reward is earned without being "
         "right, or that training problems are memorised. If neither is so, lower --lr."),
    Rule("Updates were not finite",
         On("train/skipped_updates", lambda c: any(c.values), 1),
         "Updates skipped: {total}, the first in step {began}: a loss or gradient overflowed.",
         "One in many steps does no harm; if there are several, lower --lr or --max_grad_norm."),
    Rule("Rewards failed", On("reward/failed", lambda c: any(c.values), 1),
         "{total} could not be computed and counted as 0, the first of them in step {began}.",
         "The run's output names the exception. Try the function with `unslothrl score`; slow ones "
         "need a larger --reward_timeout."),
    Rule("Most groups had nothing to learn from", partial(no_signal, False),
         "In {share} of the groups of the last steps all candidates earned the same, so their "
         "advantages are 0.",
         "Problems that are always or never solved teach nothing: mix in others, raise "
         "--num_candidates or --temperature, or set --learner dapo, which redraws such groups.",
         of="reward/zero_signal_groups"),
    Rule("Most problems are solved by now", partial(no_signal, True),
         "In {share} of the groups of the last steps all candidates earned the same, at a score "
         "of {score}.",
         "There is little left to learn from these problems: stop here, or continue with harder "
         "ones.", NOTE, of="reward/zero_signal_groups"),
    Rule("Many completions were cut off",
         On("rollout/truncated", lambda c: c.ends[1] >= 0.2, LEAST, 0.2),
         "{share} of the completions of the last steps reached the limit, most before an answer.",
         "Raise --max_new_tokens (of episodes --max_episode_tokens), or ask for shorter answers "
         "in --system_prompt."),
    Rule("The sampler gap grew",
         On("train/sampler_gap", lambda c: c.ends[1] >= max(3 * c.ends[0], 0.03), limit=0.03),
         "The mean distance of sampler and learner went from {first} to {last} nats per token.",
         "The learner trains on completions that are less and less its own: lower --lr or "
         "--max_staleness, or set --objective.correction truncated."),
    Rule("Sampler and learner disagree",
         On("train/sampler_gap", lambda c: c.ends[0] >= 0.1, LEAST, 0.1),
         "They were {first} nats per token apart from the start; 0.002 to 0.02 is usual.",
         "Colour tokens by their gap below to see whether a few or all differ. Then set "
         "--objective.correction truncated, or another --engine."),
    Rule("Few tokens count", On("train/ess", lambda c: c.ends[1] <= 0.8, LEAST, 0.8),
         "Sampler and learner differ so much that only {share} of the tokens would be effective.",
         "Lower --max_staleness or --lr."),
    Rule("Completions became longer",
         On("rollout/mean_length", lambda c: c.ends[1] >= 1.6 * c.ends[0]),
         "Their mean length went from {first} to {last} tokens.",
         "Read completions from both times. If they are longer but no better, the loss often "
         "favours length (--learner dr_grpo does not).", NOTE),
    Rule("Completions became shorter",
         On("rollout/mean_length", lambda c: c.ends[1] <= 0.5 * c.ends[0]),
         "Their mean length went from {first} to {last} tokens.",
         "Read completions from both times: the reward may ask for no reasoning.", NOTE),
    Rule("Candidates have become alike",
         On("train/entropy", lambda c: c.ends[1] <= min(0.2 * c.ends[0], 0.1), limit=0.1),
         "The entropy fell from {first} to {last} nats per token.",
         "The policy tries little that is new. That is fine if the reward is near its best; "
         "otherwise raise --temperature, or lower --lr.", NOTE),
    Rule("A reward was never earned", silent_reward,
         "{names} was 0 in every step and contributed nothing to the training.",
         "Check with `unslothrl score` that it can be earned at all, and that the system prompt "
         "asks for what it rewards.", NOTE),
    Rule("Nearly everything was right from the start",
         On("rollout/score", lambda c: min(c.values) >= 0.97 and max(c.values) <= 1, LEAST),
         "The score was never below {lowest}.",
         "There is little to learn from these problems: use harder ones.", NOTE),
    Rule("The loss was not finite", not_finite,
         "Loss or gradient norm was no number in {steps} steps, the first of them step {first}.",
         "An adapter that was saved afterwards is of no use: begin again from an earlier one with "
         "a lower --lr or --max_grad_norm.", kinds=OFFLINE, of="train/loss"),
    Rule("The held-out loss rises: stop earlier", On("eval/*/loss", rises, 2),
         "On {set} it was {lowest} after step {at}, and is {last} now.",
         "What was learnt since then does not carry over: use the adapter of that step, or train "
         "with fewer --episodes, a lower --lr or more rows.", kinds=OFFLINE),
    Rule("Held-out pairs are told apart no better than by chance",
         On("eval/*/accuracy", lambda c: abs(c.trained - CHANCE) <= NEAR_CHANCE, 1, CHANCE),
         "On {set} the better answer is preferred in {share} of the pairs.",
         "It has learnt nothing that carries over. Train longer or with a higher --lr; if that "
         "does not help, read some pairs: the better answer must be recognisable.", kinds=PAIRS),
    Rule("The worse answers are preferred",
         On("eval/*/accuracy", lambda c: c.trained < CHANCE - NEAR_CHANCE, 1, CHANCE),
         "On {set} the better answer is preferred in {share} of the pairs.",
         "Check that the columns are not exchanged: --chosen_column and --rejected_column. If they "
         "are right, train longer or with a higher --lr.", kinds=PAIRS),
    Rule("The margin grows while held-out accuracy falls", margin_without_accuracy,
         "On {set} the better answer was preferred in {best} of the pairs after step {best_at}, "
         "and is in {share} now.",
         "The training pairs are being memorised: use the adapter of that step, or train with "
         "fewer --episodes or a lower --lr.", kinds=PAIRS, of="train/margin"),
    Rule("The better answers became less likely, too", chosen_less_likely,
         "At the end their log-probability is {nats} nats below the reference's.",
         "DPO widens the distance between two answers by lowering both. Answers may get worse: "
         "compare some with `unslothrl ask`, lower --lr, raise --beta, or teach the better answers "
         "by `unslothrl sft` before.", kinds=(DPO,), of="train/reward_chosen"),
    Rule("Nearly everything was known before",
         On("eval/*/token_accuracy", lambda c: c.points[0][0] == 0 and c.values[0] > 0.97, 1),
         "On {set} {first} of the tokens were right before the first step.",
         "There is little to learn from these rows.", NOTE, (SFT,)),
    Rule("Nothing was evaluated", not_evaluated,
         "Only losses of training are known, which fall also where rows are memorised.",
         "Set --eval_every, and --eval_dataset where the data has no test split.", NOTE, OFFLINE,
         of="train/loss"),
    Rule("Too early to say", On("timing/step_s", lambda c: len(c.points) < 2 * LEAST, 1),
         "Steps so far: {steps}; most signs need 6.",
         "Figures of single steps scatter; the evaluations before and after tell more.", NOTE,
         (RL, *OFFLINE)),
)  # fmt: skip

"""What a newcomer should look at: one table of rules over the metrics of a run of any kind.

Beginning and end are the means of the first and the last tenth of the steps: see `RunHistory.ends`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from unslothrl.tracking.metrics import components, is_number, mean
from unslothrl.tracking.metrics import short as n
from unslothrl.tracking.origin import DPO, RL, RM, SFT
from unslothrl.tracking.report.history import LEAST, RunHistory

CHANCE, NEAR_CHANCE = 0.5, 0.05  # of pairs, and what may be luck
FELL = 0.03  # of a share
WARNING, NOTE = "warning", "note"
TRUNCATED, NEARLY_ALL = "Many completions were cut off", 0.8
NEVER = "Almost no completion was graded as right"
EARNS_NOTHING = "gives 0 to"  # in a warning before the first step, of a reward
UNGRADED = (
    "Work out two or three problems yourself, in the report or in RUN/rollouts. Is a completion "
    "right that earned nothing? The answer of your data is wrong, belongs to another row or is a "
    "sentence; or a reward of your own does not read what the model writes: try `unslothrl score "
    "RUN/rollouts/step_000001.jsonl --reward accuracy --reward boxed`, with your own too. Does one "
    "end early? Raise --max_new_tokens. Only if all are wrong, take problems that the model solves "
    "sometimes or a larger --model."
)


class Trend:
    """A metric over the steps of a run, or of the evaluations of a set."""

    def __init__(self, run: RunHistory, metric: str, of_set: str = ""):
        self.run, self.of_set = run, of_set
        self.points = run.points(metric)
        self.values = [value for _, value in self.points]
        self.lowest = min(self.points, key=itemgetter(1), default=(0, math.nan))
        self.highest = max(self.points, key=itemgetter(1), default=(0, math.nan))
        self.ends = run.ends(metric, 0) or (0.0, 0.0)  # means of the beginning and the end
        if of_set and self.points:
            self.ends = self.values[0], self.values[-1]

    @property
    def trained(self) -> float:
        """The last value, of a run that is long enough to have changed it."""
        return self.values[-1] if self.points[-1][0] >= 2 * LEAST else math.nan

    def blanks(self) -> dict[str, Any]:
        (first, last), (at, lowest), (best_at, best) = self.ends, self.lowest, self.highest
        return {
            "set": self.of_set, "steps": len(self.points), "first": n(first), "last": n(last),
            "share": f"{last:.0%}", "lowest": n(lowest), "at": at, "best": f"{best:.0%}",
            "best_at": best_at, "total": f"{sum(self.values):,.0f}",
            "began": next((step for step, value in self.points if value), 0),
        }  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """What is looked for in runs of some kinds."""

    title: str
    metric: str  # whose chart shows it; * is any evaluation set
    test: Callable[[Trend], Mapping[str, Any] | bool | None]  # -> whether it is so, or the blanks
    seen: str  # a sentence with {blanks}, by default those of the metric's trend
    advice: str
    level: str = WARNING
    kinds: tuple[str, ...] = (RL,)
    least: int = 2 * LEAST  # steps that have the metric
    limit: float | None = None  # beyond which it is so, in the metric's chart
    follows: str = ""  # the title of another rule of which this is a consequence


class Sign(NamedTuple):
    rule: Rule
    seen: str  # what it has seen in a run


def found(run: RunHistory) -> list[Sign]:
    """The signs of a run, warnings first."""
    signs = []
    for rule in (rule for rule in RULES if run.kind in rule.kinds):
        for name in run.sets if "*" in rule.metric else [""]:
            trend = Trend(run, rule.metric.replace("*", name), name)
            if len(trend.points) >= rule.least and (blanks := rule.test(trend)):
                filled = trend.blanks() if blanks is True else blanks
                signs.append(Sign(rule, rule.seen.format_map(filled)))
                break
    titles = {sign.rule.title for sign in signs}
    causes = [sign for sign in signs if sign.rule.follows not in titles]
    return sorted(causes, key=lambda sign: sign.rule.level != WARNING)


# Tests


def no_signal(is_solved: bool, equal: Trend) -> Mapping[str, Any] | None:
    """Most groups of the last steps have equal rewards, and most problems are solved or not."""
    groups = equal.run.options.get("batch_size")
    if not groups or equal.ends[1] / groups < 0.7:
        return None
    score = (equal.run.ends("rollout/score") or (0.0, 0.0))[1]
    is_near_best = 0.9 <= score <= 1  # over 1: a scale of its own
    blanks = {"share": f"{equal.ends[1] / groups:.0%}", "score": n(score)}
    return blanks if is_near_best == is_solved else None


def collapse(reward: Trend) -> Mapping[str, Any] | None:
    """The reward has fallen far below its best."""
    window = max(LEAST, len(reward.points) // 10)
    means = np.convolve(reward.values, np.full(window, 1 / window), "valid")
    at, last = int(means.argmax()), float(means[-1])
    best, lowest = float(means[at]), float(means.min())
    if best - last < max(0.5 * (best - lowest), 0.2 * max(abs(best), 0.25)):
        return None
    return {"best": n(best), "step": reward.points[at + window - 1][0], "last": n(last)}


def never_right(score: Trend) -> Mapping[str, Any] | None:
    """Unless nearly all completions were cut off, which tells why. With what the run's start has
    warned of."""
    cut = score.run.ends("rollout/truncated") or (0.0, 0.0)
    if min(score.values) < 0 or mean(score.values) >= 0.01 or cut[1] >= NEARLY_ALL:
        return None
    best = max(score.values)
    most = f"At most {best:.0%} of a step's completions were" if best else "No completion was"
    notes = [row["note"] for row in score.run.notes if row["note"].startswith("warning: ")]
    warned = {f" {note}.": None for note in notes if EARNS_NOTHING in note}  # of a start each
    return {"most": most, "steps": len(score.values), "warned": "".join(warned)}


def silent_reward(reward: Trend) -> Mapping[str, Any] | None:
    weights = (text.rpartition("=") for text in reward.run.options.get("reward", ()))
    measured = {f"reward/{name}" for name, _, weight in weights if name and not weight.strip("0.")}
    names = [name for name in components(reward.run.rows) if name not in measured]
    silent = [name for name in names if not any(reward.run.values(name))]
    if not 0 < len(silent) < len(names):
        return None
    return {"names": ", ".join(name.removeprefix("reward/") for name in silent)}


def not_finite(loss: Trend) -> Mapping[str, Any] | None:
    names = ("train/loss", "train/grad_norm")
    rows = loss.run.rows
    steps = [row["step"] for row in rows if any(m in row and not is_number(row[m]) for m in names)]
    return {"steps": len(steps), "first": steps[0]} if steps else None


def rises(loss: Trend) -> bool:
    """Whether a loss is higher than it was, by more than noise."""
    best, gained = loss.lowest[1], loss.values[0] - loss.lowest[1]
    return loss.values[-1] - best > max(0.02 * abs(best), 0.1 * gained)


def margin_without_accuracy(margin: Trend) -> Mapping[str, Any] | None:
    for name in margin.run.sets if margin.ends[1] > margin.ends[0] else []:
        right = Trend(margin.run, f"eval/{name}/accuracy", name)
        if right.points and CHANCE + NEAR_CHANCE < right.highest[1] >= right.values[-1] + FELL:
            return right.blanks()
    return None


def chosen_less_likely(chosen: Trend) -> Mapping[str, Any] | None:
    beta = chosen.run.options.get("beta")
    if not is_number(beta) or not beta or chosen.ends[1] / beta > -5:
        return None
    return {"nats": n(-chosen.ends[1] / beta)}


OFFLINE = (SFT, DPO, RM)
PAIRS = (DPO, RM)

RULES = (
    Rule(TRUNCATED, "rollout/truncated", lambda c: c.ends[1] >= 0.2,
         "{share} of the completions of the last steps reached the limit.",
         "Raise --max_new_tokens (of episodes --max_episode_tokens), or ask for shorter answers "
         "in --system_prompt.", least=LEAST, limit=0.2),
    Rule(NEVER, "rollout/score", never_right,
         "{most} graded as right, in {steps} steps.{warned}",
         UNGRADED, least=2),
    Rule("The reward collapsed", "reward/mean", collapse,
         "Its mean fell from {best} at about step {step} to {last}.",
         "Use the adapter from before the fall. Look at sampler gap, entropy and length at that "
         "time, then lower --lr or --max_grad_norm."),
    Rule("Held-out problems are solved less often",
         "eval/*/pass@1", lambda c: c.values[-1] <= c.values[0] - FELL,
         "pass@1 on {set} went from {first} to {last}.",
         "Rising rewards with falling evaluations mean that the reward is earned without being "
         "right, or that training problems are memorised. If neither is so, lower --lr.", least=2),
    Rule("Updates were not finite", "train/skipped_updates", lambda c: any(c.values),
         "Updates skipped: {total}, the first in step {began}: a loss or gradient overflowed.",
         "One in many steps does no harm; if there are several, lower --lr or --max_grad_norm.",
         least=1),
    Rule("Rewards failed", "reward/failed", lambda c: any(c.values),
         "{total} could not be computed and counted as 0, the first of them in step {began}.",
         "The run's output names the exception. Try the function with `unslothrl score`; slow ones "
         "need a larger --reward_timeout.", least=1),
    Rule("Most groups had nothing to learn from",
         "reward/zero_signal_groups", partial(no_signal, False),
         "In {share} of the groups of the last steps all candidates earned the same, so their "
         "advantages are 0.",
         "Problems that are always or never solved teach nothing: mix in others, raise "
         "--num_candidates or --temperature, or set --learner dapo, which redraws such groups.",
         least=LEAST, follows=NEVER),
    Rule("Most problems are solved by now", "reward/zero_signal_groups", partial(no_signal, True),
         "In {share} of the groups of the last steps all candidates earned the same, at a score "
         "of {score}.",
         "There is little left to learn from these problems: stop here, or continue with harder "
         "ones.", NOTE, least=LEAST),
    Rule("The sampler gap grew",
         "train/sampler_gap", lambda c: c.ends[1] >= max(3 * c.ends[0], 0.03),
         "The mean distance of sampler and learner went from {first} to {last} nats per token.",
         "The learner trains on completions that are less and less its own: lower --lr or "
         "--max_staleness, or set --objective.correction truncated.", limit=0.03),
    Rule("Sampler and learner disagree", "train/sampler_gap", lambda c: c.ends[0] >= 0.1,
         "They were {first} nats per token apart from the start; 0.002 to 0.02 is usual.",
         "Colour tokens by their gap below to see whether a few or all differ. Then set "
         "--objective.correction truncated, or another --engine.", least=LEAST, limit=0.1),
    Rule("Few tokens count", "train/ess", lambda c: c.ends[1] <= 0.8,
         "Sampler and learner differ so much that only {share} of the tokens would be effective.",
         "Lower --max_staleness or --lr.", least=LEAST, limit=0.8),
    Rule("Completions became longer", "rollout/mean_length", lambda c: c.ends[1] >= 1.6 * c.ends[0],
         "Their mean length went from {first} to {last} tokens.",
         "Read completions from both times. If they are longer but no better, the loss often "
         "favours length (--learner dr_grpo does not).", NOTE),
    Rule("Completions became shorter",
         "rollout/mean_length", lambda c: c.ends[1] <= 0.5 * c.ends[0],
         "Their mean length went from {first} to {last} tokens.",
         "Read completions from both times: the reward may ask for no reasoning.", NOTE),
    Rule("Candidates have become alike",
         "train/entropy", lambda c: c.ends[1] <= min(0.2 * c.ends[0], 0.1),
         "The entropy fell from {first} to {last} nats per token.",
         "The policy tries little that is new. That is fine if the reward is near its best; "
         "otherwise raise --temperature, or lower --lr.", NOTE, limit=0.1),
    Rule("A reward was never earned", "reward/mean", silent_reward,
         "{names} was 0 in every step and contributed nothing to the training.",
         "Check with `unslothrl score` that it can be earned at all, and that the system prompt "
         "asks for what it rewards.", NOTE, least=LEAST, follows=NEVER),
    Rule("Nearly everything was right from the start",
         "rollout/score", lambda c: min(c.values) >= 0.97 and max(c.values) <= 1,
         "The score was never below {lowest}.",
         "There is little to learn from these problems: use harder ones.", NOTE, least=LEAST),
    Rule("The loss was not finite", "train/loss", not_finite,
         "Loss or gradient norm was no number in {steps} steps, the first of them step {first}.",
         "An adapter that was saved afterwards is of no use: begin again from an earlier one with "
         "a lower --lr or --max_grad_norm.", kinds=OFFLINE, least=0),
    Rule("The held-out loss rises: stop earlier", "eval/*/loss", rises,
         "On {set} it was {lowest} after step {at}, and is {last} now.",
         "What was learnt since then does not carry over: use the adapter of that step, or train "
         "with fewer --episodes, a lower --lr or more rows.", kinds=OFFLINE, least=2),
    Rule("Held-out pairs are told apart no better than by chance",
         "eval/*/accuracy", lambda c: abs(c.trained - CHANCE) <= NEAR_CHANCE,
         "On {set} the better answer is preferred in {share} of the pairs.",
         "It has learnt nothing that carries over. Train longer or with a higher --lr; if that "
         "does not help, read some pairs: the better answer must be recognisable.", kinds=PAIRS,
         least=1, limit=CHANCE),
    Rule("The worse answers are preferred",
         "eval/*/accuracy", lambda c: c.trained < CHANCE - NEAR_CHANCE,
         "On {set} the better answer is preferred in {share} of the pairs.",
         "Check that the columns are not exchanged: --chosen_column and --rejected_column. If they "
         "are right, train longer or with a higher --lr.", kinds=PAIRS, least=1, limit=CHANCE),
    Rule("The margin grows while held-out accuracy falls", "train/margin", margin_without_accuracy,
         "On {set} the better answer was preferred in {best} of the pairs after step {best_at}, "
         "and is in {share} now.",
         "The training pairs are being memorised: use the adapter of that step, or train with "
         "fewer --episodes or a lower --lr.", kinds=PAIRS),
    Rule("The better answers became less likely, too", "train/reward_chosen", chosen_less_likely,
         "At the end their log-probability is {nats} nats below the reference's.",
         "DPO widens the distance between two answers by lowering both. Answers may get worse: "
         "compare some with `unslothrl ask`, lower --lr, raise --beta, or teach the better answers "
         "by `unslothrl sft` before.", kinds=(DPO,)),
    Rule("Nearly everything was known before",
         "eval/*/token_accuracy", lambda c: c.points[0][0] == 0 and c.values[0] > 0.97,
         "On {set} {first} of the tokens were right before the first step.",
         "There is little to learn from these rows.", NOTE, (SFT,), least=1),
    Rule("Nothing was evaluated", "train/loss", lambda c: not c.run.sets,
         "Only losses of training are known, which fall also where rows are memorised.",
         "Set --eval_every, and --eval_dataset where the data has no test split.", NOTE, OFFLINE),
    Rule("Too early to say", "timing/step_s", lambda c: len(c.points) < 2 * LEAST,
         "Steps so far: {steps}; most signs need 6.",
         "Figures of single steps scatter; the evaluations before and after tell more.", NOTE,
         (RL, *OFFLINE), least=1),
)  # fmt: skip

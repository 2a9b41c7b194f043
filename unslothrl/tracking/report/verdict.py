"""Whether a run has worked, in a sentence with one number: for its page, lists of runs and the end
of its output.

Training changed something if the paired interval of the first and the last evaluation excludes 0
and p is under 0.05. Of few problems the interval is too narrow, hence both.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from unslothrl.algorithms.estimates import Difference
from unslothrl.tracking.metrics import is_number, mean, short
from unslothrl.tracking.report import signs
from unslothrl.tracking.report.history import LEAST, RunHistory
from unslothrl.tracking.report.problems import difference, is_clear
from unslothrl.tracking.run_folder import RunFolder, noting_errors

BETTER, FLAT, UNKNOWN = "better", "no clear change", "unknown"
HACKED, COLLAPSED = "reward up alone", "worse"
BROKEN, STOPPED = "broken", "stopped"
SURE = 3.0  # standard errors by which a training curve has risen
ENDED = {"failed": "Failed", "killed": "Killed", "interrupted": "Stopped"}
ADVICE = {
    FLAT: "See in the report what does not improve. Train longer, with a higher --lr or other "
    "data; in RL also with more --num_candidates, on problems that are solved sometimes.",
    HACKED: "Read the completions with the highest rewards in the report: what earns without being "
    "right? Change the reward, and try it with `unslothrl score`.",
    COLLAPSED: "Use an adapter from before the fall, in adapters/, or train again with a lower "
    "--lr or --max_grad_norm.",
    BROKEN: "Read some completions in the report, and try the reward on right answers with "
    "`unslothrl score`.",
    STOPPED: "It ended early: continue it with --resume, and evaluate what it has learnt.",
}


class Verdict(NamedTuple):
    kind: str
    said: str  # the sentence
    number: str = ""  # its figure: "+45 points"
    tone: str = "same"  # or up and down, where that is sure; warn

    @property
    def advice(self) -> str:
        """What to look at instead of the adapter; "" where this may be worth using."""
        return ADVICE.get(self.kind, "")


NONE = Verdict(UNKNOWN, "")


def ending(folder: RunFolder, note: Callable[[str], None]) -> tuple[Verdict, Sequence[signs.Sign]]:
    """The verdict on a run, and its warnings; none where a file is damaged."""
    with noting_errors(note):
        run = RunHistory.read(folder)
        return verdict(run), [s for s in signs.found(run) if s.rule.level == signs.WARNING]
    return NONE, ()


def verdict(run: RunHistory) -> Verdict:
    steps = len(run.values("timing/step_s")) or len(run.values("train/loss"))
    ended = ENDED.get(run.status, "")
    if not steps:
        said = f"{ended or 'So far'}: no step was done"
        return Verdict(STOPPED if ended else UNKNOWN, said)
    if reason := broken(run, steps):
        return Verdict(BROKEN, f"Broken: {reason}", "0", "down")
    found = (of_problems if run.is_rl else of_loss)(run, f"{steps} step{'s' * (steps > 1)}")
    so_far = "So far" if run.status == "running" else ended
    if ended and found.kind in (FLAT, UNKNOWN):
        found = found._replace(kind=STOPPED)
    said = f"{so_far}: {found.said[0].lower()}{found.said[1:]}" if so_far else found.said
    return found._replace(said=f"{said}, {spoken(seconds(run))}")


def broken(run: RunHistory, steps: int) -> str:
    """Why nothing can have been learnt, or ""."""
    rewards, failed = run.values("reward/mean"), sum(run.values("reward/failed"))
    lost = sum(map(bool, run.values("train/skipped_updates")))
    lost += sum("train/loss" in row and not is_number(row["train/loss"]) for row in run.rows)
    counted = max(run.values("samples_seen"), default=0)
    if counted and failed >= counted / 2:
        return f"{failed / counted:.0%} of the rewards could not be computed"
    if len(rewards) > 1 and not any(rewards):
        return f"every reward was 0 in all {steps} steps"
    if lost >= max(1, steps / 2):
        return f"the loss or its gradient was not finite in {lost} of {steps} steps"
    return ""


def of_problems(run: RunHistory, steps: str) -> Verdict:
    """By the first held-out set: the last evaluation against the first."""
    gained = rise(run.values("reward/mean"))
    rewards = run.ends("reward/mean", 2) or (0.0, 0.0)
    went = f"the reward went from {short(rewards[0])} to {short(rewards[1])} in training"
    points = run.points(f"eval/{run.sets[0]}/pass@1") if run.sets else []
    if len(points) < 2:
        kind = UNKNOWN if gained or len(run.values("reward/mean")) < 2 * LEAST else FLAT
        said = f"Not known on held-out problems (--eval_every): {went}, {steps}"
        return Verdict(kind, said, f"{rewards[1] - rewards[0]:+.3g}")
    (_, before), (_, after) = points[0], points[-1]
    changed = difference((run, points[0]), (run, points[-1]), run.sets[0], "pass@1")
    shares = min(before, after) >= 0 and max(before, after) <= 1
    number = f"{100 * (after - before):+.0f} points" if shares else f"{after - before:+.3g}"
    share = (lambda value: f"{value:.0%}") if shares else short
    verb = "solved" if shares else "scored"
    solved = f"{verb} {share(after)} of held-out problems after {steps}, {share(before)} before"
    if not isinstance(changed, Difference):
        return Verdict(UNKNOWN, f"{solved.capitalize()}: {number}, no interval", number)
    solved += f": {number}, {str(changed).rpartition(', ')[2]}"
    is_up, is_down = is_clear(changed) and changed.mean > 0, is_clear(changed) and changed.mean < 0
    entropy = run.ends("train/entropy", 2 * LEAST)
    has_frozen = entropy is not None and entropy[1] <= min(0.2 * entropy[0], 0.1) and after < 0.9
    if is_up:
        return Verdict(BETTER, f"{solved[0].upper()}{solved[1:]}", number, "up")
    tone = "down" if is_down else "warn"
    if gained and (is_down or not rise(run.values("rollout/score"))):
        rose = f"The reward rose from {short(rewards[0])} to {short(rewards[1])} alone"
        return Verdict(HACKED, f"{rose}: {solved}", number, tone)
    if is_down or signs.collapse(run) or has_frozen:
        why = "" if is_down else f", and {'entropy is gone' if has_frozen else 'the reward fell'}"
        return Verdict(COLLAPSED, f"Collapsed: {solved}{why}", number, tone)
    return Verdict(FLAT, f"No clear change: {solved}", number)


def of_loss(run: RunHistory, steps: str) -> Verdict:
    """Of SFT, DPO and reward models, whose problems have no scores: so it has no interval."""
    points = run.points(f"eval/{run.sets[0]}/loss") if run.sets else run.points("train/loss")
    first, last = (points[0][1], points[-1][1]) if points else (0.0, 0.0)
    warned = {sign.rule.level for sign in signs.found(run) if sign.rule.kinds != signs.OFFLINE}
    kind = UNKNOWN if last < first and signs.WARNING not in warned else FLAT
    where = "Held-out loss" if run.sets else "Loss in training"
    said = f"{where} went from {short(first)} to {short(last)} in {steps}"
    return Verdict(kind, said, f"{last - first:+.3f}")


def rise(values: Sequence[float]) -> bool:
    """Whether the last third of a curve is higher than the first by more than noise (Welch's t),
    and by a twentieth."""
    third = len(values) // 3
    if third < 2:
        return False
    first, last = values[:third], values[-third:]
    noise = math.sqrt((statistics.variance(first) + statistics.variance(last)) / third)
    gained = mean(last) - mean(first)
    return gained > max(SURE * noise, 0.05 * abs(mean(first)))


def seconds(run: RunHistory) -> float:
    return sum(run.values("timing/step_s")) + sum(run.values("timing/eval_s"))


def spoken(seconds: float) -> str:
    """A time in words: 45 s, 5 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

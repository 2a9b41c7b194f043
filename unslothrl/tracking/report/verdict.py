"""Whether a run has worked, in a sentence with one number: for its page, lists of runs and the end
of its output.

Training changed something if the paired interval of the first and the last evaluation excludes 0
and p is under 0.05. Of few problems the interval is too narrow, hence both.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from unslothrl.algorithms.estimates import Difference
from unslothrl.tracking.metrics import duration, is_number, mean, short
from unslothrl.tracking.report import signs
from unslothrl.tracking.report.history import LEAST, RunHistory
from unslothrl.tracking.report.problems import difference, is_clear, ordered
from unslothrl.tracking.run_folder import RunFolder, noting_errors

BETTER, FLAT, UNKNOWN = "better", "no clear change", "unknown"
HACKED, COLLAPSED = "reward up alone", "worse"
NOTHING = "Nothing solved"
CONTROL = "control"
BROKEN, STOPPED = "broken", "stopped"
SURE = 3.0  # standard errors by which a training curve has risen
BEGINNING = {"running": "So far", "failed": "Failed", "killed": "Killed", "interrupted": "Stopped"}
ADVICE = {
    FLAT: "See in the report what does not improve. Where all was solved before, take harder "
    "problems; else train longer, with a higher --lr or other data; in RL also with more "
    "--num_candidates.",
    HACKED: "Read the completions with the highest rewards in the report: what earns without being "
    "right? Change the reward, and try it with `unslothrl score`.",
    COLLAPSED: "Use an adapter from before the fall, in adapters/, or train again with a lower "
    "--lr or --max_grad_norm.",
    BROKEN: signs.UNGRADED,
    CONTROL: "Its rewards were shuffled, so nothing should improve, but by the luck of one run: "
    "compare it with the run that it belongs to, `unslothrl report RUN CONTROL`; where it rose, "
    "repeat both with another --seed.",
    STOPPED: "It ended early: continue it with --resume, and evaluate what it has learnt.",
}


class Verdict(NamedTuple):
    kind: str
    said: str  # the sentence
    number: str = ""  # its figure: "+45 points"
    tone: str = "same"  # or up and down, where that is sure; warn
    is_warned: bool = False  # which says more than `ADVICE`

    @property
    def advice(self) -> str:
        """What to look at instead of the adapter; "" where this may be worth using."""
        return "Do what the report's warnings say." if self.is_warned else ADVICE.get(self.kind, "")


NONE = Verdict(UNKNOWN, "")


def ending(folder: RunFolder, note: Callable[[str], None]) -> tuple[Verdict, Sequence[signs.Sign]]:
    """The verdict on a run, and its warnings; none where a file is damaged."""
    with noting_errors(note):
        run = RunHistory.read(folder)
        return verdict(run), [s for s in signs.found(run) if s.rule.level == signs.WARNING]
    return NONE, ()


def verdict(run: RunHistory) -> Verdict:
    steps = len(run.values("timing/step_s")) or len(run.values("train/loss"))
    warnings = [sign.rule.title for sign in signs.found(run) if sign.rule.level == signs.WARNING]
    is_ungraded = not {signs.NEVER, signs.TRUNCATED}.isdisjoint(warnings)
    if not steps:
        found = Verdict(UNKNOWN, "No step was done")
    elif reason := broken(run, steps):
        return Verdict(BROKEN, f"Broken: {reason}", "0", "down", is_ungraded)
    else:
        judge = of_problems if run.is_rl else of_loss
        found = judge(run, f"{steps} step{'s' * (steps > 1)}")
        seconds = sum(run.values("timing/step_s") + run.values("timing/eval_s"))
        found = found._replace(said=f"{found.said}, {spoken(seconds)}")
    if run.options.get("shuffle_rewards") and found.kind in (BETTER, FLAT, COLLAPSED):
        if found.kind == BETTER:
            said = f"The control rose: {found.said[0].lower()}{found.said[1:]}"
            found = found._replace(said=said, tone="warn")
        found = found._replace(kind=CONTROL)
    if begin := BEGINNING.get(run.status):
        found = found._replace(said=f"{begin}: {found.said[0].lower()}{found.said[1:]}")
        if run.status != "running" and found.kind in (FLAT, UNKNOWN):
            found = found._replace(kind=STOPPED)
    is_cut = is_ungraded and found.said.startswith(NOTHING)
    if found.kind in (FLAT, BROKEN) or signs.NEVER in warnings or is_cut:
        found = found._replace(is_warned=bool(warnings))
    return found


def broken(run: RunHistory, steps: int) -> str:
    """Why nothing can have been learnt, or ""."""
    rewards, failed = run.values("reward/mean"), sum(run.values("reward/failed"))
    counted = max(run.values("samples_seen"), default=0)
    lost = sum(
        bool(row.get("train/skipped_updates")) or not is_number(row.get("train/loss", 0))
        for row in run.rows
    )
    if counted and failed >= counted / 2:
        return f"{min(1, failed / counted):.0%} of the rewards could not be computed"
    if len(rewards) > 1 and not any(rewards):
        return f"every reward was 0 in all {steps} steps"
    if lost >= steps / 2:
        return f"the loss or its gradient was not finite in {lost} of {steps} steps"
    return ""


def of_problems(run: RunHistory, steps: str) -> Verdict:
    """By the first held-out set: the last evaluation against the first."""
    rewards = run.values("reward/mean")
    first, last = run.ends("reward/mean", 2 * LEAST) or [*rewards[:1], *rewards[-1:]] or (0.0, 0.0)
    gained = rise(run.values("reward/mean"))
    points = run.points(f"eval/{run.sets[0]}/pass@1") if run.sets else []
    if len(points) < 2:
        kind = UNKNOWN if gained or len(run.values("reward/mean")) < 2 * LEAST else FLAT
        said = f"the reward went from {short(first)} to {short(last)} in {steps}"
        why = "Evaluated once" if points else "Not evaluated (--eval_every)"
        return Verdict(kind, f"{why}: {said}", f"{last - first:+.3g}")
    (_, before), (_, after) = points[0], points[-1]
    changed = difference((run, points[0]), (run, points[-1]), run.sets[0], "pass@1")
    number, share, verb = f"{after - before:+.3g}", short, "scored"
    if are_shares((run, step) for step, _ in points):
        number, share, verb = f"{100 * (after - before):+.0f} points", "{:.0%}".format, "solved"
    at, end = points[-1][0], max(row["step"] for row in run.rows)
    when = f"step {at} ({end} done)" if at < end else steps
    said = f"{verb} {share(after)} of held-out problems after {when}, {share(before)} before"
    if not isinstance(changed, Difference):
        return Verdict(UNKNOWN, f"{said.capitalize()}: {number}, no interval", number)
    said += f": {number}, {str(changed).rpartition(', ')[2]}"
    if is_clear(changed) and changed.mean > 0:
        return Verdict(BETTER, said.capitalize(), number, "up")
    scores = run.values("rollout/score")
    if not any(value for _, value in points) and scores and mean(scores) < 0.01:
        rose = f", though the reward rose from {short(first)} to {short(last)}" if gained else ""
        kind = HACKED if gained else BROKEN
        return Verdict(kind, f"{NOTHING}{rose}: {said}", number, "warn")
    is_down = is_clear(changed)
    tone = "down" if is_down else "warn"
    if gained and (is_down or not rise(run.values("rollout/score"))):
        rose = f"The reward rose from {short(first)} to {short(last)} alone"
        return Verdict(HACKED, f"{rose}: {said}", number, tone)
    entropy = run.ends("train/entropy", 2 * LEAST) or (0.0, math.inf)
    has_frozen = entropy[1] <= min(0.2 * entropy[0], 0.1) and after < 0.9 and changed.mean <= 0
    has_collapsed = any(sign.rule.test is signs.collapse for sign in signs.found(run))
    if is_down or has_frozen or has_collapsed:
        why = "" if is_down else f", and {'entropy is gone' if has_frozen else 'the reward fell'}"
        is_slight = after > 0.8 * before and not (has_frozen or has_collapsed)
        fall = "Worse" if is_slight else "Collapsed"
        return Verdict(COLLAPSED, f"{fall}: {said}{why}", number, tone)
    return Verdict(FLAT, f"No clear change: {said}", number)


def are_shares(evaluations: Iterable[tuple[RunHistory, int]]) -> bool:
    """Whether no completion of these runs' steps scored beyond 0 to 1, whatever their means."""
    drawn = [run.evaluations.get(step, {}).values() for run, step in evaluations]
    scores = [score for sets in drawn for of in sets for each in of.values() for score in each]
    return min(scores, default=0) >= 0 and max(scores, default=1) <= 1


def of_loss(run: RunHistory, steps: str) -> Verdict:
    """Of SFT, DPO and reward models, whose problems have no scores: so it has no interval."""
    points = run.points(f"eval/{run.sets[0]}/loss" if run.sets else "train/loss") or [(0, 0.0)]
    first, last = points[0][1], points[-1][1]
    is_warned = any(sign.rule.level == signs.WARNING for sign in signs.found(run))
    said = f"{'Held-out loss' if run.sets else 'Loss'} went from {short(first)} to {short(last)}"
    kind = UNKNOWN if last < first and not is_warned else FLAT
    return Verdict(kind, f"{said} in {steps}", f"{last - first:+.3g}")


def of_two(runs: Sequence[RunHistory]) -> Verdict | None:
    """Which of two runs is better, by their last evaluations, a control second. None where these
    cannot be compared: other problems, or none."""
    one, other = ordered(runs)
    name = next((each for each in one.sets if each in other.sets), "")
    ends = [(run, at[-1]) for run in (one, other) if (at := run.points(f"eval/{name}/pass@1"))]
    if len(ends) < 2:
        return None
    changed = difference(ends[1], ends[0], name, "pass@1")
    if not isinstance(changed, Difference):
        return None
    said = " and ".join(f"{run.name} {short(score)} (step {at})" for run, (at, score) in ends)
    said = f"pass@1 of {name}: {said}: {changed}, with one seed each"
    is_controlled = bool(other.options.get("shuffle_rewards"))
    (_, (step, _)), (_, (steps, _)) = ends
    if is_controlled and steps < step:
        return Verdict(UNKNOWN, f"The control is not as far: {said}", tone="warn")
    if not is_clear(changed):
        begin = "No clear difference" + " from the control" * is_controlled
        return Verdict(FLAT if is_controlled else UNKNOWN, f"{begin}: {said}", tone="warn")
    begin = f"{(one if changed.mean > 0 else other).name} is better"
    if is_controlled:
        begin = "The control is better"
        if changed.mean > 0:
            begin = f"{one.name} is better than the control, but not than before training"
            if verdict(one).kind == BETTER and of_problems(other, "").kind == BETTER:
                begin = f"{one.name} is better than the control, which rose too"
            elif verdict(one).kind == BETTER:
                begin = "Learnt from the rewards, as the control, which had them shuffled, did not"
    number = f"{abs(changed.mean):+.3g}"
    if are_shares((run, at) for run, (at, _) in ends):
        number = f"{abs(100 * changed.mean):+.0f} points"
    return Verdict(UNKNOWN, f"{begin}: {said}", number, "up" if changed.mean > 0 else "same")


def rise(values: Sequence[float]) -> bool:
    """Whether a curve's last third is above its first by more than noise (Welch's t) and 1/20."""
    third = len(values) // 3
    if third < 2:
        return False
    first, last = values[:third], values[-third:]
    noise = math.sqrt((statistics.variance(first) + statistics.variance(last)) / third)
    return mean(last) - mean(first) > max(SURE * noise, 0.05 * abs(mean(first)))


def spoken(seconds: float) -> str:
    """45 s, 5 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# Runs as the lines of a table: what they trained, how they ended, and their verdicts

LISTED = {  # column -> figure, of the first evaluation set where it has none
    "reward": "reward/mean", "pass@1": "pass@1", "held-out loss": "loss",
    "tokens right": "token_accuracy", "pairs right": "accuracy",
}  # fmt: skip


def cells(run: RunHistory) -> dict[str, str]:
    """A run in a line of a table, by column. Of curves the first and the last value."""
    timed = run.values("timing/step_s")
    curves = {}
    for column, figure in LISTED.items():
        names = [figure, *(f"eval/{name}/{figure}" for name in run.sets)]
        points = next(filter(None, map(run.points, names)), [])
        ends = points[:1] + points[1:][-1:]
        curves[column] = " -> ".join(short(value) for _, value in ends) or "-"
    return {
        "run": run.name,
        "status": run.status,
        "verdict": verdict(run).kind,
        "started": run.begun.started or "-",
        "method": str(run.options.get("learner", "-")) if run.is_rl else run.kind,
        "model": str(run.options.get("model", "-")),
        "steps": str(len(timed)),
        "time": duration(sum(timed)),
        **curves,
    }


def table_of(runs: Sequence[RunHistory]) -> list[list[str]]:
    """The lines of a table of runs, its heading first, without columns that say nothing."""
    lines = [cells(run) for run in runs]
    columns = [name for name in lines[0] if any(each[name] != "-" for each in lines)]
    return [columns, *([each[name] for name in columns] for each in lines)]

"""Held-out problems: how a policy solves them before training and after, one by one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from unslothrl.algorithms.estimates import Difference, Estimate, estimate, paired
from unslothrl.tracking.metrics import EVALUATED, mean, short
from unslothrl.tracking.report.history import RunHistory
from unslothrl.tracking.report.rollout_data import Rows, answer_of, problems_of, questions, spread
from unslothrl.tracking.run_folder import EVALS

EVALUATIONS = (*EVALUATED, ("margin", "margin"))  # label, key
OF_PROBLEM: dict[str, Callable[[Sequence[float]], float]] = {"pass@1": mean, "best_of_n": max}
"""Figure -> that of a problem, of its completions' scores; others are no problem's own."""
Evaluated = tuple[RunHistory, tuple[int, float]]
"""A run, and a point of one of its evaluations."""
HALF = 0.5  # share of right completions from which a problem counts as solved
MOST_FLIPPED, MOST_ROWS = 3, 20
LONGEST = 700  # characters of a completion in an example


def difference(before: Evaluated, after: Evaluated, name: str, key: str) -> Difference | str:
    """How a figure of two evaluations differs: of a problem's own with its interval and p, paired,
    "-" where they are not of the same problems, or the best is one of more completions in one."""
    (run, (step, value)), (other, (other_step, other_value)) = before, after
    if key not in OF_PROBLEM:
        return f"{other_value - value:+.3f}"
    scores, others = run.scores(step, name), other.scores(other_step, name)
    counts = [{len(of) for of in each.values()} for each in (scores, others)]
    is_unfair = key == "best_of_n" and counts[0] != counts[1]
    if is_unfair or not scores or scores.keys() != others.keys():
        return "-"
    of = OF_PROBLEM[key]
    return paired([of(scores[each]) for each in scores], [of(others[each]) for each in scores])


def is_clear(changed: Difference) -> bool:
    """Whether a difference is more than luck: see `verdict`."""
    return (changed.low > 0 or changed.high < 0) and changed.p < 0.05


def evaluations(runs: Sequence[RunHistory]) -> list[list[Any]]:
    """First, last, difference and best; of two runs also how their last ones differ."""
    rows: list[list[Any]] = []
    for name in dict.fromkeys(name for run in runs for name in run.sets):
        for label, key in EVALUATIONS:
            having = [run for run in runs if run.points(f"eval/{name}/{key}")]
            for run in having:
                of = f"{label} {name} {run.name}" if len(runs) > 1 else f"{label} {name}"
                rows.append([of, *evaluation_cells(run, name, key)])
            if len(having) == len(runs) == 2:
                one, other = ((run, run.points(f"eval/{name}/{key}")[-1]) for run in ordered(runs))
                minus = f"{label} {name} difference of the last, {one[0].name} - {other[0].name}"
                rows.append([minus, "", "", difference(other, one, name, key), ""])
    return rows


def ordered(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """With a control last."""
    return sorted(runs, key=lambda run: bool(run.options.get("shuffle_rewards")))


def evaluation_cells(run: RunHistory, name: str, key: str) -> list[Any]:
    points = run.points(f"eval/{name}/{key}")
    better = -1 if key == "loss" else 1
    best_step, best = max(points, key=lambda point: better * point[1])
    ends = (points[0], points[-1])
    first, last = (str(interval(run, name, key, step) or short(value)) for step, value in ends)
    changed: Difference | str = "-"
    if len(points) > 1:
        changed = difference((run, points[0]), (run, points[-1]), name, key)
    return [first, last if len(points) > 1 else "-", changed, f"{short(best)} (step {best_step})"]


def interval(run: RunHistory, name: str, key: str, step: int) -> Estimate | None:
    """Of a figure of an evaluation; None where that is not there, or it is no problem's own."""
    scores = run.scores(step, name)
    if key not in OF_PROBLEM or not scores:
        return None
    return estimate([OF_PROBLEM[key](each) for each in scores.values()])


class Example(NamedTuple):
    """A held-out problem that training has changed, and a completion from before and after."""

    question: str
    reference: str
    ends: tuple[tuple[str, str, str], ...]  # how many are right, an answer, its completion
    is_lost: bool


def flipped(run: RunHistory) -> list[Example]:
    """Problems that are solved since, those that gained most first, and one that no longer is."""
    name = run.sets[0] if run.sets else ""
    steps = [step for step, _ in run.points(f"eval/{name}/pass@1") if run.scores(step, name)]
    if len(steps) < 2:
        return []
    first, last = run.scores(steps[0], name), run.scores(steps[-1], name)
    shares = {each: (mean(first[each]), mean(last[each])) for each in first if each in last}
    gains = sorted(shares, key=lambda each: shares[each][0] - shares[each][1])
    won = [each for each in gains if shares[each][0] < HALF <= shares[each][1]]
    lost = [each for each in reversed(gains) if shares[each][1] < HALF <= shares[each][0]]
    ends = [problems_of(run.folder.step_file(EVALS, each))[name] for each in (steps[0], steps[-1])]
    asked = dict(zip(ends[0], questions([g[0]["prompt"] for g in ends[0].values()]), strict=True))
    return [
        Example(asked[each], str(ends[0][each][0].get("answer", "")), tuple(
            shown_end(group[each], want)
            for group, want in zip(ends, (max, min) if each in lost else (min, max), strict=True)
        ), each in lost)
        for each in [*won[:MOST_FLIPPED], *lost[:1]]
    ]  # fmt: skip


def shown_end(group: Rows, want: Callable[..., Mapping[str, Any]]) -> tuple[str, str, str]:
    row = want(group, key=lambda row: row["score"])
    text = row["completion"]
    right = sum(each["score"] >= 1 for each in group)
    shown = text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
    return f"{right} of {len(group)} right", answer_of(text) or "", shown


class Solved(NamedTuple):
    """The share of each problem's completions that is right, in each evaluation."""

    problems: Sequence[str]  # by the evaluation that first solves them, those never solved last
    steps: Sequence[int]
    shares: Sequence[Sequence[float]]  # [steps][problems]
    said: str


def solved(run: RunHistory, name: str) -> Solved | None:
    """Of the evaluations of a set, at most `MOST_ROWS`; None of fewer than two."""
    known = {step: scores for step in run.evaluations if (scores := run.scores(step, name))}
    steps = spread(list(known), MOST_ROWS)
    if len(steps) < 2:
        return None
    shares = {
        problem: [mean(known[step][problem]) for step in steps]
        for problem in known[steps[-1]]
        if all(problem in known[step] for step in steps)
    }
    first = {each: [*(s >= HALF for s in of), True].index(True) for each, of in shares.items()}
    order = sorted(shares, key=lambda each: (first[each], -sum(shares[each])))
    count = list(first.values())
    lost = sum(of[-1] < HALF <= max(of) for of in shares.values())
    said = (
        f"{count.count(0)} solved from the start, {len(count) - count.count(0)} not; of these "
        f"{sum(0 < each < len(steps) for each in count)} were solved later and "
        f"{count.count(len(steps))} never. {lost} were solved once and are not now."
    )
    by_step = [[shares[each][i] for each in order] for i in range(len(steps))]
    return Solved(order, steps, by_step, said)

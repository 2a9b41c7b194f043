"""The figures of a report: curves as paths of an SVG drawing, and the labels around it.

The drawing is 100 x 100 units, stretched to its box; strokes keep their width. A figure carries its
values, which the page's script reads out where a pointer is. `page.html` puts them together.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unslothrl.algorithms.estimates import estimate
from unslothrl.tracking.metrics import buckets, components, mean, short
from unslothrl.tracking.report.history import TOKENS_PER_S, RunHistory

MOST_POINTS = 300  # a longer curve is averaged over neighbouring steps
MOST_DOTS = 20  # a curve of no more points has a mark on each
COLOURS = 6
SMALLEST = 1e-100  # value that is told from 0

# Heading -> title -> metrics, where * is every reward, or every evaluation set. What none of the
# runs has is left out.
FIGURES: dict[str, dict[str, str]] = {
    "What it earned": {
        "Reward, mean of a step's completions": "reward/mean reward/*",
        "Evaluation on held-out problems, with 95% intervals": "eval/*/pass@1 eval/*/best_of_n",
    },
    "What it learnt": {
        "Loss": "train/loss eval/*/loss",
        "Token accuracy": "train/token_accuracy eval/*/token_accuracy",
        "Entropy, nats per token": "train/entropy eval/*/entropy",
        "Pairs whose better answer is preferred, share; a tie is half":
            "train/accuracy eval/*/accuracy",
        "Margin between the two answers": "train/margin eval/*/margin",
        "Implicit rewards, beta x log-ratio to the reference":
            "train/reward_chosen train/reward_rejected eval/*/reward_chosen eval/*/reward_rejected",
        "Log-probability of an answer, nats":
            "train/logprob_chosen train/logprob_rejected eval/*/logprob_chosen "
            "eval/*/logprob_rejected",
        "Score, mean of all answers": "train/reward_mean eval/*/reward_mean",
    },
    "Completions": {
        "Score: share of right completions": "rollout/score",
        "Completion length, tokens": "rollout/mean_length",
        "Truncated completions, share": "rollout/truncated",
        "Groups without signal": "reward/zero_signal_groups reward/filtered_groups",
        "Failed rewards": "reward/failed",
        "Prompt redraws per step": "rollout/resamples",
    },
    "Episodes": {
        "Turns of an episode": "episode/turns",
        "Tool calls of an episode": "episode/tool_calls episode/failed_tool_calls",
        "Lost episodes": "episode/lost",
    },
    "Updates": {
        "Sampler gap, |sampler - learner| in nats": "train/sampler_gap train/sampler_gap_p99",
        "Staleness, versions behind": "rollout/staleness rollout/staleness_mean",
        "Effective tokens, share": "train/ess",
        "KL against the reference, nats per token": "train/kl_reference",
        "Tokens bounded, share": "train/clip_fraction train/correction_truncated",
        "Gradient norm, before clipping": "train/grad_norm",
        "Learning rate": "train/lr",
        "Skipped updates": "train/skipped_updates",
        "Critic: share of the returns' variance explained": "train/value_explained",
    },
    "Machine": {
        "Generation, tokens per second": "rollout/tokens_per_s",
        "Tokens per second": TOKENS_PER_S,
        "Seconds of a step":
            "timing/step_s timing/generation_s timing/reward_s timing/update_s timing/sync_s "
            "timing/overhead_s",
        "Peak memory, MB": "memory/learner_peak_mb memory/actor_peak_mb",
    },
}  # fmt: skip
# Ends of metrics whose charts need not show 0, and of those whose charts reach from 0 to 1.
FREE = ("loss", "reward/mean", "reward_mean", "margin", "chosen", "rejected", "explained")
SHARES = ("accuracy", "pass@1", "best_of_n")


Curve = Sequence[tuple[float, ...]]
"""Points (step, value), or with the ends of an interval (step, value, low, high), ascending."""
Stroke = tuple[str, str, int]
"""A kind (grid, mark, or line, band or dot of a curve), a path, and the number of a colour."""


class Figure(NamedTuple):
    title: str
    legend: Sequence[tuple[str, str]]  # of each curve, its name and its last value
    strokes: Sequence[Stroke]
    heights: Sequence[tuple[float, str]]  # percent from the top, label
    steps: Sequence[tuple[float, float]]  # percent from the left, label
    values: str  # JSON


def all_figures(runs: Sequence[RunHistory]) -> dict[str, list[Figure]]:
    """The figures of these runs by their headings."""
    drawn = {
        heading: [each for title, names in figures.items() for each in drawn_of(title, names, runs)]
        for heading, figures in FIGURES.items()
    }
    return {heading: figures for heading, figures in drawn.items() if figures}


def curves_of(metrics: str, runs: Sequence[RunHistory]) -> list[str]:
    """The metrics of a figure that one of the runs may have."""
    sets = dict.fromkeys(name for run in runs for name in run.sets)
    found: list[str] = []
    for metric in metrics.split():
        if metric == "reward/*":
            rewards = list(dict.fromkeys(name for run in runs for name in components(run.rows)))
            found += rewards if len(rewards) > 1 else []  # one is the mean
        else:
            found += [metric.replace("*", name) for name in (sets if "*" in metric else [""])]
    return found


def drawn_of(title: str, metrics: str, runs: Sequence[RunHistory]) -> list[Figure]:
    """A figure of a run, or of several runs one for each metric; none where all is 0."""
    names = [name for name in curves_of(metrics, runs) if any(run.points(name) for run in runs)]
    if len(runs) == 1:
        groups = {title: {legend(metric): curve_of(runs[0], metric) for metric in names}}
    else:
        form = "{}: {}" if len(names) > 1 else "{}"
        groups = {
            form.format(title, legend(metric)): {run.name: curve_of(run, metric) for run in runs}
            for metric in names
        }
    low = None if any(metric.endswith(FREE) for metric in names) else 0.0
    high = 1.0 if all(metric.endswith(SHARES) for metric in names) else None
    marks = [resume.step for resume in runs[0].begun.resumes] if len(runs) == 1 else []
    return [
        figure(title, {name: each for name, each in curves.items() if each}, low, high, marks)
        for title, curves in groups.items()
        if any(point[1] for each in curves.values() for point in each)
    ]


def legend(metric: str) -> str:
    """A metric's name in a legend, after the evaluation set that it is of."""
    *sets, key = metric.split("/")[1:]
    return " ".join([*sets, key.removesuffix("_s").replace("_", " ")])


def curve_of(run: RunHistory, metric: str) -> Curve:
    """With intervals where the completions of all evaluations are there to compute them."""
    points = run.points(metric)
    kind, _, rest = metric.partition("/")
    evaluated, _, key = rest.rpartition("/")
    has_interval = kind == "eval" and key == "pass@1"
    known = [run.scores(step, evaluated) for step, _ in points] if has_interval else [{}]
    if not all(known):
        return points
    found = [estimate([mean(s) for s in scores.values()]) for scores in known]
    return [(*point, each.low, each.high) for point, each in zip(points, found, strict=True)]


def thinned(curve: Curve) -> list[tuple[float, ...]]:
    """At most `MOST_POINTS` points, each the mean of neighbours at the last one's step."""
    found = []
    for part in buckets(curve, MOST_POINTS):
        steps, *values = zip(*part, strict=True)
        found.append((steps[-1], *map(mean, values)))
    return found


def figure(
    title: str,
    curves: Mapping[str, Curve],
    low: float | None = None,
    high: float | None = None,
    marks: Sequence[int] = (),
) -> Figure:
    """A line chart of curves by their names, each with points. `low` and `high` are values that its
    vertical range must include; `marks` are steps that get a dashed line."""
    data = [thinned(each) for each in curves.values()]
    values = [value for points in data for _, *ends in points for value in ends]
    values += [limit for limit in (low, high) if limit is not None]
    ticks = nice_ticks(min(values), max(values))
    steps = sorted({step for points in data for step, *_ in points})
    strokes = [("grid", f"M0 {up(tick, ticks):.2f}H100", 0) for tick in ticks[1:]]
    for mark in marks:
        if steps[0] <= mark <= steps[-1]:
            strokes.append(("mark", f"M{across(mark, steps):.2f} 0V100", 0))
    for number, points in enumerate(data):
        x = [across(step, steps) for step, *_ in points]
        value, *band = ([up(p[i], ticks) for p in points] for i in range(1, len(points[0])))
        colour = number % COLOURS
        if len(points) > 1:
            if band:
                edge = f"{path([*x, *x[::-1]], [*band[1], *band[0][::-1]])}Z"
                strokes.append(("band", edge, colour))
            strokes.append(("line", path(x, value), colour))
        if len(points) <= MOST_DOTS:  # lines of no length with round ends
            strokes.append(("dot", f"{path(x, value, 'h0M')}h0", colour))
    heights = [(up(tick, ticks), f"{tick:,.5g}") for tick in ticks]
    ends = [(across(step, steps), step) for step in sorted({steps[0], steps[-1]})]
    known = [{step: [float(f"{v:.5g}") for v in rest] for step, *rest in each} for each in data]
    carried = {  # more digits than a chart shows; null where a curve has no point
        "steps": steps,
        "curves": [[each.get(step) for step in steps] for each in known],
    }
    named = [(name, short(each[-1][1])) for name, each in curves.items()]
    return Figure(title, named, strokes, heights, ends, json.dumps(carried, separators=(",", ":")))


def path(x: Sequence[float], y: Sequence[float], each: str = "L") -> str:
    return "M" + each.join(f"{a:.2f} {b:.2f}" for a, b in zip(x, y, strict=True))


def across(step: float, steps: Sequence[float]) -> float:
    """The x of a step: 0 at the first, 100 at the last, 50 if it is the only one."""
    span = steps[-1] - steps[0]
    return 100 * (step - steps[0]) / span if span else 50.0


def up(value: float, ticks: Sequence[float]) -> float:
    """The y of a value: 100 at the lowest tick, 0 at the highest."""
    return 100 - 100 * (value - ticks[0]) / (ticks[-1] - ticks[0])


def nice_ticks(low: float, high: float) -> list[float]:
    """Three to six multiples of 1, 2 or 5 times a power of ten that enclose [low, high]; of values
    that are all but equal, those around them."""
    size = max(abs(low), abs(high))
    if size < SMALLEST:
        low, high = 0.0, 1.0
    elif high - low <= 1e-3 * size:
        low, high = low - size * 0.01 * (high > low), low + size * 0.9
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [number * size for number in range(first, last + 1)]

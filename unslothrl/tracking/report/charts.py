"""The figures of a report: curves as paths of an SVG drawing, and the labels around it.

The drawing is 100 x 100 units, stretched to its box; strokes keep their width. A figure carries its
values, which the page's script reads out where a pointer is. `page.html` puts them together.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unslothrl.files import documented
from unslothrl.tracking.metrics import buckets, components, mean, short
from unslothrl.tracking.report.history import RunHistory
from unslothrl.tracking.report.problems import Solved, interval, solved

MOST_POINTS = 300  # a longer curve is averaged over neighbouring steps
MOST_DOTS = 20  # a curve of no more points has a mark on each
MOST_CELLS, LEVELS = 1000, 4  # columns of a heatmap, and its shades
MOST_LABELS, LONGEST_NAME = 10, 60
COLOURS = 6  # c0 is of evaluations
SPREAD = ("reward/p50", "reward/p25", "reward/p75", "reward/p10", "reward/p90")
SMALLEST = 1e-100  # value that is told from 0
ROW = re.compile(r"^\| (`.*) \| (.*) \| (.*?) ?\|$", re.MULTILINE)  # of the page of metrics
CODE = re.compile(r"`([^`]+)`")

FIGURES = {  # heading -> title -> metrics; * is any reward, or any evaluation set
    "What it earned": {
        "Held-out problems solved, with 95% intervals": "eval/*/pass@1 eval/*/best_of_n",
        "Reward, mean and spread of a step": "reward/mean reward/p50",
        "Rewards by name": "reward/*",
        "Score: share of right completions": "rollout/score",
    },
    "What it learnt": {
        "Loss": "train/loss eval/*/loss",
        "Token accuracy": "train/token_accuracy eval/*/token_accuracy",
        "Entropy, nats per token": "train/entropy eval/*/entropy",
        "Pairs whose better answer is preferred, share": "train/accuracy eval/*/accuracy",
        "Margin between the two answers": "train/margin eval/*/margin",
        "Implicit rewards, beta x log-ratio to the reference": "train/reward_chosen "
        "train/reward_rejected eval/*/reward_chosen eval/*/reward_rejected",
        "Log-probability of an answer, nats": "train/logprob_chosen train/logprob_rejected "
        "eval/*/logprob_chosen eval/*/logprob_rejected",
        "Score, mean of all answers": "train/reward_mean eval/*/reward_mean",
    },
    "Generated text": {
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
        "Tokens per second": "train/tokens_per_s",
        "Seconds of a step": "timing/step_s timing/generation_s timing/reward_s timing/update_s "
        "timing/sync_s timing/overhead_s",
        "Peak memory, MB": "memory/learner_peak_mb memory/actor_peak_mb",
    },
}
# Ends of metrics whose charts need not show 0, and of those whose charts reach from 0 to 1.
FREE = ("loss", "reward/mean", "reward_mean", "margin", "chosen", "rejected", "explained")
SHARES = ("accuracy", "pass@1", "best_of_n")


Curve = Sequence[tuple[float, ...]]
"""Points (step, value), or with the ends of intervals (step, value, low, high, ...), ascending."""
Curves = Mapping[str, tuple[str, Curve]]
"""By their names, each with its colour."""
Stroke = tuple[str, str, str]
"""A kind (grid, mark, limit, or line, band or dot of a curve), a path, and its curve's colour."""


class Figure(NamedTuple):
    title: str
    legend: Sequence[tuple[str, str, str]]  # of each curve, its name, its last value, its colour
    strokes: Sequence[Stroke]
    heights: Sequence[tuple[float, str]]  # percent from the top, label
    steps: Sequence[tuple[float, float]]  # percent from the left, label
    values: Mapping[str, Any]  # for the script: steps, and by curve its values
    about: str = ""
    metrics: Sequence[str] = ()  # whose addresses lead here


def all_figures(runs: Sequence[RunHistory], limits: Mapping[str, float]) -> dict[str, list[Figure]]:
    """The figures of these runs by their headings; `limits` of metrics are drawn."""
    known = meanings(runs[0].is_rl)
    drawn = {
        heading: [
            each._replace(about=about_of(metrics, runs, known), metrics=metrics.split())
            for title, metrics in figures.items()
            for each in drawn_of(title, metrics, runs, limits)
        ]
        for heading, figures in FIGURES.items()
    }
    if len(runs) == 1:
        drawn["What it earned"][1:1] = [
            heatmap(name, found) for name in runs[0].sets if (found := solved(runs[0], name))
        ]
    return {heading: figures for heading, figures in drawn.items() if figures}


def meanings(is_rl: bool) -> dict[str, str]:
    """Metric -> what it is and what is healthy, from the page docs/metrics.md, which says the same
    of RL and, where they differ, then of SFT, DPO and reward models."""
    before, _, after = documented("metrics.md").partition("\n## SFT")
    return {
        re.sub(r"<\w+>", "*", metric): f"{what}. Healthy: {healthy}." if healthy else f"{what}."
        for names, what, healthy in ROW.findall(before if is_rl else before + after)
        for metric in CODE.findall(names)
    }


def about_of(metrics: str, runs: Sequence[RunHistory], known: Mapping[str, str]) -> str:
    """Of those metrics of a figure that one of the runs has, or may have."""
    there = [m for m in metrics.split() if "*" in m or any(run.points(m) for run in runs)]
    found = dict.fromkeys(known[metric].replace("`", "") for metric in there if metric in known)
    return " ".join(said[:1].upper() + said[1:] for said in found)


def chart_of(metric: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", metric)


def curves_of(metrics: str, runs: Sequence[RunHistory]) -> dict[str, str]:
    """The metrics of a figure that one of the runs may have, and their colours."""
    sets = dict.fromkeys(name for run in runs for name in run.sets)
    found: dict[str, str] = {}
    for place, metric in enumerate(metrics.split(), 1):
        if metric == "reward/*":
            rewards = dict.fromkeys(name for run in runs for name in components(run.rows))
            names = list(rewards) if len(rewards) > 1 else []  # one is the mean
            found |= {name: f"c{i % (COLOURS - 1) + 1}" for i, name in enumerate(names, 1)}
        elif metric.startswith("eval/"):
            found |= {metric.replace("*", name): "c0" for name in sets}
        else:
            found[metric] = "c1" if metric == SPREAD[0] else f"c{(place - 1) % (COLOURS - 1) + 1}"
    return found


def drawn_of(
    title: str, metrics: str, runs: Sequence[RunHistory], limits: Mapping[str, float]
) -> list[Figure]:
    """A figure of a run, or of several runs one for each metric; none where all is 0."""
    colours = curves_of(metrics, runs)
    names = [name for name in colours if any(run.points(name) for run in runs)]
    groups: dict[str, Curves]
    if len(runs) == 1:
        groups = {title: {legend(m): (colours[m], curve_of(runs[0], m)) for m in names}}
    else:
        form = "{}: {}" if len(names) > 1 else "{}"
        groups = {
            form.format(title, legend(metric)): {
                run.name: (f"c{i % COLOURS}", curve_of(run, metric)) for i, run in enumerate(runs)
            }
            for metric in names
        }
    low = None if any(metric.endswith(FREE) for metric in names) else 0.0
    high = 1.0 if all(metric.endswith(SHARES) for metric in names) else None
    marks = [resume.step for resume in runs[0].begun.resumes] if len(runs) == 1 else []
    lines = [limits[metric] for metric in metrics.split() if metric in limits]
    return [
        figure(title, {name: e for name, e in curves.items() if e[1]}, low, high, marks, lines)
        for title, curves in groups.items()
        if any(point[1] for _, each in curves.values() for point in each)
    ]


def legend(metric: str) -> str:
    """A metric's name in a legend, after the evaluation set that it is of."""
    *sets, key = metric.split("/")[1:]
    return " ".join([*sets, "median" if key == "p50" else key.removesuffix("_s").replace("_", " ")])


def curve_of(run: RunHistory, metric: str) -> Curve:
    """With a step's spread of rewards, or intervals where all evaluations are there."""
    points = run.points(metric)
    if metric == SPREAD[0]:
        ends = [dict(run.points(name)) for name in SPREAD[1:]]
        return [(*point, *(each.get(point[0], point[1]) for each in ends)) for point in points]
    evaluated, _, key = metric.removeprefix("eval/").rpartition("/")
    found = [interval(run, evaluated, key, step) for step, _ in points]
    pairs = zip(points, found, strict=True)
    known = [(*point, each.low, each.high) for point, each in pairs if each is not None]
    return known if len(known) == len(points) else points


def thinned(curve: Curve) -> list[tuple[float, ...]]:
    """At most `MOST_POINTS` points, each the mean of neighbours at the last one's step."""
    found = []
    for part in buckets(curve, MOST_POINTS):
        steps, *values = zip(*part, strict=True)
        found.append((steps[-1], *map(mean, values)))
    return found


def figure(
    title: str,
    curves: Curves,
    low: float | None = None,
    high: float | None = None,
    marks: Sequence[int] = (),
    limits: Sequence[float] = (),
) -> Figure:
    """A line chart of curves, each with points. `low` and `high` are values that its vertical range
    must include; `marks` are steps that get a dashed line, `limits` values."""
    data = [thinned(each) for _, each in curves.values()]
    values = [value for points in data for _, *ends in points for value in ends]
    values += [limit for limit in (low, high, *limits) if limit is not None]
    ticks = nice_ticks(min(values), max(values))
    steps = sorted({step for points in data for step, *_ in points})
    strokes = [("grid", f"M0 {up(tick, ticks):.2f}H100", "") for tick in ticks[1:]]
    strokes += [("limit", f"M0 {up(limit, ticks):.2f}H100", "") for limit in limits]
    within = [across(mark, steps) for mark in marks if steps[0] <= mark <= steps[-1]]
    strokes += [("mark", f"M{at:.2f} 0V100", "") for at in within]
    seen: set[str] = set()
    for points, (colour, _) in zip(data, curves.values(), strict=True):
        x = [across(step, steps) for step, *_ in points]
        value, *ends = ([up(p[i], ticks) for p in points] for i in range(1, len(points[0])))
        if len(points) > 1:
            for below, above in zip(ends[::2], ends[1::2], strict=True):
                edge = f"{path([*x, *x[::-1]], [*above, *below[::-1]])}Z"
                strokes.append(("band", edge, colour))
            strokes.append(("line dashed" if colour in seen else "line", path(x, value), colour))
        if len(points) <= MOST_DOTS:  # lines of no length with round ends
            strokes.append(("dot", f"{path(x, value, 'h0M')}h0", colour))
        seen.add(colour)
    heights = [(up(tick, ticks), f"{tick:,.5g}") for tick in ticks]
    ends_of_steps = [(across(step, steps), step) for step in sorted({steps[0], steps[-1]})]
    known = [{step: [float(f"{v:.5g}") for v in rest] for step, *rest in each} for each in data]
    carried = {  # more digits than a chart shows; null where a curve has no point
        "steps": steps,
        "curves": [[each.get(step) for step in steps] for each in known],
    }
    named = [(name, short(each[-1][1]), colour) for name, (colour, each) in curves.items()]
    return Figure(title, named, strokes, heights, ends_of_steps, carried)


def heatmap(name: str, found: Solved) -> Figure:
    """Problems across, evaluations down; the darker, the more completions are right."""
    size = 100 / len(found.steps)
    parts = buckets(range(len(found.problems)), MOST_CELLS)
    width = 100 / len(parts)
    paths = [""] * LEVELS
    rows = [[mean([row[i] for i in part]) for part in parts] for row in found.shares]
    for y, row in enumerate(rows):
        x = 0
        levels = (min(max(math.ceil(share * LEVELS - 1e-9), 0), LEVELS) for share in row)
        for level, run in itertools.groupby(levels):
            cells = len(list(run))
            if level:
                paths[level - 1] += f"M{x * width:.2f} {y * size:.2f}h{cells * width:.2f}"
                paths[level - 1] += f"v{size:.2f}h{-cells * width:.2f}z"
            x += cells
    heights = [((y + 0.5) * size, f"step {step}") for y, step in enumerate(found.steps)]
    carried = {
        "steps": [part[0] + 1 for part in parts],
        "names": [found.problems[part[0]][:LONGEST_NAME] for part in parts],
        "curves": [[[round(share, 2)] for share in row] for row in rows],
    }
    return Figure(
        f"Each held-out problem, at each evaluation ({name})",
        [(f"step {at}", short(mean(row)), "") for at, row in zip(found.steps, rows, strict=True)],
        [(f"heat heat{level}", path, "c0") for level, path in enumerate(paths, 1) if path],
        heights if len(heights) <= MOST_LABELS else [heights[0], heights[-1]],
        [(0.0, 1), (100.0, len(found.problems))],
        carried,
        "A column is a problem, sorted by when it is first solved by half of its completions; "
        f"a row is an evaluation. {found.said} A column that turns pale was forgotten.",
        ("heatmap",),
    )


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

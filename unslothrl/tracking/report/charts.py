"""The figures of a report: their curves, drawn as inline SVG with labels in HTML so that they stay
readable on any screen.

The drawing is 100 x 100 units, stretched to its box; strokes keep their width. A figure carries its
values (`data-values`), which the page's script reads out where a pointer is.
"""

import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unslothrl.algorithms.estimates import estimate
from unslothrl.tracking.metrics import Points, buckets, components, is_number, mean, short
from unslothrl.tracking.origin import DPO, RL, RM, SFT
from unslothrl.tracking.report.history import TOKENS_PER_S, RunHistory
from unslothrl.tracking.timer import PARTS

MOST_POINTS = 300  # a longer curve is averaged over neighbouring steps
MOST_DOTS = 60
COLOURS = 6
SMALLEST, LARGEST = 1e-100, 1e100  # values that are told apart
HIDDEN = re.compile(  # characters that hide, move or reverse others; the same as report.js's
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


@dataclass(frozen=True)
class Curve:
    name: str
    points: Points  # (step, value), ascending
    dots: bool = False  # mark every point
    band: Sequence[tuple[float, float]] = ()  # (low, high) of every point, or none

    @property
    def thinned(self) -> list[tuple[int, float, float, float]]:
        """(step, value, low, high) of at most `MOST_POINTS` points, each the mean of neighbours at
        the last one's step. Without a band, low and high are the value."""
        band = self.band or [(value, value) for _, value in self.points]
        rows = [(s, v, low, high) for (s, v), (low, high) in zip(self.points, band, strict=True)]
        return [
            (part[-1][0], *(mean([row[i] for row in part]) for i in (1, 2, 3)))
            for part in buckets(rows, MOST_POINTS)
        ]


SECONDS = "Seconds of a step"
UPDATES = {
    "Gradient norm, before clipping": "train/grad_norm",
    "Learning rate": "train/lr",
}
OF_OFFLINE = {
    "Updates": UPDATES,
    "Machine": {
        "Tokens per second": TOKENS_PER_S,
        SECONDS: "timing/step_s",
        "Peak memory, MB": "memory/learner_peak_mb",
    },
}
LEARNT = "What it learnt"
PREFERRED = "Pairs whose better answer is preferred, share; a tie is half"

# Kind of run -> heading -> title -> metrics, where * is every reward, or every evaluation set.
FIGURES: dict[str, dict[str, dict[str, str]]] = {
    RL: {
        "What it earned": {
            "Reward, mean of a step's completions": "reward/mean reward/*",
            "Evaluation on held-out problems, with 95% intervals":
                "eval/*/pass@1 eval/*/best_of_n",
        },
        "Completions": {
            "Score: share of right completions": "rollout/score",
            "Completion length, tokens": "rollout/mean_length",
            "Truncated completions, share": "rollout/truncated",
            "Groups without signal": "reward/zero_signal_groups reward/filtered_groups",
            "Failed rewards": "reward/failed",
            "Entropy, nats per token": "train/entropy",
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
            "Loss": "train/loss",
            **UPDATES,
            "Skipped updates": "train/skipped_updates",
            "Critic: share of the returns' variance explained": "train/value_explained",
        },
        "Machine": {
            SECONDS: "timing/step_s",
            "Generation, tokens per second": "rollout/tokens_per_s",
            "Peak memory, MB": "memory/learner_peak_mb memory/actor_peak_mb",
        },
    },
    SFT: {
        LEARNT: {
            "Loss, nats per token": "train/loss eval/*/loss",
            "Token accuracy": "train/token_accuracy eval/*/token_accuracy",
            "Entropy, nats per token": "train/entropy eval/*/entropy",
        },
        **OF_OFFLINE,
    },
    DPO: {
        LEARNT: {
            "Loss": "train/loss eval/*/loss",
            PREFERRED: "train/accuracy eval/*/accuracy",
            "Margin between the implicit rewards": "train/margin eval/*/margin",
            "Implicit rewards, beta x log-ratio to the reference":
                "train/reward_chosen train/reward_rejected eval/*/reward_chosen "
                "eval/*/reward_rejected",
            "Log-probability of an answer, nats":
                "train/logprob_chosen train/logprob_rejected eval/*/logprob_chosen "
                "eval/*/logprob_rejected",
        },
        **OF_OFFLINE,
    },
    RM: {
        LEARNT: {
            "Loss": "train/loss eval/*/loss",
            PREFERRED: "train/accuracy eval/*/accuracy",
            "Margin between the scores": "train/margin eval/*/margin",
            "Score, mean of all answers": "train/reward_mean eval/*/reward_mean",
        },
        **OF_OFFLINE,
    },
}  # fmt: skip
# Ends of metrics whose charts need not show 0, and of those whose charts reach from 0 to 1.
FREE = ("loss", "reward/mean", "reward_mean", "margin", "chosen", "rejected", "explained")
SHARES = ("accuracy", "pass@1", "best_of_n")


def all_figures(runs: Sequence[RunHistory]) -> str:
    """The figures of all kinds of these runs, under their headings."""
    headings: dict[str, dict[tuple[str, str], None]] = {}
    for kind in dict.fromkeys(run.kind for run in runs):
        for heading, figures in FIGURES[kind].items():
            headings.setdefault(heading, {}).update(dict.fromkeys(figures.items()))
    drawn = {
        heading: "".join(draw(title, curves_of(metrics, runs), runs) for title, metrics in figures)
        for heading, figures in headings.items()
    }
    return "".join(
        f"<h3>{heading}</h3><div class=figures>{figures}</div>"
        for heading, figures in drawn.items()
        if figures
    )


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


def draw(title: str, metrics: Sequence[str], runs: Sequence[RunHistory]) -> str:
    """A figure of a run, or of several runs one for each metric; nothing where all is 0."""
    if len(runs) > 1:
        titles = [f"{title}: {legend(m)}" if len(metrics) > 1 else title for m in metrics]
        figures = [[curve(run, metric, run.name) for run in runs] for metric in metrics]
    elif title == SECONDS and runs[0].is_rl:
        return stacked(title, [part_of_step(runs[0], part) for part in (*PARTS, "overhead")])
    else:
        titles, figures = [title], [[curve(runs[0], m, legend(m)) for m in metrics]]
    low = None if any(m.endswith(FREE) for m in metrics) else 0.0
    high = 1.0 if all(m.endswith(SHARES) for m in metrics) else None
    marks = [resume.step for resume in runs[0].begun.resumes] if len(runs) == 1 else []
    return "".join(
        lines(title, curves, low, high, marks)
        for title, curves in zip(titles, figures, strict=True)
        if any(value for each in curves for _, value in each.points)
    )


def legend(metric: str) -> str:
    """A metric's name in a legend, after the evaluation set that it is of."""
    *sets, key = metric.split("/")[1:]
    return " ".join([*sets, key.replace("_", " ")])


def curve(run: RunHistory, metric: str, name: str) -> Curve:
    """With intervals where the completions of all evaluations are there to compute them."""
    points, band = run.points(metric), []
    kind, _, rest = metric.partition("/")
    evaluated, _, key = rest.rpartition("/")
    if kind == "eval" and key == "pass@1":
        known = [run.evaluations.get(step, {}).get(evaluated) for step, _ in points]
        found = [estimate([mean(s) for s in scores.values()]) for scores in known if scores]
        band = [(each.low, each.high) for each in found] if len(found) == len(points) else []
    return Curve(name, points, kind == "eval" and len(points) <= MOST_DOTS, band)


def part_of_step(run: RunHistory, part: str) -> Curve:
    """Seconds of every step; 0 where it lacks the part."""
    rows = [row for row in run.rows if is_number(row.get("timing/step_s"))]
    return Curve(part, [(row["step"], row.get(f"timing/{part}_s") or 0.0) for row in rows])


def text(value: Any) -> str:
    """Of unknown origin, for HTML: escaped, and with every character to be seen."""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return html.escape(HIDDEN.sub(visible, shown))


def visible(found: re.Match[str]) -> str:
    """A control character's picture; the number of another one."""
    code = ord(found[0])
    return chr(0x2400 + code) if code < 32 else f"⟨{code:04x}⟩"


def lines(
    title: str,
    curves: Sequence[Curve],
    low: float | None = None,
    high: float | None = None,
    marks: Sequence[int] = (),
) -> str:
    """A line chart, "" if no curve has a point. `low` and `high` are values that its vertical range
    must include; `marks` are steps that get a dashed line."""
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return ""
    data = [curve.thinned for curve in curves]
    values = [value for points in data for _, *ends in points for value in ends]
    values += [limit for limit in (low, high) if limit is not None]
    ticks = nice_ticks(min(values), max(values))
    steps = sorted({step for points in data for step, *_ in points})
    drawn = [
        f'<path class="mark" d="M{across(mark, steps):.2f} 0V100"/>'
        for mark in marks
        if steps[0] <= mark <= steps[-1]
    ]
    for number, (curve, points) in enumerate(zip(curves, data, strict=True)):
        x = [across(step, steps) for step, *_ in points]
        value, bottom, top = ([up(p[i], ticks) for p in points] for i in (1, 2, 3))
        colour = f"var(--c{number % COLOURS})"
        if curve.band and len(points) > 1:
            edge = path([*x, *x[::-1]], [*top, *bottom[::-1]])
            drawn.append(f'<path class="band" style="fill:{colour}" d="{edge}Z"/>')
        if len(points) > 1:
            drawn.append(f'<path class="line" style="stroke:{colour}" d="{path(x, value)}"/>')
        if curve.dots or len(points) == 1:  # lines of no length with round ends
            dots = "".join(f"M{a:.2f} {b:.2f}h0" for a, b in zip(x, value, strict=True))
            drawn.append(f'<path class="dot" style="stroke:{colour}" d="{dots}"/>')
    return figure(title, curves, ticks, steps, drawn)


def path(x: Sequence[float], y: Sequence[float]) -> str:
    return "M" + "L".join(f"{a:.2f} {b:.2f}" for a, b in zip(x, y, strict=True))


def stacked(title: str, curves: Sequence[Curve]) -> str:
    """A stacked bar for every step, "" without any. All curves have the same steps."""
    if not curves or not curves[0].points:
        return ""
    columns = list(zip(*(curve.thinned for curve in curves), strict=True))
    steps = [column[0][0] for column in columns]
    ticks = nice_ticks(0.0, max(math.fsum(value for _, value, *_ in c) for c in columns))
    width = 100 / len(steps)
    drawn = []
    for index, column in enumerate(columns):
        bottom = 0.0
        for number, (_, value, *_) in enumerate(column):
            y, foot = up(bottom + value, ticks), up(bottom, ticks)
            bottom += value
            if foot > y:
                drawn.append(
                    f'<rect x="{(index + 0.07) * width:.2f}" width="{width * 0.86:.2f}" '
                    f'y="{y:.2f}" height="{foot - y:.2f}" style="fill:var(--c{number % COLOURS})"/>'
                )
    return figure(title, curves, ticks, steps, drawn, bars=True)


def figure(
    title: str,
    curves: Sequence[Curve],
    ticks: Sequence[float],
    steps: Sequence[int],
    drawn: Sequence[str],
    bars: bool = False,
) -> str:
    """The HTML of a figure: caption, legend with the last values, grid, labels and `drawn`, the SVG
    elements of the curves or bars; it carries its values."""
    is_only = len(curves) == 1
    legend = "".join(legend_entry(each, i, is_only) for i, each in enumerate(curves))
    grid = "".join(f'<path class="grid" d="M0 {up(tick, ticks):.2f}H100"/>' for tick in ticks[1:])
    labels = "".join(
        f'<span class="y" style="top:{up(tick, ticks):.2f}%">{tick_text(tick, ticks)}</span>'
        for tick in ticks
    )
    half = 50 / len(steps) if bars else 0.0
    places = {s: half + across(s, steps) * (1 - half / 50) for s in (steps[0], steps[-1])}
    labels += "".join(
        f'<span class="x" style="left:{place:.2f}%">{step}</span>' for step, place in places.items()
    )
    carried = json.dumps({**values_at(curves, steps), "bars": bars}, separators=(",", ":"))
    return (
        f"<figure data-values='{html.escape(carried)}'>"
        f"<figcaption>{text(title)}</figcaption>"
        f'<div class="legend">{legend}</div>'
        f'<div class="plot">{labels}<svg viewBox="0 0 100 100" preserveAspectRatio="none" '
        f'role="img" aria-label="{text(title)}">{grid}{"".join(drawn)}</svg></div></figure>'
    )


def values_at(curves: Sequence[Curve], steps: Sequence[int]) -> dict[str, Any]:
    """What a figure carries: for every curve a value at every step, or None; and the ends of its
    band."""
    known = [{step: list(map(rounded, rest)) for step, *rest in c.thinned} for c in curves]
    return {
        "steps": list(steps),
        "values": [[at[step][0] if step in at else None for step in steps] for at in known],
        "bands": [
            [at[step][1:] if step in at else None for step in steps] if curve.band else None
            for curve, at in zip(curves, known, strict=True)
        ],
    }


def legend_entry(curve: Curve, number: int, is_only: bool) -> str:
    """Colour, name and last value; the value alone of a figure's only curve."""
    last = f"<b>{short(curve.points[-1][1])}</b>"
    if is_only:
        return f"<span>last {last}</span>"
    colour = f'<i style="background:var(--c{number % COLOURS})"></i>'
    return f"<span>{colour}{text(curve.name)} {last}</span>"


def rounded(value: float) -> float:
    """To five digits, which is more than a chart shows."""
    return float(f"{value:.5g}")


def across(step: int, steps: Sequence[int]) -> float:
    """The x of a step: 0 at the first, 100 at the last, 50 if it is the only one."""
    span = steps[-1] - steps[0]
    return 100 * (step - steps[0]) / span if span else 50.0


def up(value: float, ticks: Sequence[float]) -> float:
    """The y of a value: 100 at the lowest tick, 0 at the highest."""
    share = (value - ticks[0]) / (ticks[-1] - ticks[0])
    return 100 - 100 * max(-1.0, min(2.0, share))  # of values that no tick encloses


def nice_ticks(low: float, high: float) -> list[float]:
    """Three to six multiples of 1, 2 or 5 times a power of ten that enclose [low, high]; of values
    that are all but equal, those around them."""
    low, high = (max(-LARGEST, min(LARGEST, end)) for end in (low, high))
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


def tick_text(tick: float, ticks: Sequence[float]) -> str:
    """A tick's label, with enough decimals to distinguish it from its neighbours."""
    size = ticks[1] - ticks[0]
    decimals = max(0, -math.floor(math.log10(size) + 1e-9))
    if decimals <= 4 and size < 1e6:
        return f"{tick:,.{decimals}f}"
    largest = max(map(abs, ticks))
    digits = math.floor(math.log10(largest) + 1e-9) - math.floor(math.log10(size) + 1e-9)
    return f"{tick:.{digits}e}" if abs(tick) > size / 2 else "0"

"""Curves as inline SVG, with labels in HTML so that they stay readable on any screen.

The drawing is 100 x 100 units, stretched to its box; strokes keep their width. A figure carries its
values (`data-values`), which a page's script reads out where a pointer is.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unslothrl.tracking.metrics import Points, buckets, mean, short
from unslothrl.untrusted import printable

MOST_POINTS = 300  # a longer curve is averaged over neighbouring steps
COLOURS = 6
SMALLEST, LARGEST = 1e-100, 1e100  # values that are told apart from 0, and from one another


@dataclass(frozen=True)
class Curve:
    name: str
    points: Points  # (step, value), ascending
    dots: bool = False  # mark every point
    band: Sequence[tuple[float, float]] = ()  # (low, high) of every point, or none

    @property
    def thinned(self) -> Points:
        """At most `MOST_POINTS` points, each the mean of neighbours at the last one's step."""
        return [
            (part[-1][0], mean([value for _, value in part]))
            for part in buckets(self.points, MOST_POINTS)
        ]

    @property
    def thinned_band(self) -> list[tuple[float, float]]:
        """(low, high) of every thinned point."""
        return [
            (mean([low for low, _ in part]), mean([high for _, high in part]))
            for part in buckets(self.band, MOST_POINTS)
        ]


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
    values = [value for points in data for _, value in points]
    values += [value for curve in curves for pair in curve.thinned_band for value in pair]
    values += [limit for limit in (low, high) if limit is not None]
    ticks = nice_ticks(min(values), max(values))
    steps = sorted({step for points in data for step, _ in points})
    drawn = [
        f'<path class="mark" d="M{across(mark, steps):.2f} 0V100"/>'
        for mark in marks
        if steps[0] <= mark <= steps[-1]
    ]
    for number, (curve, points) in enumerate(zip(curves, data, strict=True)):
        drawn += curve_drawn(curve, points, number, steps, ticks)
    return figure(title, curves, ticks, steps, drawn, line_values(curves, data, steps))


def curve_drawn(
    curve: Curve, points: Points, number: int, steps: Sequence[int], ticks: Sequence[float]
) -> list[str]:
    """The SVG elements of a curve: its band, its line, its dots."""
    places = [(across(s, steps), up(v, ticks)) for s, v in points]
    colour, drawn = f"var(--c{number % COLOURS})", []
    if curve.band and len(places) > 1:
        band = [(up(low, ticks), up(high, ticks)) for low, high in curve.thinned_band]
        edge = [(x, high) for (x, _), (_, high) in zip(places, band, strict=True)]
        edge += [(x, low) for (x, _), (low, _) in zip(places, band, strict=True)][::-1]
        path = "L".join(f"{x:.2f} {y:.2f}" for x, y in edge)
        drawn.append(f'<path class="band" style="fill:{colour}" d="M{path}Z"/>')
    path = "L".join(f"{x:.2f} {y:.2f}" for x, y in places)
    if len(places) > 1:
        drawn.append(f'<path class="line" style="stroke:{colour}" d="M{path}"/>')
    if curve.dots or len(places) == 1:  # a line of no length with round ends
        marks = "".join(f"M{x:.2f} {y:.2f}h0" for x, y in places)
        drawn.append(f'<path class="dot" style="stroke:{colour}" d="{marks}"/>')
    return drawn


def line_values(
    curves: Sequence[Curve], data: Sequence[Points], steps: Sequence[int]
) -> dict[str, Any]:
    """What a figure of lines carries: for every curve a value at every step, or None; and the same
    for the ends of its band."""
    values, bands = [], []
    for curve, points in zip(curves, data, strict=True):
        at = dict(points)
        values.append([rounded(at[step]) if step in at else None for step in steps])
        ends = dict(zip(at, curve.thinned_band, strict=False))
        pairs = [tuple(map(rounded, ends[step])) if step in ends else None for step in steps]
        bands.append(pairs if curve.band else None)
    found: dict[str, Any] = {"steps": list(steps), "values": values}
    return {**found, "bands": bands} if any(bands) else found


def stacked(title: str, curves: Sequence[Curve]) -> str:
    """A stacked bar for every step. All curves have the same steps."""
    if not curves or not curves[0].points:
        return ""
    data = [curve.thinned for curve in curves]
    steps = [step for step, _ in data[0]]
    columns = list(zip(*([value for _, value in points] for points in data), strict=True))
    ticks = nice_ticks(0.0, max(map(math.fsum, columns)))
    width = 100 / len(steps)
    drawn = []
    for index, column in enumerate(columns):
        bottom = 0.0
        for number, value in enumerate(column):
            y, foot = up(bottom + value, ticks), up(bottom, ticks)
            bottom += value
            if foot > y:
                drawn.append(
                    f'<rect x="{(index + 0.07) * width:.2f}" width="{width * 0.86:.2f}" '
                    f'y="{y:.2f}" height="{foot - y:.2f}" style="fill:var(--c{number % COLOURS})"/>'
                )
    return figure(title, curves, ticks, steps, drawn, line_values(curves, data, steps), bars=True)


def figure(
    title: str,
    curves: Sequence[Curve],
    ticks: Sequence[float],
    steps: Sequence[int],
    drawn: Sequence[str],
    values: Mapping[str, Any],
    bars: bool = False,
) -> str:
    """The HTML of a figure: caption, legend with the last values, grid, labels and `drawn`, the SVG
    elements of the curves or bars; it carries `values`."""
    legend = "".join(legend_entry(curve, number) for number, curve in enumerate(curves))
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
    carried = json.dumps({**values, "bars": bars}, separators=(",", ":"))
    return (
        f"<figure data-values='{html.escape(carried)}'>"
        f"<figcaption>{escaped(title)}</figcaption>"
        f'<div class="legend">{legend}</div>'
        f'<div class="plot">{labels}<svg viewBox="0 0 100 100" preserveAspectRatio="none" '
        f'role="img" aria-label="{escaped(title)}">{grid}{"".join(drawn)}</svg></div></figure>'
    )


def legend_entry(curve: Curve, number: int) -> str:
    """Colour, name and last value; a curve without a name is its figure's only one and gets the
    value alone."""
    last = f"<b>{short(curve.points[-1][1])}</b>"
    if not curve.name:
        return f"<span>last {last}</span>"
    colour = f'<i style="background:var(--c{number % COLOURS})"></i>'
    return f"<span>{colour}{escaped(curve.name)} {last}</span>"


def escaped(name: str) -> str:
    """A name for HTML: those of evaluation sets come from data."""
    return html.escape(printable(name))


def rounded(value: float) -> float:
    """To five digits, which is more than a chart shows; the largest float would become infinite."""
    short = float(f"{value:.5g}")
    return short if math.isfinite(short) else value


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

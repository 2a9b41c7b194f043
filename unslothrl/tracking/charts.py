"""Curves as inline SVG, with labels in HTML so that they stay readable on any screen.

The drawing is 100 x 100 units, stretched to its box; strokes keep their width. Hovering over a
step shows its values in the browser's tooltip.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from unslothrl.tracking.metrics import Points, buckets, short

MOST_POINTS = 300  # a longer curve is averaged over neighbouring steps
COLOURS = 6


@dataclass(frozen=True)
class Curve:
    name: str
    points: Points  # (step, value), ascending
    dots: bool = False  # mark every point

    @property
    def thinned(self) -> Points:
        """At most `MOST_POINTS` points, each the mean of neighbours at the last one's step."""
        return [
            (part[-1][0], math.fsum(value for _, value in part) / len(part))
            for part in buckets(self.points, MOST_POINTS)
        ]


def lines(
    title: str, curves: Sequence[Curve], low: float | None = None, high: float | None = None
) -> str:
    """A line chart, "" if no curve has a point. `low` and `high` are values that its vertical range
    must include."""
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return ""
    data = [curve.thinned for curve in curves]
    values = [value for points in data for _, value in points]
    values += [limit for limit in (low, high) if limit is not None]
    ticks = nice_ticks(min(values), max(values))
    steps = sorted({step for points in data for step, _ in points})
    drawn = []
    for number, (curve, points) in enumerate(zip(curves, data, strict=True)):
        places = [(across(s, steps), up(v, ticks)) for s, v in points]
        style = f"stroke:var(--c{number % COLOURS})"
        path = "L".join(f"{x:.2f} {y:.2f}" for x, y in places)
        if len(places) > 1:
            drawn.append(f'<path class="line" style="{style}" d="M{path}"/>')
        if curve.dots or len(places) == 1:  # a line of no length with round ends
            marks = "".join(f"M{x:.2f} {y:.2f}h0" for x, y in places)
            drawn.append(f'<path class="dot" style="{style}" d="{marks}"/>')
    values_at = [
        (
            step,
            [(c.name, dict(p)[step]) for c, p in zip(curves, data, strict=True) if step in dict(p)],
        )
        for step in steps
    ]
    return figure(title, curves, ticks, steps, drawn + hover_areas(values_at, steps))


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
    named = [
        (step, [(curve.name, value) for curve, value in zip(curves, column, strict=True)])
        for step, column in zip(steps, columns, strict=True)
    ]
    drawn += hover_areas(named, steps, bars=True)
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
    elements of the curves or bars."""
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
    return (
        f'<figure><figcaption>{html.escape(title)}</figcaption><div class="legend">{legend}</div>'
        f'<div class="plot">{labels}<svg viewBox="0 0 100 100" preserveAspectRatio="none" '
        f'role="img" aria-label="{html.escape(title)}">{grid}{"".join(drawn)}</svg></div></figure>'
    )


def legend_entry(curve: Curve, number: int) -> str:
    """Colour, name and last value; a curve without a name is its figure's only one and gets the
    value alone."""
    last = short(curve.points[-1][1])
    if not curve.name:
        return f"<span>last {last}</span>"
    colour = f'<i style="background:var(--c{number % COLOURS})"></i>'
    return f"<span>{colour}{html.escape(curve.name)} {last}</span>"


def hover_areas(
    rows: Sequence[tuple[int, Sequence[tuple[str, float]]]],
    steps: Sequence[int],
    bars: bool = False,
) -> list[str]:
    """An invisible rectangle for every step, whose tooltip shows the step's values."""
    width = 100 / len(steps)
    areas = []
    for index, (step, values) in enumerate(rows):
        label = ", ".join(f"{name} {short(value)}".strip() for name, value in values)
        left = index * width if bars else across(step, steps) - width / 2
        areas.append(
            f'<rect class="hit" x="{left:.2f}" y="0" width="{width:.2f}" height="100">'
            f"<title>step {step}: {html.escape(label)}</title></rect>"
        )
    return areas


def across(step: int, steps: Sequence[int]) -> float:
    """The x of a step: 0 at the first, 100 at the last, 50 if it is the only one."""
    span = steps[-1] - steps[0]
    return 100 * (step - steps[0]) / span if span else 50.0


def up(value: float, ticks: Sequence[float]) -> float:
    """The y of a value: 100 at the lowest tick, 0 at the highest."""
    return 100 - 100 * (value - ticks[0]) / (ticks[-1] - ticks[0])


def nice_ticks(low: float, high: float) -> list[float]:
    """Three to six multiples of 1, 2 or 5 times a power of ten that enclose [low, high]."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [number * size for number in range(first, last + 1)]


def tick_text(tick: float, ticks: Sequence[float]) -> str:
    """A tick's label, with enough decimals to distinguish it from its neighbours."""
    size = ticks[1] - ticks[0]
    decimals = max(0, -math.floor(math.log10(size) + 1e-9))
    if decimals > 4:
        return f"{tick:.0e}" if tick else "0"
    return f"{tick:,.{decimals}f}" if size < 1e6 else f"{tick:.0e}"

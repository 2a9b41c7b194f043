"""Draws the curves of docs/images from the results of bench/embedded.py: learning.svg, the
README's, json.svg and gamed.svg; and words.svg of bench/words.py.

python bench/picture.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 60, 220, 34, 40  # margins
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of pass@1
PASS, REWARD = "pass@1 by step", "reward by step"


class Curves(NamedTuple):
    """What is drawn of a kind of run, all seeds alike."""

    kind: str  # begins the runs' names
    figure: str
    style: str  # its class
    label: str


class Picture(NamedTuple):
    """A file of docs/images."""

    results: str
    title: str
    curves: tuple[Curves, ...]


WITH_CONTROL = (
    Curves("seed", PASS, "trained", "GRPO"),
    Curves("shuffled", PASS, "control", "control: shuffled rewards"),
)
PICTURES = {
    "learning": Picture(
        "embedded-cpu.json",
        "share of 200 held-out problems solved (pass@1), three seeds",
        WITH_CONTROL,
    ),
    "json": Picture(
        "embedded-json-cpu.json",
        "share of 200 held-out requests written right (pass@1), three seeds",
        WITH_CONTROL,
    ),
    "words": Picture(
        "words-cpu.json",
        "share of 300 held-out word problems solved (pass@1), three seeds",
        WITH_CONTROL,
    ),
    "gamed": Picture(
        "embedded-json-cpu.json",
        "a reward that is gamed, and its repair, three seeds",
        (
            Curves("gamed", REWARD, "control", "the naive reward itself"),
            Curves("repaired", PASS, "trained", "right, repaired reward"),
            Curves("gamed", PASS, "bad", "right, naive reward"),
        ),
    ),
}
STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1c1e21}
.quiet{fill:#667079}.grid{stroke:#dfe3e7}polyline{fill:none;stroke-width:2.2;stroke-linejoin:round}
.trained{stroke:#1f6fd1}.control{stroke:#8a939c}text.trained{fill:#1f6fd1;stroke:none}
text.control{fill:#667079;stroke:none}.bad{stroke:#c4351c}text.bad{fill:#c4351c;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e6e8ea}.quiet,text.control{fill:#98a1aa}
.grid{stroke:#2d3238}.trained{stroke:#6aa9ff}text.trained{fill:#6aa9ff}.control{stroke:#7f8992}
.bad{stroke:#ff8a70}text.bad{fill:#ff8a70}}
"""


def across(step: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / last


def up(value: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value)


def picture(drawn: Picture, runs: dict[str, dict]) -> str:
    """-> the SVG of the runs' curves."""
    series = {
        curves: [run[curves.figure] for name, run in runs.items() if name.split()[0] == curves.kind]
        for curves in drawn.curves
    }
    last = max(step for curves in series.values() for curve in curves for step, _ in curve)
    steps = sorted({step for run in runs.values() for step, _ in run[PASS]})
    parts = [f"<text x='{LEFT - 44}' y='18'>{drawn.title}</text>"]
    for tick in TICKS:
        y = up(tick)
        parts.append(f"<path class='grid' d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}'/>")
        at = f"x='{LEFT - 8}' y='{y + 4:.1f}' text-anchor='end'"
        parts.append(f"<text class='quiet' {at}>{tick:g}</text>")
    for step in steps:
        x = across(step, last)
        label = f"step {step}" if step == steps[0] else str(step)
        parts.append(
            f"<text class='quiet' x='{x:.1f}' y='{HEIGHT - 14}' text-anchor='middle'>{label}</text>"
        )
    for curves, found in series.items():
        for curve in found:
            points = " ".join(f"{across(s, last):.1f},{up(v):.1f}" for s, v in curve)
            parts.append(f"<polyline class='{curves.style}' points='{points}'/>")
    for curves, found in series.items():
        parts.append(label_at(curves.style, curves.label, [curve[-1][1] for curve in found]))
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' "
        f"height='{HEIGHT}' role='img'>\n<title>{drawn.title}</title>\n"
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def label_at(kind: str, label: str, ends: Sequence[float]) -> str:
    """A curve's label beside its end, with the mean of the last values."""
    mean = sum(ends) / len(ends)
    x, y = WIDTH - RIGHT + 8, up(mean) + 4
    return f"<text class='{kind}' x='{x}' y='{y:.1f}'>{mean:.2f}, {label}</text>"


def drawn(name: str) -> str:
    chosen = PICTURES[name]
    return picture(chosen, json.loads((RESULTS / chosen.results).read_text())["runs"])


if __name__ == "__main__":
    for name in PICTURES:
        (IMAGES / f"{name}.svg").write_text(drawn(name))
        print(IMAGES / f"{name}.svg")

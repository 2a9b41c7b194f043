"""Draws docs/images/learning.svg, the README's curve, from bench/results/embedded-cpu.json.

python bench/picture.py
"""

import json
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "embedded-cpu.json"
PICTURE = ROOT / "docs" / "images" / "learning.svg"
WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 60, 220, 34, 40  # margins
TITLE = "share of 200 held-out problems solved (pass@1), three seeds"
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of pass@1
KINDS = {"seed": ("trained", "GRPO"), "shuffled": ("control", "control: shuffled rewards")}
STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1c1e21}
.quiet{fill:#667079}.grid{stroke:#dfe3e7}polyline{fill:none;stroke-width:2.2;stroke-linejoin:round}
.trained{stroke:#1f6fd1}.control{stroke:#8a939c}text.trained{fill:#1f6fd1;stroke:none}
text.control{fill:#667079;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e6e8ea}.quiet,text.control{fill:#98a1aa}
.grid{stroke:#2d3238}.trained{stroke:#6aa9ff}text.trained{fill:#6aa9ff}.control{stroke:#7f8992}}
"""


def across(step: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / last


def up(value: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value)


def picture(runs: dict[str, dict]) -> str:
    """-> the SVG of the runs' pass@1, those with shuffled rewards in grey."""
    curves = {name: run["pass@1 by step"] for name, run in runs.items()}
    steps = sorted({step for curve in curves.values() for step, _ in curve})
    parts = [f"<text x='{LEFT - 44}' y='18'>{TITLE}</text>"]
    for tick in TICKS:
        y = up(tick)
        parts.append(f"<path class='grid' d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}'/>")
        at = f"x='{LEFT - 8}' y='{y + 4:.1f}' text-anchor='end'"
        parts.append(f"<text class='quiet' {at}>{tick:g}</text>")
    for step in steps:
        x = across(step, steps[-1])
        label = f"step {step}" if step == steps[0] else str(step)
        parts.append(
            f"<text class='quiet' x='{x:.1f}' y='{HEIGHT - 14}' text-anchor='middle'>{label}</text>"
        )
    for name, curve in curves.items():
        kind = KINDS[name.split()[0]][0]
        points = " ".join(f"{across(s, steps[-1]):.1f},{up(v):.1f}" for s, v in curve)
        parts.append(f"<polyline class='{kind}' points='{points}'/>")
    for first, (kind, label) in KINDS.items():
        ends = [curve[-1][1] for name, curve in curves.items() if name.split()[0] == first]
        parts.append(label_at(kind, label, ends))
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' "
        f"height='{HEIGHT}' role='img'>\n<title>pass@1 over the steps</title>\n"
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def label_at(kind: str, label: str, ends: Sequence[float]) -> str:
    """A curve's label beside its end, with the mean of the last values."""
    mean = sum(ends) / len(ends)
    x, y = WIDTH - RIGHT + 8, up(mean) + 4
    return f"<text class='{kind}' x='{x}' y='{y:.1f}'>{mean:.2f}, {label}</text>"


def drawn() -> str:
    return picture(json.loads(RESULTS.read_text())["runs"])


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn())
    print(PICTURE)

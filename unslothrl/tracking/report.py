"""report.html: what a run did, in one file that needs neither network nor scripts.

Model output is hostile: all text is escaped, control characters are replaced, and the page's
content security policy forbids everything but its own styles.
"""

import html
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from unslothrl.files import write_whole
from unslothrl.tracking import charts
from unslothrl.tracking.charts import Curve
from unslothrl.tracking.metrics import (
    Row,
    components,
    duration,
    eval_sets,
    is_number,
    series,
    short,
)
from unslothrl.tracking.run_folder import CONFIG, REPORT, RunFolder
from unslothrl.tracking.timer import PARTS

LONGEST_TEXT = 6000  # characters of a prompt or completion that are shown


def write_report(folder: RunFolder | Path | str) -> Path:
    """Writes report.html of a running or finished run and returns its path."""
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    rows = folder.read_metrics()
    parts = [
        title(folder.path.resolve().name, folder.read_summary(), rows),
        before_after(rows),
        curves(rows),
        samples(folder),
        options(folder.path / CONFIG),
    ]
    page = PAGE.replace("{title}", text(folder.path.resolve().name)).replace("{style}", STYLE)
    page = page.replace("{body}", "\n".join(part for part in parts if part))
    write_whole(folder.path / REPORT, page.encode("utf-8", "replace"))
    return folder.path / REPORT


def title(name: str, summary: dict[str, Any], rows: Sequence[Row]) -> str:
    """The header: the run's name, its status, five figures, and how to use the adapter."""
    status = summary.get("status", "running")
    steps = [row for row in rows if "timing/step_s" in row]
    seconds = sum(value for _, value in series(rows, "timing/step_s"))
    facts = [
        ("steps", f"{len(steps):,}"),
        ("time in steps", duration(seconds)),
        ("tokens generated", f"{sum(v for _, v in series(rows, 'rollout/tokens')):,.0f}"),
        ("samples", f"{max((row.get('samples_seen') or 0 for row in rows), default=0):,}"),
        ("policy version", f"{max((row.get('policy_version') or 0 for row in rows), default=0):,}"),
    ]
    cells = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in facts)
    use = "".join(
        f"<p class=where><span>{label}</span> <code>{text(summary[key])}</code></p>"
        for label, key in (("Adapter", "adapter"), ("Use it", "command"))
        if summary.get(key)
    )
    return (
        f"<header><h1>{text(name)} <small class='{text(status)}'>{text(status)}</small></h1>"
        f"<dl class=facts>{cells}</dl>{use}</header>"
    )


def before_after(rows: Sequence[Row]) -> str:
    """A table of the held-out evaluations: first, last, change and best."""
    body = []
    for name in eval_sets(rows):
        for label, key in (("pass@1", "pass@1"), ("best of n", "best_of_n")):
            points = series(rows, f"eval/{name}/{key}")
            if not points:
                continue
            (_, first), (_, last) = points[0], points[-1]
            best_step, best = max(points, key=lambda point: point[1])
            change = f"{last - first:+.3f}" if len(points) > 1 else "-"
            after = short(last) if len(points) > 1 else "-"
            body.append(
                f"<tr><th>{label} <small>{text(name)}</small></th><td>{short(first)}</td>"
                f"<td><b>{after}</b></td><td class={'up' if last > first else 'same'}>{change}</td>"
                f"<td>{short(best)} <small>step {best_step}</small></td></tr>"
            )
    if not body:
        return ""
    head = "<tr><th><th>before<th>after<th>change<th>best</tr>"
    return (
        "<section><h2>Before and after, on held-out problems</h2><div class=wide>"
        f"<table class=numbers><thead>{head}</thead><tbody>{''.join(body)}</tbody></table></div>"
        "</section>"
    )


def curves(rows: Sequence[Row]) -> str:
    """The figures over steps; a metric that was not logged has none."""
    rewards = [Curve("mean", series(rows, "reward/mean"))]
    parts = components(rows)
    if len(parts) > 1:
        rewards += [Curve(n.removeprefix("reward/"), series(rows, n)) for n in parts]
    evals = [
        Curve(f"{name} {label}", series(rows, f"eval/{name}/{key}"), dots=True)
        for name in eval_sets(rows)
        for label, key in (("pass@1", "pass@1"), ("best of n", "best_of_n"))
    ]
    single = [
        ("Loss", "train/loss", None),
        ("Gradient norm, before clipping", "train/grad_norm", 0.0),
        ("Sampler gap, mean |sampler - learner|", "train/sampler_gap", 0.0),
        ("Completion length, tokens", "rollout/mean_length", 0.0),
        ("Generation, tokens per second", "rollout/tokens_per_s", 0.0),
        ("Entropy, nats per token", "train/entropy", 0.0),
        ("KL against the reference, nats per token", "train/kl_reference", 0.0),
        ("Critic: share of the returns' variance explained", "train/value_explained", None),
        ("Prompts drawn again, times a step", "rollout/resamples", 0.0),
    ]
    figures = [
        charts.lines("Reward, mean of a step's completions", rewards),
        charts.lines("Evaluation on held-out problems", evals, low=0.0, high=1.0),
        *(charts.lines(label, [Curve("", series(rows, n))], low=low) for label, n, low in single),
        charts.stacked("Seconds of a step", step_seconds(rows)),
    ]
    drawn = "".join(figure for figure in figures if figure)
    return f"<section><h2>Over the steps</h2><div class=figures>{drawn}</div></section>" * bool(
        drawn
    )


def step_seconds(rows: Iterable[Row]) -> list[Curve]:
    """Seconds of every step by part of the loop; "overhead" is the time outside all parts."""
    rows = [row for row in rows if is_number(row.get("timing/step_s"))]
    named = [[row.get(f"timing/{name}_s") or 0.0 for name in PARTS] for row in rows]
    other = [max(0.0, r["timing/step_s"] - sum(v)) for r, v in zip(rows, named, strict=True)]
    parts = [
        Curve(name, [(row["step"], v[i]) for row, v in zip(rows, named, strict=True)])
        for i, name in enumerate(PARTS)
    ]
    rest = [(row["step"], value) for row, value in zip(rows, other, strict=True)]
    return [*parts, Curve("overhead", rest)]


def samples(folder: RunFolder) -> str:
    """Sample rollouts of the first and the last step, see `best_middle_worst`."""
    steps = folder.rollout_steps()
    parts = []
    for step in dict.fromkeys([*steps[:1], *steps[-1:]]):
        rows = best_middle_worst(folder.read_rollouts(step))
        cards = "".join(sample(row, is_open=number == 0) for number, row in enumerate(rows))
        parts.append(f"<h3>Step {step}</h3>{cards}")
    return f"<section><h2>Sample rollouts</h2>{''.join(parts)}</section>" * bool(parts)


def best_middle_worst(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Up to three candidates: those with the highest, the median and the lowest reward."""
    ranked = sorted(rows, key=reward_of, reverse=True)
    places = dict.fromkeys([0, len(ranked) // 2, len(ranked) - 1]) if ranked else []
    return [ranked[place] for place in places]


def reward_of(row: dict[str, Any]) -> float:
    return sum(value for value in row["rewards"].values() if is_number(value))


def sample(row: dict[str, Any], is_open: bool) -> str:
    """One candidate: what it earned, its prompt and its completion."""
    facts = [f"{name} {short(value)}" for name, value in row["rewards"].items()]
    facts += [
        f"advantage {short(row['advantage'])}",
        "selected" if row["selected"] else "not selected",
    ]
    facts += ["cut at the length limit"] if row["finish_reason"] == "length" else []
    return (
        f"<details{' open' * is_open}><summary><b>reward {short(reward_of(row))}</b> "
        f"<span>task {text(row['task'])}, candidate {row['candidate']}</span></summary>"
        f"<p class=meta>{text(', '.join(facts))}</p>"
        f"<h4>Prompt</h4><pre>{long_text(row['prompt'])}</pre>"
        f"<h4>Completion</h4><pre>{long_text(row['completion'])}</pre></details>"
    )


def options(path: Path) -> str:
    """A table of the options in config.toml."""
    if not path.is_file():
        return ""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in table.items()
    )
    return f"<section><h2>Options</h2><dl class=options>{rows}</dl></section>"


def text(value: Any) -> str:
    """Escaped, and without the control characters that HTML forbids."""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return html.escape("".join("\ufffd" if is_forbidden(c) else c for c in shown))


def is_forbidden(character: str) -> bool:
    code = ord(character)
    return (code < 32 and character not in "\n\t") or 127 <= code < 160


def long_text(value: str) -> str:
    """Escaped, and cut after `LONGEST_TEXT` characters with a note of how many were left out."""
    left_out = len(value) - LONGEST_TEXT
    more = f"\n<i>{left_out:,} more characters in the rollouts</i>" if left_out > 0 else ""
    return text(value[:LONGEST_TEXT]) + more


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title><style>{style}</style></head><body>
{body}
</body></html>
"""

STYLE = """
:root{--ground:#fff;--ink:#1c1e21;--quiet:#667079;--line:#dfe3e7;--pane:#f5f6f8;
--c0:#1f6fd1;--c1:#d9730d;--c2:#2b8a57;--c3:#9b51c4;--c4:#8a939c;--c5:#b83280;--good:#1f7a4a;
--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ground:#15171a;--ink:#e6e8ea;--quiet:#98a1aa;
--line:#2d3238;--pane:#1d2024;--c0:#6aa9ff;--c1:#f0a050;--c2:#5cc98f;--c3:#c792ea;--c4:#7f8992;
--c5:#f082b8;--good:#5cc98f;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem 1rem 4rem;background:var(--ground);
color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.6rem;margin:0 0 1rem;overflow-wrap:anywhere;line-height:1.25}
h1 small{font-size:.8rem;font-weight:500;color:var(--quiet);border:1px solid;border-radius:1rem;
padding:.1rem .6rem;vertical-align:middle;white-space:nowrap}
h1 .finished{color:var(--good)}h1 .failed{color:var(--bad)}
h2{font-size:1.1rem;margin:2.5rem 0 1rem}h3{font-size:1rem;margin:1.5rem 0 .5rem}
h4{font-size:.8rem;font-weight:500;color:var(--quiet);margin:1rem 0 .25rem}
dl{margin:0}dd{margin:0}dt,.where span,.meta{color:var(--quiet);font-size:.85rem}
.facts{display:flex;flex-wrap:wrap;gap:.75rem 2.5rem}.facts dd{font-size:1.25rem}
.where{margin:1rem 0 0;overflow-wrap:anywhere}.where span{display:inline-block;min-width:4rem}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.wide{overflow-x:auto}
table{border-collapse:collapse}th{font-weight:500;text-align:left}
thead th{color:var(--quiet);font-size:.85rem}
.numbers td,.numbers th{padding:.4rem clamp(.7rem,3vw,2rem) .4rem 0;
border-bottom:1px solid var(--line);white-space:nowrap;font-variant-numeric:tabular-nums}
.numbers small{color:var(--quiet)}.up{color:var(--good)}
.figures{display:grid;gap:2rem 2.5rem;
grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr))}
figure{margin:0;min-width:0}figcaption{font-size:.9rem;font-weight:500}
.legend{display:flex;flex-wrap:wrap;gap:0 1rem;font-size:.8rem;color:var(--quiet);min-height:1.2rem}
.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.35rem}
.plot{position:relative;height:11rem;margin:.6rem 0 1.4rem 3.2rem;
border-bottom:1px solid var(--line)}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.plot span{position:absolute;font-size:.72rem;color:var(--quiet);
font-variant-numeric:tabular-nums;white-space:nowrap;line-height:1}
.plot .y{right:100%;padding-right:.45rem;transform:translateY(-50%)}
.plot .x{top:100%;padding-top:.4rem;transform:translateX(-50%)}
.grid{stroke:var(--line)}.line{fill:none;stroke-width:2;stroke-linejoin:round;
stroke-linecap:round}.dot{fill:none;stroke-width:7;stroke-linecap:round}
.grid,.line,.dot{vector-effect:non-scaling-stroke}.hit{fill:transparent}
.hit:hover{fill:var(--ink);fill-opacity:.06}
details{border-top:1px solid var(--line);padding:.5rem 0}
summary{cursor:pointer}summary span{color:var(--quiet);font-size:.85rem;overflow-wrap:anywhere}
summary b{font-weight:500;font-variant-numeric:tabular-nums;margin-right:.5rem}
.meta{margin:.5rem 0 0}
pre{margin:0;padding:.75rem;background:var(--pane);border-radius:6px;white-space:pre-wrap;
overflow-wrap:anywhere;unicode-bidi:isolate;max-height:24rem;overflow-y:auto}
.options{columns:18rem;column-gap:2.5rem}
.options div{display:flex;justify-content:space-between;gap:1rem;break-inside:avoid;
border-bottom:1px solid var(--line);padding:.25rem 0}
.options dd{text-align:right;overflow-wrap:anywhere;min-width:0;font-size:.85rem}
"""

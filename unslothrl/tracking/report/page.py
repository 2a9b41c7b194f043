"""The page of a run, or of several that are compared: one file, which needs no network.

Model output is hostile: all text is escaped, and characters are made visible that would hide, move
or reverse others. What the script shows is JSON inside an element that no browser runs, and the
content security policy allows this script by its hash, and no text to become markup (trusted types;
browsers that do not know them ignore that).
"""

import base64
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unslothrl.algorithms.estimates import estimate, paired
from unslothrl.files import write_whole
from unslothrl.text import plain
from unslothrl.tracking import origin
from unslothrl.tracking.metrics import EVALUATED, components, duration, mean, short
from unslothrl.tracking.report import signs
from unslothrl.tracking.report.charts import all_figures, text
from unslothrl.tracking.report.history import RunHistory, columns_of
from unslothrl.tracking.report.rollout_data import browser_data, encoded_json
from unslothrl.tracking.run_folder import (
    ADAPTERS,
    CONFIG,
    EVALS,
    METRICS,
    ORIGIN,
    REPORT,
    ROLLOUTS,
    RunFolder,
)  # fmt: skip

WRITING = threading.Lock()  # a run writes its page in a thread, and at its end
SAME_FOR_ALL = ("run_name", "output_dir", "resume")  # options that say nothing of what was trained
EVALUATIONS = (*EVALUATED, ("margin", "margin"))  # label, key
OF_PROBLEM: dict[str, Callable[[Sequence[float]], float]] = {"pass@1": mean, "best_of_n": max}
"""Figure -> that of a problem, of its completions' scores; others are no problem's own."""

POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; "
    "script-src 'sha256-{hash}'; require-trusted-types-for 'script'; trusted-types 'none'"
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title><style>{style}</style></head><body>
{body}
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body></html>
"""


def write_report(folder: RunFolder | Path | str) -> Path:
    """Writes report.html of a running or finished run. -> its path. ValueError, KeyError,
    TypeError or UserError where a file of the run is damaged; OSError."""
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    with WRITING:
        return write_page([RunHistory.read(folder)], folder.path / REPORT)


def write_page(runs: Sequence[RunHistory], path: Path) -> Path:
    """Writes the page of a run, or the one that compares runs. -> its path."""
    title = ", ".join(run.name for run in runs)
    data = browser_data(runs[0].folder) if len(runs) == 1 else {"steps": [], "evals": []}
    body = [header(runs, path)]
    body += [section(name, make(runs), id) for name, id, make in SECTIONS]
    script = asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "policy": POLICY.replace("{hash}", digest),
        "title": text(title),
        "style": asset("report.css"),
        "body": "\n".join(part for part in body if part),
        "data": encoded_json(data),
        "script": script,
    }
    filled = re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], PAGE)
    write_whole(path, filled.encode("utf-8", "replace"))
    return path


@contextmanager
def noting_errors(note: Callable[[str], None]) -> Iterator[None]:
    """Turns a fault of this package, which is no reason to end a run, into a line for its user.
    OSError, for a full disk, passes."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        said = plain(" ".join(str(error).split()))
        note(f"the report cannot be written ({type(error).__name__}: {said}); the run goes on")


def asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def address(path: str | Path) -> str:
    """A file's relative path as a link: a name may hold # or ?, and bytes that are not UTF-8."""
    return quote(os.fsencode(path))


# Parts of a page


def section(title: str, body: str, id: str) -> str:
    """Nothing where `body` is empty."""
    return f'<section id="{id}"><h2>{title}</h2>{body}</section>' if body else ""


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Of cells in HTML; the first of a row is its name."""
    top = "".join(f"<th>{cell}" for cell in head)
    lines = [f"<th>{row[0]}</th>" + "".join(f"<td>{cell}</td>" for cell in row[1:]) for row in body]
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f"<div class=wide><table class=numbers><thead><tr>{top}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
        if body
        else ""
    )


def facts(pairs: Mapping[str, Any], kind: str) -> str:
    """A definition list."""
    cells = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in pairs.items())
    return f"<dl class={kind}>{cells}</dl>" if cells else ""


def header(runs: Sequence[RunHistory], path: Path) -> str:
    """Of a run its name and status, what it trained on what, figures, and commands; of several a
    table."""
    if len(runs) > 1:
        title = ", ".join(text(run.name) for run in runs)
        columns = columns_of(runs)
        body = [[link(run, path), *map(text, run.cells(columns)[1:])] for run in runs]
        return f"<header><h1>{title} <small>{len(runs)} runs</small></h1></header>" + section(
            "Runs", table(columns, body), "runs"
        )
    (run,) = runs
    what = {**what_of(run), "started": run.begun.started, "page written": origin.now()}
    lines = {
        "Started by": run.begun.command,
        "Adapter": run.summary.get("adapter"),
        "Use it": run.summary.get("command"),
    }
    resumed = ["; ".join((f"after step {r.step}, {r.date}", *r.changes)) for r in run.begun.resumes]
    where = "".join(
        f"<p class=where><span>{label}</span> <code>{text(value)}</code></p>"
        for label, value in [*lines.items(), *(("Resumed", each) for each in resumed)]
        if value
    )
    status = text(run.status)
    return (
        f"<header><h1>{text(run.name)} <small class='{status}'>{status}</small></h1>"
        f"{facts({k: v for k, v in what.items() if v}, 'what')}{facts(figures_of(run), 'facts')}"
        f"{where}</header>"
    )


def link(run: RunHistory, path: Path) -> str:
    """A run's name, which leads to its report where it has one."""
    report = run.folder.path / REPORT
    if not report.is_file():
        return text(run.name)
    return f'<a href="{address(os.path.relpath(report, path.parent))}">{text(run.name)}</a>'


def what_of(run: RunHistory) -> dict[str, Any]:
    """What a run trained on what."""
    options = run.options
    known = {"model": options.get("model"), "data set": options.get("dataset")}
    if not run.is_rl:
        stage = {"stage": origin.METHODS[run.kind].name}
        return {**stage, **known, "from adapter": options.get("adapter")}
    found = [name.removeprefix("reward/") for name in components(run.rows)]
    rewards = ", ".join(map(str, options.get("reward") or found))
    return {**known, "learner": options.get("learner"), "reward": rewards}


def figures_of(run: RunHistory) -> dict[str, str]:
    timed = run.values("timing/step_s")
    found = {
        "steps": f"{len(timed):,}",
        "time in steps": duration(sum(timed)),
        "in evaluations": duration(sum(run.values("timing/eval_s"))),
    }
    seen = f"{max(run.values('samples_seen'), default=0):,}"
    if not run.is_rl:
        tokens = max(run.values("train/tokens"), default=0)
        return {**found, "tokens read": f"{tokens:,.0f}", "rows seen": seen}
    return {
        **found,
        "tokens generated": f"{sum(run.values('rollout/tokens')):,.0f}",
        "samples": seen,
        "policy version": f"{max(run.values('policy_version'), default=0):,}",
    }


def signs_section(runs: Sequence[RunHistory]) -> str:
    """What a newcomer should look at."""
    items = [
        f"<li class={sign.rule.level}><b>{f'{text(run.name)}: ' if len(runs) > 1 else ''}"
        f"{text(sign.rule.title)}.</b> {text(sign.seen)} <span>{text(sign.rule.advice)}</span></li>"
        for run in runs
        if any(row["step"] for row in run.rows)
        for sign in signs.found(run)
    ]
    if not items and len(runs) == 1 and runs[0].values("timing/step_s"):
        count = len(signs.rules_of(runs[0].kind))
        items = [f"<li class=fine><b>Nothing stands out.</b> {count} signs were looked for.</li>"]
    return f"<ul class=signs>{''.join(items)}</ul>" if items else ""


def evaluations_section(runs: Sequence[RunHistory]) -> str:
    """A table of the held-out evaluations: first, last, difference and best; of two runs also how
    their last ones differ."""
    body = []
    for name in dict.fromkeys(name for run in runs for name in run.sets):
        for label, key in EVALUATIONS:
            having = [run for run in runs if run.points(f"eval/{name}/{key}")]
            of = f"{label} <small>{text(name)}</small>"
            for run in having:
                who = f" {text(run.name)}" if len(runs) > 1 else ""
                body.append([of + who, *evaluation_cells(run, name, key)])
            if len(having) == len(runs) == 2:
                body.append(
                    [f"{of} difference of the last", "", "", last_difference(runs, name, key)]
                )
    notes = ""
    if any(OF_PROBLEM.keys() & {key for _, key in EVALUATIONS} and run.is_rl for run in runs):
        notes = (
            "<p class=meta>In brackets 95% intervals over problems; a difference is paired, p is "
            "the probability of one as large if there were none. See docs/using.md.</p>"
        )
    if any(run.kind == origin.DPO for run in runs):
        notes += (
            "<p class=meta>Before the first step the policy of DPO is its own reference: it "
            "prefers neither answer of a pair, which counts as half right.</p>"
        )
    return table(["", "before", "after", "difference", "best"], body) + notes if body else ""


def evaluation_cells(run: RunHistory, name: str, key: str) -> list[str]:
    points = run.points(f"eval/{name}/{key}")
    (first_step, first), (last_step, last) = points[0], points[-1]
    better = -1 if key == "loss" else 1
    best_step, best = max(points, key=lambda point: better * point[1])
    after = changed = "-"
    if len(points) > 1:
        after = with_interval(run, name, key, last_step, last)
        sets = [run.evaluations.get(step, {}).get(name, {}) for step in (first_step, last_step)]
        changed = difference(sets[0], sets[1], key) or f"{last - first:+.3f}"
    kind = "up" if better * (last - first) > 0 else "same"
    return [
        with_interval(run, name, key, first_step, first),
        f"<b>{after}</b>",
        f"<span class={kind}>{changed}</span>",
        f"{short(best)} <small>step {best_step}</small>",
    ]


def with_interval(run: RunHistory, name: str, key: str, step: int, value: float) -> str:
    scores = run.evaluations.get(step, {}).get(name)
    if key not in OF_PROBLEM or not scores:
        return short(value)
    found = estimate([OF_PROBLEM[key](each) for each in scores.values()])
    return f"{short(value)} <small>({found.low:.3f} to {found.high:.3f})</small>"


def difference(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]], key: str
) -> str:
    """The paired difference of two evaluations, with its interval and p; "" where they are not of
    the same problems, or where the best is one of more completions in one of them."""
    counts = [{len(scores) for scores in each.values()} for each in (before, after)]
    if key not in OF_PROBLEM or not before or before.keys() != after.keys():
        return ""
    if key == "best_of_n" and counts[0] != counts[1]:
        return ""
    pairs = [(OF_PROBLEM[key](scores), OF_PROBLEM[key](after[n])) for n, scores in before.items()]
    compared = paired([first for first, _ in pairs], [last for _, last in pairs])
    p = "p &lt; 0.001" if compared.p < 0.001 else f"p = {compared.p:.3f}"
    return f"{compared.mean:+.3f} <small>({compared.low:+.3f} to {compared.high:+.3f}), {p}</small>"


def last_difference(runs: Sequence[RunHistory], name: str, key: str) -> str:
    """Of two runs: paired over the problems, "-" where those are not the same; what is no problem's
    own is subtracted."""
    ends = [run.points(f"eval/{name}/{key}")[-1] for run in runs]
    if key not in OF_PROBLEM:
        return f"{ends[1][1] - ends[0][1]:+.3f}"
    first, second = (
        run.evaluations.get(step, {}).get(name, {})
        for run, (step, _) in zip(runs, ends, strict=True)
    )
    return difference(first, second, key) or "-"


def curves_section(runs: Sequence[RunHistory]) -> str:
    drawn = all_figures(runs)
    resumed = len(runs) == 1 and runs[0].begun.resumes
    hint = (
        f"<p class=meta>{'Dashed lines: resumed there. ' if resumed else ''}Point at a chart to "
        f"read its values{'; click to see the rollouts of a step' if runs[0].is_rl else ''}.</p>"
    )
    return hint + drawn if drawn else ""


def differing_section(runs: Sequence[RunHistory]) -> str:
    if len(runs) == 1:
        return ""
    return (
        table(
            ["", *(text(run.name) for run in runs)],
            [
                [text(name), *("-" if value is None else text(value) for value in values)]
                for name in dict.fromkeys(name for run in runs for name in run.options)
                for values in [[run.options.get(name) for run in runs]]
                if name not in SAME_FOR_ALL and any(value != values[0] for value in values)
            ],
        )
        or "<p>None.</p>"
    )


def rollouts_section(runs: Sequence[RunHistory]) -> str:
    """What the script fills."""
    has_some = any(runs[0].folder.steps_of(kind) for kind in (ROLLOUTS, EVALS))
    return asset("browser.html") if len(runs) == 1 and has_some else ""


def options_section(runs: Sequence[RunHistory]) -> str:
    return facts(runs[0].options, "options") if len(runs) == 1 else ""


def versions_section(runs: Sequence[RunHistory]) -> str:
    if len(runs) > 1:
        return ""
    known, summary = dict(runs[0].begun.versions), runs[0].summary
    if summary.get("version"):
        known.setdefault("unslothrl", summary["version"])
    if summary.get("base_hash"):
        known["hash of the base"] = str(summary["base_hash"])[:16]
    return facts(known, "options")


def files_section(runs: Sequence[RunHistory]) -> str:
    """Links to what a run has written besides."""
    named = [CONFIG, METRICS, ORIGIN, f"{ROLLOUTS}/", f"{EVALS}/", f"{ADAPTERS}/"]
    here = [name for name in named if len(runs) == 1 and (runs[0].folder.path / name).exists()]
    links = "".join(f'<li><a href="{name}">{name}</a></li>' for name in here)
    return f"<ul>{links}</ul>" if links else ""


SECTIONS: tuple[tuple[str, str, Callable[[Sequence[RunHistory]], str]], ...] = (
    ("What to look at", "signs", signs_section),
    ("Options that differ", "differing", differing_section),
    ("Evaluations: before and after", "before-after", evaluations_section),
    ("Over the steps", "curves", curves_section),
    ("Rollouts", "rollouts", rollouts_section),
    ("Options", "options", options_section),
    ("Versions", "versions", versions_section),
    ("Files", "files", files_section),
)

"""The page of a run, or of several that are compared: one file, which needs no network.

Model output is hostile: `page.html` escapes all that it is given, and characters are made visible
that would hide, move or reverse others. What the script shows is JSON, without < or >, inside an
element that no browser runs, and the content security policy allows this script by its hash, and no
text to become markup (trusted types; browsers that do not know them ignore that).
"""

import base64
import hashlib
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from unslothrl.algorithms.estimates import Difference
from unslothrl.files import write_whole
from unslothrl.tracking import origin
from unslothrl.tracking.metrics import duration
from unslothrl.tracking.proof import checks
from unslothrl.tracking.report import signs
from unslothrl.tracking.report.charts import all_figures, chart_of
from unslothrl.tracking.report.history import RunHistory
from unslothrl.tracking.report.problems import evaluations, flipped, is_clear
from unslothrl.tracking.report.rollout_data import ENCODER, browser_data, visible
from unslothrl.tracking.report.verdict import of_two, table_of, verdict
from unslothrl.tracking.rows import json_text
from unslothrl.tracking.run_folder import REPORT, RunFolder

WRITING = threading.Lock()  # a run writes its page in a thread, and at its end
SAME_FOR_ALL = ("run_name", "output_dir", "resume")  # options that say nothing of what was trained


def write_report(folder: RunFolder | Path | str) -> Path:
    """Writes report.html of a running or finished run. -> its path. ValueError, KeyError,
    TypeError or UserError where a file of the run is damaged; OSError."""
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    with WRITING:
        return write_page([RunHistory.read(folder)], folder.path / REPORT)


def write_page(runs: Sequence[RunHistory], path: Path) -> Path:
    """Writes the page of a run, or the one that compares runs. -> its path."""
    style, script = asset("base.css") + asset("report.css"), asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    only = runs[0] if len(runs) == 1 else None
    data = browser_data(only.folder) if only else {"steps": [], "evals": []}
    begun = [run for run in runs if any(row["step"] for row in run.rows)]
    found = [(run.name, sign) for run in begun for sign in signs.found(run)]
    figures = all_figures(runs, {s.rule.metric: s.rule.limit for _, s in found if s.rule.limit})
    between = [("", of)] if len(runs) == 2 and (of := of_two(runs)) else []
    environment = Environment(
        autoescape=True, finalize=text, undefined=StrictUndefined, trim_blocks=True
    )
    environment.policies["json.dumps_function"] = lambda value, **_: json_text(value, ENCODER)
    page = environment.from_string(asset("page.html")).render(
        title=", ".join(run.name for run in runs),
        style=Markup(style),
        script=Markup(script),
        digest=digest,
        data=data,
        runs=runs,
        run=only,
        folder=f"{shlex.quote(str(only.folder.path))}/" if only else "RUN/",
        kinds={run.kind for run in runs},
        verdicts=[*between, *((f"{run.name}: " * (only is None), verdict(run)) for run in runs)],
        chart_of=chart_of,
        signs=found,
        is_fine=only is not None and bool(only.values("timing/step_s")),
        evaluations=evaluations(runs),
        figures=figures,
        charted={metric for drawn in figures.values() for each in drawn for metric in each.metrics},
        examples=flipped(only) if only else [],
        proof=checks(only) if only and only.status != "running" else [],
        has_rollouts=bool(data["steps"] or data["evals"]),
        **(of_comparison(runs) if only is None else of_run(only)),
    )
    write_whole(path, page.encode("utf-8", "replace"))
    return path


def asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def text(value: Any) -> Markup:
    """For HTML: escaped, with every character to be seen. Clear differences are coloured."""
    if isinstance(value, Markup):
        return value
    shown = escape(visible(str(value).lower() if isinstance(value, bool) else str(value)))
    if not isinstance(value, Difference):
        return shown
    if not is_clear(value):
        return shown + Markup(' <span class="same">no clear change</span>')
    return Markup(f'<b class="{"up" if value.mean > 0 else "down"}">{shown}</b>')


# Parts of a page


def of_run(run: RunHistory) -> dict[str, Any]:
    summary, timed = run.summary, run.values("timing/step_s")
    totals = {
        "tokens generated": sum(run.values("rollout/tokens")),
        "tokens read": max(run.values("train/tokens"), default=0),
        "samples" if run.is_rl else "rows seen": max(run.values("samples_seen"), default=0),
    }
    commands = [
        ("Started by", run.begun.command),
        ("Adapter", summary.get("adapter")),
        ("Use it", None if verdict(run).advice else summary.get("command")),
        *(
            ("Resumed", "; ".join((f"after step {each.step}, {each.date}", *each.changes)))
            for each in run.begun.resumes
        ),
    ]
    versions = {"unslothrl": summary.get("version"), **run.begun.versions}
    return {
        "status": run.status,
        "numbers": {
            "trained by": origin.METHODS[run.kind].name,
            "started": run.begun.started or "-",
            "page written": origin.now(),
            "steps": f"{len(timed):,}",
            "time in steps": duration(sum(timed)),
            "in evaluations": duration(sum(run.values("timing/eval_s"))),
            **{name: f"{total:,.0f}" for name, total in totals.items() if total},
        },
        "commands": [(label, value) for label, value in commands if value],
        "versions": {name: value for name, value in versions.items() if value},
    }


def of_comparison(runs: Sequence[RunHistory]) -> dict[str, Any]:
    columns, *listing = table_of(runs)
    options = {
        name: [run.options.get(name) for run in runs]
        for name in dict.fromkeys(name for run in runs for name in run.options)
    }
    return {
        "columns": columns,
        "listing": listing,
        "differing": [
            [name, *("-" if value is None else value for value in values)]
            for name, values in options.items()
            if name not in SAME_FOR_ALL and any(value != values[0] for value in values)
        ],
    }

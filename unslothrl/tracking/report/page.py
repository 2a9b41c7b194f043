"""Writes report.html of a run, while it goes on or afterwards."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.files import write_whole
from unslothrl.tracking import methods, origin
from unslothrl.tracking.metrics import buckets
from unslothrl.tracking.report import curves, overview, samples, stages, steps
from unslothrl.tracking.report.curves import Evaluations
from unslothrl.tracking.report.document import asset, page, section
from unslothrl.tracking.report.status import status
from unslothrl.tracking.report.steps import Header
from unslothrl.tracking.run_folder import (
    ADAPTERS,
    CONFIG,
    EVALS,
    METRICS,
    REPORT,
    ROLLOUTS,
    RunFolder,
)
from unslothrl.untrusted import plain

MOST_INDEXED = 2000  # scripts whose prompts the page knows without loading them
WRITING = threading.Lock()  # a run writes its page in a thread, and at its end


def write_report(folder: RunFolder | Path | str) -> Path:
    """Writes report.html of a running or finished run, and the scripts beside it that are missing.
    -> its path."""
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    with WRITING:
        written = Written.read(folder)  # before anything is changed
        headers = steps.update(folder)
        write_whole(folder.path / REPORT, report(folder, written, headers))
    return folder.path / REPORT


@dataclass(frozen=True)
class Written:
    """What a run has written of itself."""

    rows: list[dict[str, Any]]  # of metrics.jsonl
    options: dict[str, Any]
    summary: dict[str, Any]
    begun: origin.Origin

    @classmethod
    def read(cls, folder: RunFolder) -> "Written":
        """ValueError or UserError where a file is damaged; OSError."""
        rows, options = folder.read_metrics(), overview.read_options(folder.path / CONFIG)
        return cls(rows, options, folder.read_summary(), origin.read(folder.path))


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


def report(folder: RunFolder, written: Written, headers: Mapping[str, Header]) -> bytes:
    name, rows, options = folder.path.resolve().name, written.rows, written.options
    summary, begun = written.summary, written.begun
    evaluations = evaluations_of(headers)
    marks = [each.step for each in begun.resumes]
    resumed = "Dashed lines: resumed there. " if marks else ""
    is_rl = methods.command_of(options) == methods.RL
    leads = "; choose a step there to see its rollouts" if is_rl else ""
    hint = f"<p class=meta>{resumed}Point at a chart to read its values{leads}.</p>"
    if is_rl:
        drawn = curves.sections(rows, evaluations, marks)
        compared = overview.before_after(folder, rows, evaluations)
    else:
        drawn = stages.sections(rows, options, marks)
        compared = stages.before_after(rows, options)
    parts = [
        overview.title(name, status(summary, folder.path), summary, rows, options, begun),
        overview.signs_found(rows, options),
        compared,
        section("Over the steps", hint + drawn if drawn else "", "curves"),
        asset("browser.html") if headers else "",
        samples.samples(folder),
        overview.options_table(options),
        overview.versions_table(begun, summary),
        files(folder),
    ]
    return page(name, "\n".join(part for part in parts if part), data(headers))


def evaluations_of(headers: Mapping[str, Header]) -> Evaluations:
    """The figures of the run's own evaluations."""
    return {
        int(number): {figures.name: figures for figures in header.sets}
        for name, header in headers.items()
        if name.startswith("eval_") and (number := name.removeprefix("eval_")).isdecimal()
    }


def data(headers: Mapping[str, Header]) -> dict[str, Any]:
    """What the browser for rollouts starts with: the names of the scripts, which of them have
    tokens, and the prompts of all of them, or of many over the whole run."""
    names = list(headers)
    indexed = [part[-1] for part in buckets(names, MOST_INDEXED)]
    return {
        "folder": steps.FOLDER,
        "steps": [name for name in names if name.startswith("step_")],
        "evals": [name for name in names if not name.startswith("step_")],
        "traced": [name for name in names if headers[name].traced],
        "prompts": {name: headers[name].prompts for name in indexed},
    }


def files(folder: RunFolder) -> str:
    """Links to what the run has written besides."""
    named = [CONFIG, METRICS, origin.ORIGIN, f"{ROLLOUTS}/", f"{EVALS}/", f"{ADAPTERS}/"]
    links = "".join(
        f'<li><a href="{name}">{name}</a></li>' for name in named if (folder.path / name).exists()
    )
    return section("Files", f"<ul>{links}</ul>" if links else "")

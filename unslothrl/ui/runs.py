"""The runs in a folder, as the page lists and shows them. What their files say is text, of whatever
kind: a folder may be somebody else's."""

from pathlib import Path
from typing import Any

import unslothrl
from unslothrl.errors import UserError
from unslothrl.files import is_file, leads_out, read_text
from unslothrl.text import one_line
from unslothrl.tracking.report.history import DAMAGED, WRONG, RunHistory
from unslothrl.tracking.report.verdict import cells, verdict
from unslothrl.tracking.run_folder import CONFIG, ERROR, REPORT, RunFolder, runs_in

EXPORTS = "exports"  # in a run's folder
CODE = ("reward", "learner", "environment", "tools")  # options that may name the user's code
SHOWN = 20_000  # letters of a file


def found(folder: Path) -> dict[str, Path]:
    """Name -> folder of each run, the newest first; none that is a link to what lies elsewhere."""
    return {
        path.name: path
        for path in reversed(runs_in(folder))
        if not leads_out(path, folder) and path.name.isprintable()
    }


def named(folder: Path, name: str) -> Path:
    """UserError where there is no such run."""
    runs = found(folder)
    if name not in runs:
        raise UserError(f"there is no run {name!r:.100} in {folder}")
    return runs[name]


def adapter_of(run: Path) -> Path:
    """The newest. UserError where none is saved yet."""
    adapter = unslothrl.Run(run).adapter
    if adapter is None:
        raise UserError(f"{run.name} has saved no adapter yet: wait for it, or stop the run")
    return inside(run, adapter)


def inside(run: Path, path: Path) -> Path:
    """A path in a run's folder. UserError for one that a link leads out of it."""
    if not path.resolve().is_relative_to(run.resolve()):
        raise UserError(f"{path} leads out of {run.name}")
    return path


def status(run: Path) -> str:
    try:
        return str(unslothrl.Run(run).status)
    except (OSError, *WRONG):
        return DAMAGED


def described(run: Path) -> dict[str, Any]:
    """What a run has done so far, what is wrong with it, and what can be done with it."""
    adapter = unslothrl.Run(run).adapter
    shown: dict[str, Any] = {
        "adapter": adapter and adapter.name,
        "exports": [str(path) for path in sorted(run.glob(f"{EXPORTS}/*"))],
        "has_report": own_file(run, REPORT) is not None,
        "error": "",
    }
    try:
        shown["options"] = own_text(run, CONFIG)
        history = RunHistory.read(RunFolder(run))
        judged = verdict(history)
        shown |= {"facts": cells(history), "verdict": judged.said, "advice": judged.advice}
        options, shown["most"] = history.options, history.options.get("max_steps")
        shown["model"] = options.get("model")
        shown["code"] = [f"{x} {options[x]}" for x in CODE if ".py" in str(options.get(x))]
        if history.status == "failed":
            shown["traceback"] = own_text(run, ERROR)
            last = shown["traceback"].strip().rpartition("\n")[2]
            shown["error"] = str(history.summary.get("error") or last)
    except (OSError, *WRONG) as error:
        shown["error"] = f"a file of the run is damaged: {one_line(error)}"
    return shown


def own_file(run: Path, name: str) -> Path | None:
    """A file of a run's folder; None where it is not there, or is a link out of it."""
    path = run / name
    return path if is_file(path) and not leads_out(path, run) else None


def own_text(run: Path, name: str) -> str:
    """The end of such a file, which holds the message of a traceback; "" where there is none."""
    path = own_file(run, name)
    return read_text(path)[-SHOWN:] if path else ""

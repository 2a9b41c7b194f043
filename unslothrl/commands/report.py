"""Writes the report of a run, compares runs, or lists the runs in a folder."""

import re
from collections.abc import Sequence
from pathlib import Path

from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_folder
from unslothrl.text import aligned, for_terminal, one_line, plain
from unslothrl.tracking.proof import Check, checks
from unslothrl.tracking.report.history import DAMAGED, WRONG, RunHistory, read_all
from unslothrl.tracking.report.page import write_page, write_report
from unslothrl.tracking.report.verdict import cells, of_two, table_of
from unslothrl.tracking.run_folder import METRICS, RunFolder, is_run, runs_in

PAGES = (".html", ".htm")  # the endings of files that a comparison may replace


def report(names: Sequence[str], output: str | None = None, proof: bool = False) -> int:
    """See the command's help. -> the exit code: 1 where a check of `proof` has failed. UserError,
    also where a file of a run is damaged."""
    folders, found = list(dict.fromkeys(map(folder_of, names))), list[Check]()
    try:
        if proof:
            found = [each for path in folders for each in checks(RunHistory.read(RunFolder(path)))]
            lines = [check.line for check in found]
        elif len(folders) == 1 and not is_run(folders[0]):
            if not (runs := runs_in(folders[0])):
                where = plain(str(folders[0]))
                raise UserError(f"report {where}: no run there: give a run's folder")
            lines = aligned(table_of([listed(path) for path in runs]))
        else:
            lines = written(folders, output)
    except WRONG as error:
        raise UserError(f"report: a file of the run is damaged: {one_line(error)}") from None
    print("\n".join(map(for_terminal, lines)))
    return int(any(check.passed is False for check in found))


def written(folders: Sequence[Path], output: str | None) -> list[str]:
    """Writes the page of one run or several. -> its path, and which of two is better. UserError."""
    for path in folders:
        if not is_run(path):
            raise UserError(f"report {plain(str(path))} is no run (it has no {METRICS})")
    if len(folders) == 1:
        if output is not None:
            raise UserError("output is for comparisons: a run's report is written into its folder")
        return [str(write_report(folders[0]))]
    names = "-vs-".join(path.resolve().name for path in folders)
    own = folders[0].parent / (re.sub(r"[^\w.-]", "_", names, flags=re.ASCII)[:100] + ".html")
    path = own if output is None else expanded(output)
    if exists(str(path)) and path.suffix.lower() not in PAGES:
        raise UserError(f"output {plain(str(path))} exists and is no page: name an .html")
    runs = read_all(folders)
    two = of_two(runs) if len(runs) == 2 else None
    return [str(write_page(runs, path)), *([two.said] if two is not None else [])]


def listed(path: Path) -> RunHistory:
    """A run for the list, also one whose files are damaged."""
    folder = RunFolder(path)
    try:
        run = RunHistory.read(folder)
        cells(run)  # what it is made of may be damaged too
        return run
    except (OSError, *WRONG):
        return RunHistory((), summary={"status": DAMAGED}, folder=folder, name=path.name)


def folder_of(name: str) -> Path:
    """Of a run, also by a file in it, or of runs."""
    path = expanded(name)
    if is_folder(path):
        return path
    if is_run(path.parent):
        return path.parent
    raise UserError(f"report {plain(name)}: no such folder: give a run's, e.g. runs/<run>")

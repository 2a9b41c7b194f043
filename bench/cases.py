"""What the benchmarks of several runs share: their flags, and figures that are kept.

--rehearse         every case, short; writes nothing
--only CASE        this case alone
--output FOLDER    where the figures of each case are kept; what is there is not measured again
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from facts import PACKAGES, commit, facts, result_file

ROOT = Path(__file__).parents[1]
FIGURES = "figures.json"  # in the folder of a case


class Case(Protocol):
    """A frozen dataclass that says what is measured."""

    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Case)


def flags(description: str, output: str) -> argparse.ArgumentParser:
    """The flags of every such benchmark; `output` is a folder's name under runs/."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rehearse", action="store_true", help="short runs; writes nothing")
    parser.add_argument("--only", metavar="CASE", help="this case alone")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / output)
    return parser


def measure(
    given: argparse.Namespace,
    cases: Sequence[C],
    run: Callable[[C, Path, bool], dict[str, Any]],
    keep: bool = True,
) -> dict[str, dict[str, Any]]:
    """-> by name, the figures of all cases that there are: `run` has those measured that are asked
    for and not kept, each in an empty folder, which is emptied again, and as a rehearsal or not."""
    names = [case.name for case in cases]
    if given.only not in (None, *names):
        raise SystemExit(f"--only {given.only!r} is none of: {', '.join(names)}")
    keep = keep and not given.rehearse
    runs: dict[str, dict[str, Any]] = {}
    for case in cases:
        folder = given.output / (case.name if keep else "not-kept")
        is_kept = keep and (folder / FIGURES).exists()
        if is_kept:
            runs[case.name] = json.loads((folder / FIGURES).read_text())
        elif given.only in (None, case.name):
            runs[case.name] = _measured(case, folder, run, given.rehearse)
            if keep:
                folder.mkdir()
                (folder / FIGURES).write_text(json.dumps(runs[case.name]))
    return runs


def _measured(
    case: C, folder: Path, run: Callable[[C, Path, bool], dict[str, Any]], rehearse: bool
) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    load, began = os.getloadavg()[0], time.perf_counter()
    figures = run(case, folder, rehearse)
    seconds = round(time.perf_counter() - began, 1)
    shutil.rmtree(folder)
    print(f"{case.name}: {seconds} s", file=sys.stderr, flush=True)
    return {
        **figures,
        "seconds with start and end": seconds,
        "commit": commit(),
        "load average": [round(load, 2), round(os.getloadavg()[0], 2)],
    }


def report(
    given: argparse.Namespace,
    result: str,
    command: str,
    cases: Sequence[Any],
    summary: Mapping[str, Any],
    runs: Mapping[str, Mapping[str, Any]],
    packages: tuple[str, ...] = PACKAGES,
) -> None:
    """Prints what follows from the runs, and writes it with them to bench/results; prints the runs
    of a rehearsal."""
    print(json.dumps(runs if given.rehearse else summary, indent=1))
    if given.rehearse:
        return
    written = {
        "command": command,
        **facts(packages),
        "cases": {case.name: asdict(case) for case in cases},
        **summary,
        "runs": runs,
    }
    result_file(result).write_text(json.dumps(written, indent=1) + "\n")

"""Faults done to real runs, each several times at different instants, and what each has cost.

    python bench/fault_matrix.py run [--times 5] [--only "disk full"]
    python bench/fault_matrix.py table      # the table of docs/reliability.md, from the last run
    python bench/fault_matrix.py document   # puts it there

A fault is injected into a run of 8 steps on the embedded base (bench/injections.py says how). Where
it ends the run, the fault is removed and the run resumed. At its end the folder is compared with
that of a run that nobody has disturbed: adapters, rollouts, evaluations and the last checkpoint
byte for byte, metrics but for times and memory.

Results go to bench/results/fault-matrix-cpu.json, one entry an injection, with its commit. What is
there already is not done again, so that the bench can be interrupted; without the file it begins
anew. File systems are filled and
made read-only in a mount namespace of the bench's own (`unshare`, of util-linux).
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "bench")]

import injections as do  # noqa: E402
import wire  # noqa: E402
from facts import facts, result_file  # noqa: E402
from injections import Place  # noqa: E402
from small_runs import Cost  # noqa: E402

TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
INSIDE = "FAULT_MATRIX_INSIDE"  # set in the bench's own namespace
DOCUMENT = ROOT / "docs" / "reliability.md"
HEADER = "| fault | times | steps lost, at most | data lost | exit code | what you see |"
ROOM_MB = 96  # of the file system that a run is on


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    inject: Callable[[Place], Cost]
    codes: tuple[int, ...]  # with which the process that meets it may end
    most_lost: int = 0  # whole steps
    runs: int | None = None  # if not as many as the others: it is done several times in each


FAULTS = {
    "disk full, at a random instant": Fault(do.disk_full, (1,), 1),
    "disk full while a checkpoint is written": Fault(
        partial(do.disk_full, phase="checkpoint"), (1,), 1
    ),
    "disk full while metrics are written": Fault(partial(do.disk_full, phase="log"), (1,), 1),
    "disk full before the start": Fault(do.disk_full_before, (2,)),
    "folder becomes read-only": Fault(do.read_only, (1,), 1),
    "folder read-only before the start": Fault(do.read_only_before, (2,)),
    "newest checkpoint cut short": Fault(
        partial(do.damaged, damage=do.cut, says="is damaged"), (143,), 1
    ),
    "newest checkpoint with a flipped bit": Fault(
        partial(do.damaged, damage=do.flipped, says="is damaged"), (143,), 1
    ),
    "newest checkpoint without one of its files": Fault(
        partial(do.damaged, damage=do.missing, says="is damaged"), (143,), 1
    ),
    "all checkpoints damaged": Fault(do.all_damaged, (2,)),
    "half a last line in metrics or rollouts": Fault(
        partial(do.damaged, damage=do.cut_record, says="is incomplete"), (143,), 1
    ),
    "SIGKILL": Fault(do.killed, (-signal.SIGKILL,), 1),
    "SIGSTOP, and SIGCONT 3 to 6 s later": Fault(do.halted, (0,)),
    "SIGTERM": Fault(partial(do.stopped, numbers=(TERM,)), (143,)),
    "SIGTERM, and again within 0.3 s": Fault(partial(do.stopped, numbers=(TERM, TERM)), (143,)),
    "SIGHUP": Fault(partial(do.stopped, numbers=(HUP,)), (129,)),
    "Ctrl-C (SIGINT)": Fault(partial(do.stopped, numbers=(INT,)), (130,)),
    "lost terminal": Fault(do.terminal_lost, (129, 141)),
    "closed pipe (`\\| head`)": Fault(do.pipe_closed, (141,)),
    "two processes on one folder, then SIGKILL of the first": Fault(do.second_process, (2,), 1),
    "NaN in an update": Fault(do.not_finite, (0,)),
    "data file vanishes during the run": Fault(do.data_vanishes, (0,)),
    "data file gone before a resume": Fault(do.data_gone, (2,)),
    "data file changed before a resume": Fault(partial(do.data_gone, changes=True), (2,)),
    "clock jumps a day forward": Fault(partial(do.clock_jumps, days=1), (0,)),
    "clock jumps a day back": Fault(partial(do.clock_jumps, days=-1), (0,)),
    "out of memory in an update": Fault(partial(do.short_of_memory, where="update"), (0,)),
    "out of memory in generation": Fault(partial(do.short_of_memory, where="generation"), (0,)),
    "adapter damaged in Ray's object store": Fault(wire.damaged_object, (0,)),
    "adapter damaged in the file that vLLM reads": Fault(
        partial(wire.damaged_file, damage=wire.flip_a_bit), (0,), runs=1
    ),
    "adapter's file removed before vLLM reads it": Fault(
        partial(wire.damaged_file, damage=wire.vanish), (0,), runs=2
    ),
}


def problems_of(fault: Fault, cost: Cost) -> list[str]:
    """Which of the promises of docs/reliability.md an injection has broken."""
    broken = [*cost.wrong, *cost.differs]
    if cost.code not in fault.codes:
        broken.append(f"exit code {cost.code}")
    if cost.lost > fault.most_lost:
        broken.append(f"{cost.lost} whole steps lost")
    if cost.data:
        broken.append(f"{cost.data} prompts or lines lost")
    return broken


def injected(name: str, number: int, wholes: Path) -> dict[str, Any]:
    """One injection, in a file system of its own. -> what the result file has of it."""
    room = Path(tempfile.mkdtemp(prefix="room-"))
    do.mount("-t", "tmpfs", "-o", f"size={ROOM_MB}m", "faults", room)
    try:
        cost = FAULTS[name].inject(Place(room, wholes, random.Random(f"{name} {number}")))
    finally:
        do.unmount(room)
        room.rmdir()
    return {**asdict(cost), "problems": problems_of(FAULTS[name], cost)}


def measure(times: int, only: str, wholes: Path) -> bool:
    """-> whether every promise was kept."""
    path = result_file("fault-matrix")
    found = json.loads(path.read_text()) if path.exists() else {}
    command = "python bench/fault_matrix.py run"
    found = {**facts(), "command": command, "faults": found.get("faults", {})}
    for number in range(times):
        for name in (name for name in FAULTS if only in name):
            done = found["faults"].setdefault(name, [])
            if len(done) <= number < (FAULTS[name].runs or times):
                done.append({**injected(name, number, wholes), "commit": found["commit"]})
                print(f"{name}: {json.dumps(done[-1])}", flush=True)
                path.write_text(json.dumps(found, indent=1) + "\n")
    return not any(each["problems"] for done in found["faults"].values() for each in done)


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    lines = [HEADER, "| --- | --- | --- | --- | --- | --- |"]
    for name in FAULTS:
        done = found["faults"].get(name)
        if not done:
            continue
        codes = sorted({each["code"] for each in done})
        said = next((each["said"] for each in done if each["said"]), "")
        cells = [
            name,
            str(sum(each["times"] for each in done)),
            str(max(each["lost"] for each in done)),
            str(sum(each["data"] for each in done)),
            " or ".join("killed" if code < 0 else str(code) for code in codes),
            shown(said),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(said: str) -> str:
    """What the user sees, in a cell."""
    if not said or said.startswith("nothing"):
        return said or "nothing"
    shortened = re.sub(r"[^ ]*/faults-[^ /]*/", "", said.strip())
    shortened = textwrap.shorten(shortened, 140, placeholder=" ...")
    return "`" + shortened.replace("`", "'") + "`"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table", "document"])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="", help="faults with this in their names")
    options = parser.parse_args()
    if options.what != "run":
        found = table(json.loads(result_file("fault-matrix").read_text()))
        print(found)
        if options.what == "document":
            before, _, after = DOCUMENT.read_text().partition(HEADER)
            rest = after.partition("\n\n")[2]
            DOCUMENT.write_text(f"{before}{found}\n\n{rest}")
        return 0
    if INSIDE not in os.environ:
        again = ["unshare", "--map-root-user", "--mount", sys.executable, *sys.argv]
        os.execvpe("unshare", again, {**os.environ, INSIDE: "1"})
    wholes = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        return 0 if measure(options.times, options.only, wholes) else 1
    finally:
        shutil.rmtree(wholes)


if __name__ == "__main__":
    sys.exit(main())

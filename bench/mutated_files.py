"""Reads mutated recipes, data files, adapters, checkpoints and run folders, in process, through the
functions that the commands call.

    python bench/mutated_files.py [--cases 10000] [--kinds data,run]

A case is right where it is a valid load or one line, within 5 s of CPU and 512 MB, with every file
as it was: see tests/mutated_reading.py. The cases run in a process of their own, so that a crash is
a wrong case as well. Resumable: bench/results/mutated-files-cpu.json knows how far each kind is.
The exit code is 1 where a case was wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import facts  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "mutated-files-cpu.json"
KINDS = ("recipe", "data", "adapter", "checkpoint", "run")
TOGETHER = 500  # cases of one process


def examine(kind: str, first: int, cases: int) -> None:
    """Prints the verdict of each case as a line of JSON."""
    import mutated_files
    import mutated_reading

    with tempfile.TemporaryDirectory(prefix="mutated-") as parent:
        for number in range(first, first + cases):
            case = mutated_files.make(kind, number, Path(parent) / str(number))
            verdict = mutated_reading.examine(case)
            mutated_files.clean(case)
            print(json.dumps(asdict(verdict)), flush=True)


def verdicts(kind: str, first: int, cases: int) -> list[dict]:
    """Of some cases, the last of which is wrong where it ended the process."""
    command = [sys.executable, __file__, "--examine", kind, str(first), str(cases)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    if len(found) < cases:
        said = f"the process ended with {ran.returncode}: {ran.stderr[-300:]}"
        died = {"kind": kind, "number": first + len(found), "way": "?", "ended": "wrong",
                "seconds": 0.0, "mb": 0.0, "message": said}  # fmt: skip
        found.append(died)
    return found


def add(known: dict, found: list[dict]) -> dict:
    """What is known of a kind, with more cases."""
    ended = Counter(known.get("ended", {})) + Counter(each["ended"] for each in found)
    ways = Counter(known.get("ways", {})) + Counter(f"{each['way']} {each['ended']}"
                                                    for each in found)  # fmt: skip
    return {
        "cases": known.get("cases", 0) + len(found),
        "ended": dict(sorted(ended.items())),
        "ways": dict(sorted(ways.items())),
        "longest_cpu_s": max(known.get("longest_cpu_s", 0), *(each["seconds"] for each in found)),
        "most_mb": max(known.get("most_mb", 0), *(each["mb"] for each in found)),
        "wrong": [*known.get("wrong", []), *(each for each in found if each["ended"] == "wrong")],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000, help="of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--examine", nargs=3, metavar=("KIND", "FIRST", "CASES"))
    arguments = parser.parse_args()
    if arguments.examine:
        kind, first, cases = arguments.examine
        examine(kind, int(first), int(cases))
        return 0
    kinds = json.loads(RESULTS.read_text())["kinds"] if RESULTS.exists() else {}
    for kind in arguments.kinds.split(","):
        while (done := kinds.get(kind, {}).get("cases", 0)) < arguments.cases:
            found = verdicts(kind, done, min(TOGETHER, arguments.cases - done))
            kinds[kind] = add(kinds.get(kind, {}), found)
            RESULTS.write_text(
                json.dumps({"facts": facts.facts(), "kinds": kinds}, indent=1) + "\n"
            )
            print(kind, kinds[kind]["cases"], kinds[kind]["ended"], flush=True)
    return int(any(kinds[kind]["wrong"] for kind in kinds))


if __name__ == "__main__":
    sys.exit(main())

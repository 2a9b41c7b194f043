"""How often the checker refuses a right answer or accepts a wrong one.

    python bench/measure.py                              # the answers written and made here
    python bench/measure.py --also more.jsonl ...        # and others
    python bench/measure.py --only more.jsonl --out /tmp/more.json

A file has a JSON object a line: {"kind", "gold", "right": [...], "wrong": [...]}. Prints counts for
each kind and names every failure; writes bench/results/answers-cpu.json, or --out. An answer that
takes longer than 5 s is refused. `--peer` asks math-verify instead, `--unseen` measures only the
set that was made without knowledge of the checker (unseen, needs SymPy).
"""

import argparse
import collections
import functools
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the package, where it is not installed

import made
import unseen

WRITTEN = HERE / "written.jsonl"
CHECKER, PEER = "answercheck", "math_verify_peer"
DEADLINE_S = 5.0
PROCESSES = 2


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def pairs(cases: Iterable[dict]) -> list[tuple[str, str, str, bool]]:
    """(kind, gold, answer, whether it is right)"""
    return [
        (case["kind"], case["gold"], answer, right)
        for case in cases
        for right in (True, False)
        for answer in dict.fromkeys(case["right" if right else "wrong"])
    ]


class TooLate(BaseException):
    """An answer has missed its deadline."""


def too_late(*_: object) -> None:
    raise TooLate


def judged_by(module: str, pair: tuple[str, str]) -> tuple[bool, str]:
    """-> (whether a module's `same` accepts (answer, gold), why it has no verdict)"""
    signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        return importlib.import_module(module).same(*pair), ""
    except (TooLate, Exception) as error:
        return False, f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def measure(cases: list[dict], module: str) -> dict:
    """Counts and failures of a module's `same` over every answer of the cases."""
    judged = pairs(cases)
    judge = functools.partial(judged_by, module)
    started = time.perf_counter()
    with multiprocessing.Pool(PROCESSES) as pool:
        results = pool.map(judge, [(answer, gold) for _, gold, answer, _ in judged], 100)
    seconds = time.perf_counter() - started
    kinds: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    failures = []
    for case in cases:
        kinds[case["kind"]]["golds"] += 1
    for (kind, gold, answer, right), (accepted, error) in zip(judged, results, strict=True):
        kinds[kind]["right" if right else "wrong"] += 1
        if accepted != right:
            failure = "refused right" if right else "accepted wrong"
            kinds[kind][failure] += 1
            failures.append([failure, kind, gold, answer, *([error] if error else [])])
        elif error:
            kinds[kind]["deadline or error"] += 1
    total = sum(kinds.values(), collections.Counter())
    return {
        "golds": total["golds"],
        "right answers": total["right"],
        "wrong answers": total["wrong"],
        "refused right": total["refused right"],
        "accepted wrong": total["accepted wrong"],
        "refused right, percent": round(100 * total["refused right"] / max(1, total["right"]), 4),
        "accepted wrong, percent": round(100 * total["accepted wrong"] / max(1, total["wrong"]), 4),
        "answers a second": round(len(judged) / seconds),
        "kinds": {kind: dict(counts) for kind, counts in sorted(kinds.items())},
        "failures": failures,
    }


def measured_with(library: str) -> dict:
    """The commit that is checked out, the date, the machine and the library's version."""
    command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    return {
        "commit": subprocess.run(command, capture_output=True, text=True).stdout.strip() or None,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "versions": {library: importlib.metadata.version(library)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="files, JSONL")
    parser.add_argument("--only", type=Path, nargs="*", default=[], help="files, JSONL")
    parser.add_argument("--unseen", action="store_true", help="measure unseen alone")
    parser.add_argument("--math", type=Path, help="MATH-500, JSONL: its golds, perturbed")
    parser.add_argument("--peer", action="store_true", help="measure math-verify 0.9")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "answers-cpu.json")
    given = parser.parse_args()
    cases = [case for path in (*given.only, *given.also) for case in read(path)]
    if given.unseen:
        cases += unseen.cases()
    elif not given.only:
        cases += [*read(WRITTEN), *made.cases(), *unseen.cases()]
    if given.math:
        golds = [row["answer"] for row in read(given.math)]
        cases += made.published(golds)
    result = measure(cases, PEER if given.peer else CHECKER)
    for failure in result["failures"]:
        print(" | ".join(failure))
    for kind, counts in result["kinds"].items():
        print(f"{kind}: {counts}")
    print({name: value for name, value in result.items() if name not in ("kinds", "failures")})
    facts = measured_with("math-verify" if given.peer else "mpmath")
    given.out.write_text(json.dumps({**facts, **result}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

"""Runs the command on mutated flags, recipes, data files, adapters, checkpoints and runs, each
in a process of its own.

    python bench/mutated_input.py [--first 6000] [--cases 200]

A case ends with one line and exit code 2, and every file as it was; or it is accepted: it starts to
load its first actor or learner (and is then stopped) or finishes. Time and peak memory are measured
up to there. Every third case is one of tests/mutations.py, the others of tests/mutated_files.py.
Resumable: cases in bench/results/mutated-input-cpu.json are not run again.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import facts  # noqa: E402
import mutated_files  # noqa: E402
import mutated_reading  # noqa: E402
import mutations  # noqa: E402

from unslothrl.weights import base_model  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "mutated-input-cpu.json"
KINDS = ("data", "run", "checkpoint", "adapter", "run", "data", "checkpoint", "recipe")
FIRST_PROCESS = re.compile(rb"loading (learner|actor) 0|starting Ray")
TIMEOUT_S = 300


def peak_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    match = re.search(r"VmHWM:\s+(\d+)", status)
    return int(match[1]) / 1024 if match else 0.0


def cpu_s(pid: int) -> float:
    """CPU seconds so far, which other work on the machine does not change."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(number: int) -> dict:
    """Runs one case. -> how it ended, and what it took"""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as parent:
        folder = Path(parent) / "case"
        kind, arguments = made(number, folder)
        is_other = not arguments[0].startswith("-")
        before = mutated_reading.listing(folder)
        command = ["-m", "unslothrl"] if is_other else [str(ROOT / "train_distributed.py")]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",  # so that the line of the first process is seen at once
            "PYTHONPATH": str(ROOT),
        }
        out, err = Path(parent) / "out", Path(parent) / "err"
        with out.open("wb") as to, err.open("wb") as errors:
            started = time.perf_counter()
            child = subprocess.Popen(
                [sys.executable, *command, *arguments],
                cwd=parent, env=environment, stdin=subprocess.DEVNULL, stdout=to, stderr=errors,
            )  # fmt: skip
            reached, most, cpu = False, 0.0, 0.0
            while child.poll() is None and time.perf_counter() - started < TIMEOUT_S:
                most, cpu = max(most, peak_mb(child.pid)), max(cpu, cpu_s(child.pid))
                if FIRST_PROCESS.search(out.read_bytes()):
                    reached = True
                    break
                time.sleep(0.02)
            seconds = time.perf_counter() - started
            hangs = not reached and child.poll() is None
            child.terminate()
            try:
                code = child.wait(timeout=60)
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
        text = err.read_text(errors="replace")
        after = mutated_reading.listing(folder)
        changed = list(mutated_reading.changes(before, after, may_write=False))
        mutations.clean(folder)
    one_line = text.startswith("unslothrl: ") and text.count("\n") == 1
    refused = code == 2 and one_line and not reached and not changed
    accepted = reached or (code == 0 and not hangs)
    return {
        "case": number,
        "kind": kind,
        "command": arguments[0].partition("=")[0],
        "ended": "refused" if refused else "accepted" if accepted else "wrong",
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu, 2),
        "peak_mb": round(most),
        "message": text[-300:] if not accepted else "",
        "changed": [] if accepted else changed,
        "code": code,
    }


def made(number: int, folder: Path) -> tuple[str, tuple[str, ...]]:
    """-> the kind of a case, and the arguments of the command."""
    if number % 3 == 0:
        mutation = mutations.make(number, folder)
        return mutation.kind, mutation.arguments
    case = mutated_files.make(KINDS[number % len(KINDS)], number, folder)
    return case.kind, mutated_files.words(case)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=6000)
    parser.add_argument("--cases", type=int, default=200)
    arguments = parser.parse_args()
    known = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else []
    cases = {case["case"]: case for case in known}
    base_model.prepare("embedded")  # quantises it into the cache, once per machine
    for number in range(arguments.first, arguments.first + arguments.cases):
        if number not in cases:
            cases[number] = run(number)
            print(json.dumps(cases[number]), flush=True)
            write(list(cases.values()))


def write(cases: list[dict]) -> None:
    summary = {
        "cases": len(cases),
        "ended": dict(Counter(case["ended"] for case in cases)),
        "by_kind": dict(Counter(f"{case['kind']} {case['ended']}" for case in cases)),
        "longest_s": max(case["seconds"] for case in cases),
        "longest_cpu_s": max(case["cpu_s"] for case in cases),
        "most_mb": max(case["peak_mb"] for case in cases),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    result = {"facts": facts.facts(), "summary": summary, "cases": cases}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

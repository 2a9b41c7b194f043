"""Mutated recipes, flags and adapters through the command itself, each in a process of its own.

    python bench/mutated_input.py [--first 5000] [--cases 200]

A case ends with one line and exit code 2, or is accepted: it reaches its first worker (and is then
stopped) or finishes. Time and peak memory are measured up to there. Resumable: cases that stand in
bench/results/mutated-input-cpu.json are not run again.
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
import mutations  # noqa: E402

from unslothrl import base_model  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "mutated-input-cpu.json"
FIRST_WORKER = re.compile(rb"loading (learner|actor) 0|starting Ray")
TIMEOUT_S = 300


def peak_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


def cpu_s(pid: int) -> float:
    """Seconds of CPU so far: other work on the machine does not count."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(number: int) -> dict:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as parent:
        folder = Path(parent) / "case"
        case = mutations.make(number, folder)
        is_other = case.arguments[0] in ("ask", "plan", "data", "score")
        command = ["-m", "unslothrl"] if is_other else [str(ROOT / "train_distributed.py")]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",  # the line of the first worker is waited for
            "PYTHONPATH": str(ROOT),
        }
        out, err = Path(parent) / "out", Path(parent) / "err"
        with out.open("wb") as to, err.open("wb") as errors:
            started = time.perf_counter()
            child = subprocess.Popen(
                [sys.executable, *command, *case.arguments],
                cwd=parent, env=environment, stdin=subprocess.DEVNULL, stdout=to, stderr=errors,
            )  # fmt: skip
            reached, most, cpu = False, 0.0, 0.0
            while child.poll() is None and time.perf_counter() - started < TIMEOUT_S:
                most, cpu = max(most, peak_mb(child.pid)), max(cpu, cpu_s(child.pid))
                if FIRST_WORKER.search(out.read_bytes()):
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
        mutations.clean(folder)
    one_line = text.startswith("unslothrl: ") and text.count("\n") == 1
    refused = code == 2 and one_line and not reached
    accepted = reached or (code == 0 and not hangs)
    return {
        "case": number,
        "kind": case.kind,
        "ended": "refused" if refused else "accepted" if accepted else "wrong",
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu, 2),
        "peak_mb": round(most),
        "message": text[-300:] if not accepted else "",
        "code": code,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=5000)
    parser.add_argument("--cases", type=int, default=200)
    asked = parser.parse_args()
    known = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else []
    cases = {one["case"]: one for one in known}
    base_model.prepare("embedded")  # once on a machine: in 4 bits, into the cache
    for number in range(asked.first, asked.first + asked.cases):
        if number not in cases:
            cases[number] = run(number)
            print(json.dumps(cases[number]), flush=True)
            write(list(cases.values()))


def write(cases: list[dict]) -> None:
    summary = {
        "cases": len(cases),
        "ended": dict(Counter(one["ended"] for one in cases)),
        "by_kind": dict(Counter(f"{one['kind']} {one['ended']}" for one in cases)),
        "longest_s": max(one["seconds"] for one in cases),
        "longest_cpu_s": max(one["cpu_s"] for one in cases),
        "most_mb": max(one["peak_mb"] for one in cases),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    found = {"facts": facts.facts(), "summary": summary, "cases": cases}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

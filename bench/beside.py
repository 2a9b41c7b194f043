"""Seconds and memory of this tree beside those of another one, in pairs.

    python bench/beside.py TREE [NAME ...] [--pairs 20]

TREE is a checkout of another commit; both run with this environment. What is one process runs at
the same time in both, a CPU each, which they change from pair to pair: so a machine whose speed
wanders does so for both. Runs under Ray take turns. Prints for each figure the geometric mean of
the pairs' ratios, this tree's to the other's, with its 95% interval by Student's t on their
logarithms, of which two neighbours count as one: in them the trees have changed places, so that one
CPU may be slower than the other. Adds them to bench/results/beside-cpu.json.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from facts import facts, result_file

ROOT = Path(__file__).resolve().parents[1]
T95 = (  # of 1, 2, ... degrees of freedom
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13,
    2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04,
)  # fmt: skip
RUN = (
    "train --learner grpo --max_steps 6 --batch_size 16 --num_candidates 8 --topk 8 --eval_every 0"
)
ALONE = f"{RUN} --cluster local --engine transformers --number_of_actors 0"
UNDER_RAY = "a run under Ray"
WORDS = {
    "help": "train --help",
    UNDER_RAY: RUN,
    "a run in one process": ALONE,
    "scoring": "score ROWS --reward boxed",
    "sandbox": "score PROGRAMS --reward code",
}
PROGRAM = "a, b = map(int, input().split())\nprint(a + b)\n"


def rows(folder: Path) -> None:
    boxed = [
        {
            "problem": f"{i}",
            "answer": f"{i}/7",
            "completion": f"It is \\boxed{{\\frac{{{i}}}{{7}}}}.",
        }
        for i in range(20_000)
    ]
    tests = {"inputs": ["1 2\n"] * 5, "outputs": ["3\n"] * 5}
    code = [
        {"problem": "Add.", "answer": "3", "tests": json.dumps(tests),
         "completion": f"```python\n# {i}\n{PROGRAM}```"}
        for i in range(100)
    ]  # fmt: skip
    for name, made in (("ROWS", boxed), ("PROGRAMS", code)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))


def measured(name: str, folder: Path, tree: Path, cpus: str) -> dict[str, float]:
    """-> the figures of one run."""
    words = [
        str(folder / f"{word}.jsonl") if word in ("ROWS", "PROGRAMS") else word
        for word in WORDS[name].split()
    ]
    output = Path(tempfile.mkdtemp(dir=folder))
    if words[0] == "train" and "--help" not in words:
        words += ["--output_dir", str(output), "--run_name", "x"]
    path = os.pathsep.join([str(tree), *map(str, (tree / "packages").glob("*"))])
    before, begun = time.time(), time.perf_counter()
    process = subprocess.Popen(
        ["taskset", "--cpu-list", cpus, sys.executable, "-m", "unslothrl", *words], cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, (tree, name)
    found = {"seconds": time.perf_counter() - begun, "MB": usage.ru_maxrss / 1024}
    if (metrics := output / "x" / "metrics.jsonl").exists():
        lines = [row for row in map(json.loads, metrics.open()) if row["step"]]
        first = (output / "x" / "rollouts" / "step_000001.jsonl").stat().st_mtime
        found["to the first rollouts"] = first - before  # its proof included
        took = next(row["timing/step_s"] for row in lines if row["step"] == 1)
        found["to the first step"] = first - before - took
        # the fastest: whatever else the machine does only makes steps slower
        found["step"] = min(row["timing/step_s"] for row in lines[1:])
        found["learner, MB"] = max(row["memory/learner_peak_mb"] for row in lines)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("names", nargs="*", choices=[*WORDS, []])
    parser.add_argument("--pairs", type=int, default=20, help="an even number, of 4 or more")
    given = parser.parse_args()
    tree = given.tree.resolve()
    file = result_file("beside")
    result = json.loads(file.read_text()) if file.exists() else {}
    cpus = [str(cpu) for cpu in os.sched_getaffinity(0)]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, ThreadPoolExecutor(2) as pool:
        rows(Path(folder))
        for name in given.names or WORDS:
            logs: dict[str, list[float]] = {}
            for pair in range(given.pairs + 1):  # the first is not counted
                order = (ROOT, tree) if pair % 2 else (tree, ROOT)
                of_each, run = [",".join(cpus)] * 2, map
                if name != UNDER_RAY:
                    of_each, run = cpus[:2], pool.map
                figures = run(partial(measured, name, Path(folder)), order, of_each)
                of_both = dict(zip(order, figures, strict=True))
                for figure, value in of_both[ROOT].items() if pair else ():
                    ratio = math.log(value / of_both[tree][figure])
                    logs.setdefault(figure, []).append(ratio)
            for figure, all_of in logs.items():
                of = [sum(both) / 2 for both in zip(all_of[::2], all_of[1::2], strict=True)]
                half = T95[len(of) - 2] * statistics.stdev(of) / math.sqrt(len(of))
                ends = [math.exp(statistics.fmean(of) + sign * half) for sign in (-1, 0, 1)]
                low, ratio, high = (round(end, 3) for end in ends)
                found = {"low": low, "ratio": ratio, "high": high, "pairs": len(all_of)}
                result[f"{name}: {figure}"] = {**found, **facts(())}
                print(f"{name}: {figure} {ratio} ({low} to {high})", flush=True)
            file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

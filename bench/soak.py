"""A long run, and whether anything grows that should not.

    python bench/soak.py vllm --steps 2000            # Ray, a vLLM actor and a learner
    python bench/soak.py transformers --steps 2000    # one process
    python bench/soak.py overlap --steps 2000         # --max_staleness 1 --partial_rollouts
    python bench/soak.py table

Every `EVERY_S` seconds: memory of each process (what it has allocated and touched: the anonymous
pages), its file descriptors and threads, how many processes there are, the bytes in /dev/shm, and
the files and bytes of the run's folder. Pages of files are left out: whether those of a library are
a process's own depends on who else has it loaded at that moment, and torch's have 100 MB.

A process fails if, after the first `WARM_UP` steps, its memory grows by `MOST_MB` or more in 100
steps (the slope of Theil and Sen: the median of the slopes between all pairs of samples, which
single peaks do not move), or if it ends with more descriptors or threads than it had then. The
run's folder keeps `KEEP` steps of rollouts.

Results go to bench/results/soak-cpu.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from facts import facts, result_file  # noqa: E402

EVERY_S = 5.0
WARM_UP = 200  # steps
MOST_MB = 1.0  # in 100 steps
KEEP = 50
MOST_SAMPLES = 400  # whose slopes are compared in pairs
COMMON = (
    "--model embedded --learner grpo --batch_size 4 --num_candidates 4 --topk 4 "
    "--max_new_tokens 40 --eval_every 0 --save_every 500 --episodes 1000 "
    f"--dataset embedded --keep_rollouts {KEEP}"
)
KINDS = {
    "vllm": "--engine vllm --number_of_actors 1 --learner_chunk_size 0",
    "transformers": "--cluster local --engine transformers --number_of_actors 0",
    "overlap": "--engine vllm --number_of_actors 1 --learner_chunk_size 0 --max_staleness 1 "
    "--partial_rollouts",
}


def role(process: psutil.Process, driver: int) -> str | None:
    """driver, actor, learner, or the name of a program; None for what comes and goes."""
    if process.pid == driver:
        return "driver"
    line = process.cmdline()
    title = line[0] if line else process.name()
    if title.startswith("ray::"):
        name = title.removeprefix("ray::").split(".")[0].split(" ")[0]
        if name == "Host":  # of ours; only actors have vLLM's libraries
            is_actor = "/vllm/" in Path(f"/proc/{process.pid}/maps").read_text()
            return f"{'actor' if is_actor else 'learner'} {process.pid}"
        return None if name == "IDLE" else name
    return Path(title).name


def sample(run: psutil.Process, folder: Path) -> dict[str, Any]:
    """What the run uses at this moment."""
    processes: dict[str, dict[str, float]] = {}
    family = [run, *run.children(recursive=True)]
    for process in family:
        try:
            name = role(process, run.pid)
            if name is None:
                continue
            memory = anonymous_mb(process.pid)
            found = {"mb": memory, "fds": process.num_fds(), "threads": process.num_threads()}
        except (psutil.Error, OSError, ValueError):  # it has just ended
            continue
        kept = processes.setdefault(name, dict.fromkeys(found, 0))
        for key, value in found.items():
            kept[key] = kept[key] + value
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return {
        "step": steps(folder),
        "processes": processes,
        "count": len(family),
        "shm_mb": in_shared_memory(),
        "files": len(files),
        "folder_mb": sum(each.st_size for each in files) / 2**20,
    }


def anonymous_mb(pid: int) -> float:
    """Resident MB of a process that are no pages of files. Raises OSError."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("Anonymous:"))
    return int(kilobytes) / 1024


def in_shared_memory() -> float:
    """MB of /dev/shm in use."""
    status = os.statvfs("/dev/shm")
    return (status.f_blocks - status.f_bfree) * status.f_frsize / 2**20


def steps(folder: Path) -> int:
    """That metrics.jsonl has."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def slope(points: list[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points; 0 where all have the same x."""
    every = -(-len(points) // MOST_SAMPLES) if points else 1
    pairs = combinations(points[::every], 2)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if a[0] != b[0]]
    return statistics.median(slopes) if slopes else 0.0


def figures_of(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """By process: MB at the end of the first steps and of the run, MB per 100 steps in between,
    and descriptors and threads at either."""
    end = max(each["step"] for each in samples)
    calm = [each for each in samples if WARM_UP < each["step"] < end]  # at the end it stops
    found = {}
    names = dict.fromkeys(name for each in calm for name in each["processes"])
    for name in names:
        of_name = [
            (each["step"], each["processes"][name]) for each in calm if name in each["processes"]
        ]
        points = [(float(step), values["mb"]) for step, values in of_name]
        tenth = max(1, len(of_name) // 10)
        first, last = of_name[:tenth], of_name[-tenth:]
        found[name] = {
            "mb_per_100_steps": round(100 * slope(points), 3),
            "samples": len(of_name),
            **{
                f"{key}_{when}": round(statistics.median(v[key] for _, v in part), 1)
                for key in ("mb", "fds", "threads")
                for when, part in (("first", first), ("last", last))
            },
            "mb_most": round(max(values["mb"] for _, values in of_name), 1),
        }
    return {
        "processes": found,
        "count": [min(each["count"] for each in calm), max(each["count"] for each in calm)],
        "shm_mb": [
            round(min(e["shm_mb"] for e in calm), 1),
            round(max(e["shm_mb"] for e in calm), 1),
        ],
        "files_per_100_steps": round(100 * slope([(e["step"], e["files"]) for e in calm]), 1),
        "folder_mb_per_100_steps": round(
            100 * slope([(e["step"], e["folder_mb"]) for e in calm]), 3
        ),
        "folder_mb_last": round(calm[-1]["folder_mb"], 1),
    }


def problems_of(figures: dict[str, Any]) -> list[str]:
    """Why it has not passed."""
    wrong = []
    for name, of_name in figures["processes"].items():
        if of_name["samples"] < 10:
            continue  # it came and went
        if of_name["mb_per_100_steps"] >= MOST_MB:
            wrong.append(f"{name}: {of_name['mb_per_100_steps']} MB per 100 steps")
        wrong += [
            f"{name}: {key} from {of_name[f'{key}_first']} to {of_name[f'{key}_last']}"
            for key in ("fds", "threads")
            if of_name[f"{key}_last"] > of_name[f"{key}_first"]
        ]
    low, high = figures["count"]
    if high - low > 2:
        wrong.append(f"{low} to {high} processes")
    return wrong


def soak(kind: str, total: int, room: Path) -> dict[str, Any]:
    """Runs it. -> figures, with the samples."""
    folder = room / f"soak-{kind}"
    command = [
        sys.executable, "train_distributed.py", *COMMON.split(), *KINDS[kind].split(),
        "--max_steps", str(total), "--output_dir", str(room), "--run_name", folder.name,
    ]  # fmt: skip
    started = time.monotonic()
    samples = []
    with (room / f"{kind}.log").open("wb") as log:
        run = psutil.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while True:
            try:
                run.wait(EVERY_S)
                break
            except psutil.TimeoutExpired:
                if folder.exists():
                    samples.append(sample(run, folder))
    wall = time.monotonic() - started
    threads = os.environ.get("OMP_NUM_THREADS", "")
    threads = threads and f"OMP_NUM_THREADS={threads} "
    return {
        **facts(),
        "command": f"{threads}python bench/soak.py {kind} --steps {total}",
        "options": " ".join(command[1:-4]),
        "exit_code": run.returncode,
        "steps": steps(folder),
        "wall_s": round(wall),
        **figures_of(samples),
        "samples": [compact(each) for each in samples[:: max(1, len(samples) // 100)]],
    }


def compact(each: dict[str, Any]) -> dict[str, Any]:
    """A sample as it is kept."""
    memory, threads = (
        {name: round(values[key], 1) for name, values in each["processes"].items()}
        for key in ("mb", "threads")
    )
    return {
        "step": each["step"],
        "mb": memory,
        "threads": threads,
        "shm_mb": round(each["shm_mb"], 1),
        "folder_mb": round(each["folder_mb"], 2),
    }


def table(found: dict[str, Any]) -> None:
    for kind, figures in found.items():
        print(f"{kind}: {figures['steps']} steps, {figures['wall_s']} s, {figures['commit']}")
        for name, of_name in figures["processes"].items():
            print(f"  {name}: {of_name}")
        for key in (
            "count",
            "shm_mb",
            "files_per_100_steps",
            "folder_mb_per_100_steps",
            "problems",
        ):
            print(f"  {key}: {figures[key]}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kind", choices=[*KINDS, "table"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--room", type=Path, help="where the run is kept; not set: a new folder")
    options = parser.parse_args()
    if options.steps < 2 * WARM_UP:
        parser.error(f"--steps must be at least {2 * WARM_UP}")
    path = result_file("soak")
    found = json.loads(path.read_text()) if path.exists() else {}
    if options.kind == "table":
        table(found)
        return 0
    room = options.room or Path(tempfile.mkdtemp(prefix="soak-"))
    room.mkdir(parents=True, exist_ok=True)
    figures = soak(options.kind, options.steps, room)
    problems = problems_of(figures)
    if figures["exit_code"] or figures["steps"] != options.steps:
        problems.append(f"exit code {figures['exit_code']} after {figures['steps']} steps")
    found[options.kind] = {**figures, "problems": problems}
    path.write_text(json.dumps(found, indent=1) + "\n")
    table({options.kind: found[options.kind]})
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""A run and its resume: after its end with one step more, or after kill -9.

    python bench/on_card/whole.py WORK.json RESULT.json

WORK.json holds the flags of the run, its folder, and whether it is killed: then it is resumed to
its own last step, and the adapter is asked something. The script checks that every step is in
metrics.jsonl once, that the evaluations are there, and that the summary is complete.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import memory
import psutil
from stages import ROOT, train_command

WAIT_S, FREE_S = 300, 60
PROGRAM = (sys.executable, "train_distributed.py")


def rows(run: Path) -> list[dict]:
    """The complete lines of metrics.jsonl so far."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def checkpoint(run: Path) -> int:
    """The step of the newest complete checkpoint, 0 where there is none."""
    latest = run / "checkpoints" / "latest"
    return int(latest.read_text().strip().removeprefix("step_")) if latest.is_file() else 0


def train_until_killed(command: list[str], run: Path, step: int) -> dict:
    """Starts the run and kills it with SIGKILL when the checkpoint of `step` is there."""
    _, read = memory.reader()
    before, _ = read()
    process = subprocess.Popen(command, cwd=ROOT)
    began = time.time()
    while checkpoint(run) < step:
        if process.poll() is not None:
            raise SystemExit(f"the run ended with {process.returncode} before step {step}")
        if time.time() - began > WAIT_S:
            raise SystemExit(f"no checkpoint of step {step} after {WAIT_S} s")
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = time.time()
    # Ray's agents check for their parent only now and then, and use no memory of the card.
    working = [child for child in children if "Agent" not in name_of(child)]
    _, alive = psutil.wait_procs(working, timeout=FREE_S)
    used, _ = read()
    return {
        "seconds to the kill": round(killed - began, 1),
        "steps logged at the kill": [row["step"] for row in rows(run)],
        "checkpoint at the kill": checkpoint(run),
        "workers left after the kill": [name_of(child) for child in alive],
        "seconds until they were gone": round(time.time() - killed, 1),
        "memory not given back, MB": used - before,
    }


def name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).strip()[:100]
    return str(process.pid)


def timed(command: list[str]) -> tuple[float, str]:
    """Runs a command that must succeed. -> (seconds, its output)"""
    began = time.time()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {' '.join(command[1:])}")
    return round(time.time() - began, 1), done.stdout


def main() -> None:
    work, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    folder = Path(work["folder"])
    run, flags, found = folder / "run", work["flags"], {}

    def record(more: dict) -> None:
        """Writes what is known so far, in case a later part fails."""
        found.update(more)
        result.write_text(json.dumps(found))

    train, resume = train_command(flags, folder), [*PROGRAM, "--resume", str(run)]
    last = flags["max_steps"]
    if work["is_killed"]:
        record(train_until_killed(train, run, 2))
    else:
        last += 1
        resume += ["--max_steps", str(last)]
        record({"seconds of the run": timed(train)[0]})
    record({"seconds of the resumed run": timed(resume)[0]})
    steps = [row["step"] for row in rows(run)]
    summary = json.loads((run / "summary.json").read_text())
    record({"steps in metrics.jsonl": steps, "status": summary["status"]})
    demands = {
        "every step once": steps == list(range(last + 1)),
        "complete": summary["status"] == "finished",
    }
    if work["is_killed"]:
        demands["every worker gone"] = not found["workers left after the kill"]
        demands |= check_evaluations(run, flags["eval_every"], last)
        record(asked(run))
    record({"demands": demands})
    if not all(demands.values()):
        raise SystemExit(f"not as demanded: {[name for name, held in demands.items() if not held]}")


def check_evaluations(run: Path, every: int, last: int) -> dict[str, bool]:
    evals = [row["step"] for row in rows(run) if any(key.startswith("eval/") for key in row)]
    return {"evaluations": evals == list(range(0, last + 1, every))}


def asked(run: Path) -> dict:
    """Seconds of `unslothrl ask` with the newest adapter, and how long its answer was."""
    newest = sorted((run / "adapters").iterdir())[-1]
    command = [sys.executable, "-m", "unslothrl", "ask", "--adapter", str(newest)]
    seconds, answer = timed([*command, "--max_new_tokens", "32", "What is 347 + 285?"])
    return {"seconds to ask": seconds, "characters answered": len(answer)}


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    main()

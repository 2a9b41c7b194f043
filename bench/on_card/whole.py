"""A run as a user would do it: two steps, a checkpoint, kill -9, resume, evaluate, ask.

    python bench/on_card/whole.py WORK.json RESULT.json

WORK.json holds the flags of the run and its folder. The script checks that every step is in
metrics.jsonl once, and that there are evaluations before and after, a complete summary and an
answer.
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

    record(train_until_killed(train_command(flags, folder), run, 2))
    seconds, _ = timed([sys.executable, "train_distributed.py", "--resume", str(run)])
    record({"seconds of the resumed run": seconds})
    steps = [row["step"] for row in rows(run)]
    summary = json.loads((run / "summary.json").read_text())
    newest = sorted((run / "adapters").iterdir())[-1]
    command = [sys.executable, "-m", "unslothrl", "ask", "--adapter", str(newest)]
    seconds, answer = timed([*command, "--max_new_tokens", "32", "What is 347 + 285?"])
    evals = [row["step"] for row in rows(run) if any(key.startswith("eval/") for key in row)]
    record({
        "steps in metrics.jsonl": steps, "evaluations after steps": evals,
        "status": summary["status"], "seconds to ask": seconds, "characters answered": len(answer),
    })  # fmt: skip
    wanted = list(range(flags["max_steps"] + 1))
    every = flags["eval_every"]
    demands = {
        "every step once": steps == wanted,
        "evaluations": evals == [step for step in wanted if step % every == 0],
        "complete": summary["status"] == "finished",
        "every worker gone": not found["workers left after the kill"],
    }
    record({"demands": demands})
    if not all(demands.values()):
        raise SystemExit(f"not as demanded: {[name for name, held in demands.items() if not held]}")


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    main()

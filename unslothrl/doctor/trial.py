"""The self-test: one step of a real run, in a process and a folder of its own."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from unslothrl.doctor.check import OK, PROBLEM, WARNING, Check
from unslothrl.variables import import_path

USUAL_S = 30.0  # at most, where nothing else runs
MOST_S = 150.0
NAME = "self-test"
FLAGS = (
    "train --model embedded --dataset embedded --learner grpo --max_steps 1 --batch_size 3 "
    "--num_candidates 4 --eval_every 0 --number_of_actors 0 --engine transformers --cluster local "
    f"--run_name {NAME} --output_dir"
)


def self_test(most_s: float = MOST_S) -> Iterator[Check]:
    """Trains the embedded base, and looks at what the run has written."""
    with tempfile.TemporaryDirectory(prefix="unslothrl-doctor-") as folder:
        begun = time.monotonic()
        command = [sys.executable, "-m", "unslothrl", *FLAGS.split(), folder]
        path = os.pathsep.join(filter(None, [import_path(), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
        try:
            ended = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=most_s,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            yield Check(
                NAME,
                PROBLEM,
                f"a step of the embedded base was not finished after {most_s:.0f} s",
                "try again when the machine is idle; if it hangs, please report it",
            )
            return
        took = time.monotonic() - begun
        if ended.returncode:
            lines = ended.stderr.strip().splitlines() or ["no message"]
            yield Check(
                NAME, PROBLEM, f"exit code {ended.returncode}: {lines[-1]:.300}", "please report it"
            )
            return
        yield judged(Path(folder) / NAME, took)


def judged(run: Path, took_s: float) -> Check:
    """By the metrics of its one step."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["step"] == 1]
    if not rows:
        return Check(NAME, PROBLEM, "the run has written no step", "please report it")
    loss = rows[0].get("train/loss")
    if loss is None:
        found = "in each group all rewards were equal, so that the update was not tried"
        return Check(NAME, WARNING, found)
    if not math.isfinite(loss):
        return Check(NAME, PROBLEM, f"the step's loss is {loss}", "please report it")
    took = f"a step of the embedded base, {took_s:.0f} s with its start"
    if took_s > USUAL_S:
        remedy = "slow, unless other programs run or the disk is cold: try again"
        return Check(NAME, WARNING, took, remedy)
    return Check(NAME, OK, took)

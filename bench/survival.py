"""Runs that are killed or stopped at random instants, and resumed, beside whole ones.

    python bench/survival.py kills --cycles 100     # SIGKILL
    python bench/survival.py stops --cycles 40      # SIGTERM, SIGINT, SIGHUP
    python bench/survival.py kills --cycles 20 --config shards   # of one config, shards or context

A cycle is one kill and the resume after it; a run of 12 steps has one to three. Half of the
instants are a random time after the start, the others up to 0.3 s after the run enters a phase:
while it writes a checkpoint, publishes an adapter, starts. At the end the run's folder is compared
with that of a run which nobody has stopped: adapters, rollouts, evaluations and the last checkpoint
byte for byte, metrics but for times and memory, and no step missing or there twice. A stop also has
to end with 128 and its number, within `MOST_EXIT_S`, and lose no whole step.

Results go to bench/results/survival-cpu.json, one row a cycle; what is there already is not
measured again at the same commit, so that the bench can be interrupted.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from facts import facts, result_file  # noqa: E402
from killed import PHASES  # noqa: E402
from runs_compared import differences  # noqa: E402
from small_runs import MOST_S, Training, last_step, problems  # noqa: E402

STEPS = 12
COMMON = f"--max_steps {STEPS} --eval_every 5 --eval_problems 4 --save_every 4"
LOCAL = "--cluster local --engine transformers --number_of_actors 0"
EIGHT_BIT, PROBLEMS = "8-bit Adam", "PROBLEMS"
DIVIDED = "--engine transformers --number_of_actors 1"
CONFIGS = {
    "grpo": f"--learner grpo {LOCAL}",
    "dapo": f"--learner dapo {LOCAL} --objective.max_resample 2",
    "ppo": f"--learner ppo {LOCAL} --epochs_per_rollout 2 --updates_per_rollout 2",
    "dropout": f"--learner grpo {LOCAL} --lora_dropout 0.1",
    "problems": f"--learner grpo {LOCAL} --dataset {PROBLEMS}",
    EIGHT_BIT: f"--learner grpo {LOCAL}",
    "two learners": "--learner grpo --engine transformers --number_of_actors 1 "
    "--number_of_learners 2 --learner_chunk_size 1",
    "vllm": "--learner grpo --engine vllm --number_of_actors 1 --learner_chunk_size 0",
    "shards": f"--learner grpo {DIVIDED} --learner_shards 2",
    "context": f"--learner ppo {DIVIDED} --context_parallel 2",
}
# how often each is killed where none is named; those with Ray take longer to start
WEIGHTS = (5, 3, 4, 3, 3, 3, 1, 1, 0, 0)
TIMED = (
    "start",
    "load",
    "publish",
    "checkpoint",
    "flush",
    "rename",
    "latest",
    "delete",
    "truncate",
)
MOST_EXIT_S = 5.0
DELAY_S = 0.3
STOPS = (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Cycle:
    """One kill, and what came of it."""

    kind: str
    config: str
    phase: str  # "time": a random time after the start
    signal: str
    step: int  # whole steps at the kill
    lost: int  # of them, that the resumed run did again
    exit_s: float
    exit_code: int
    differs: list[str]  # of the run that was resumed, at its end


def trained(folder: Path, config: str, phase: str = "none", number: int = 1) -> Training:
    """A process that trains into a folder."""
    flags = f"{COMMON} {CONFIGS[config]}".split()
    if PROBLEMS in flags:  # as the embedded base knows them
        flags[flags.index(PROBLEMS)] = str(problems(folder.parent / "problems.jsonl"))
        flags += ["--system_prompt", ""]
    variables = {"EIGHT_BIT": "1"} if config == EIGHT_BIT else {}
    return Training(folder, *flags, phase=(phase, number), environment=variables, is_new=True)


def whole_run(room: Path, config: str) -> Path:
    """The folder of a run that nobody stops."""
    folder = room / f"whole-{config.replace(' ', '-')}"
    if not (folder / "summary.json").exists():
        assert trained(folder, config).ends() == 0, folder
    return folder


def stop(
    run: Training, phase: str, number: signal.Signals, draw: random.Random, took_s: float
) -> float:
    """Sends the signal at an instant. -> the seconds until the process has ended."""
    if phase == "time":
        time.sleep(draw.uniform(0.2, took_s))
    else:
        run.at_phase()  # or it has ended
        time.sleep(draw.uniform(0, DELAY_S))
    if number == signal.SIGKILL and run.process.poll() is None:
        os.killpg(run.process.pid, number)
    else:
        run.send(number)
    sent = time.monotonic()
    run.process.wait(MOST_S)
    return time.monotonic() - sent


def killed_run(room: Path, kind: str, index: int, config: str | None) -> list[Cycle]:
    """One run that is killed one to three times, then ends by itself."""
    draw = random.Random(f"{kind} {index}")
    config = config or draw.choices(list(CONFIGS), WEIGHTS)[0]
    whole = whole_run(room, config)
    took_s = max(json.loads((whole / "summary.json").read_text())["wall_seconds"], 5.0)
    folder = room / f"{kind}-{index}"
    cycles = []
    for _ in range(draw.randrange(1, 4)):
        number = signal.SIGKILL if kind == "kills" else draw.choice(STOPS)
        phases = list(TIMED) if kind == "kills" else list(PHASES)
        phase = "time" if draw.random() < 0.5 else draw.choice(phases)
        run = trained(folder, config, "none" if phase == "time" else phase, draw.randrange(1, 5))
        exit_s = stop(run, phase, number, draw, took_s)
        code, step = run.ends(), last_step(folder)
        if code == 0:  # it was done before
            break
        saved = max((int(p.name[5:]) for p in folder.glob("checkpoints/step_??????")), default=0)
        lost = max(0, step - saved)
        cycles.append(Cycle(kind, config, phase, number.name, step, lost, exit_s, code, []))
    code = trained(folder, config).ends()
    differ = [f"exit code {code}"] if code else differences(folder, whole)
    for cycle in cycles:
        cycle.differs = differ
        if kind == "stops":
            cycle.differs = [*differ, *faults_of(cycle)]
    return cycles


def faults_of(cycle: Cycle) -> list[str]:
    """What is wrong with an orderly stop. A process that the signal itself has ended, before it
    listens or when all is done, is reported by a shell as one that has stopped."""
    wrong = []
    if abs(cycle.exit_code) % 128 != signal.Signals[cycle.signal]:
        wrong.append(f"exit code {cycle.exit_code}")
    if cycle.exit_s > MOST_EXIT_S:
        wrong.append(f"{cycle.exit_s:.1f} s until it ended")
    if cycle.lost:
        wrong.append(f"{cycle.lost} whole steps lost")
    return wrong


def measure(kind: str, cycles: int, room: Path, config: str | None = None) -> bool:
    """-> whether nothing differed."""
    name = f"{kind}, {config}" if config else kind
    path = result_file("survival")
    found = json.loads(path.read_text()) if path.exists() else {}
    now = facts()
    if found.get(name, {}).get("commit") != now["commit"]:
        found[name] = {
            **now,
            "command": f"python bench/survival.py {kind}"
            + (f" --config {config}" if config else ""),
            "runs": 0,
            "cycles": [],
        }
    of_kind = found[name]
    while len(of_kind["cycles"]) < cycles:
        measured = killed_run(room, kind, of_kind["runs"], config)
        of_kind["runs"] += 1
        of_kind["cycles"] += [asdict(each) for each in measured]
        path.write_text(json.dumps(found, indent=1) + "\n")
        for each in measured:
            print(each, flush=True)
    return not any(each["differs"] for each in of_kind["cycles"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kind", choices=["kills", "stops"])
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--config", choices=CONFIGS, help="not set: all of WEIGHTS")
    parser.add_argument("--room", type=Path, help="where the runs are kept; not set: a new folder")
    options = parser.parse_args()
    room = options.room or Path(tempfile.mkdtemp(prefix="survival-"))
    room.mkdir(parents=True, exist_ok=True)
    print(f"runs are kept in {room}")
    return 0 if measure(options.kind, options.cycles, room, options.config) else 1


if __name__ == "__main__":
    sys.exit(main())

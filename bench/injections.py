"""What bench/fault_matrix.py does to runs: one function a fault, each of which does it once.

Every function gets a `Place` and returns what came of the fault (`Cost`). The process that meets it
is the program as it is.
"""

import contextlib
import json
import os
import platform
import pty
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from small_runs import (
    LOCAL,
    ROOT,
    STEPS,
    Cost,
    Training,
    compared,
    data_lost,
    faults_of_a_stop,
    last_step,
    problems,
    resumed,
    rows,
    whole_run,
)

from unslothrl.tracking.metrics import is_number

SAYS_WHY = "^unslothrl: "
DAY_S = 86_400


@dataclass
class Place:
    """Where a fault is injected."""

    room: Path  # an empty folder on a tmpfs of its own
    wholes: Path  # runs that nobody disturbs
    draw: random.Random

    @property
    def folder(self) -> Path:
        return self.room / "x"

    @property
    def whole(self) -> Path:
        return whole_run(self.wholes, "whole")


def disk_full(place: Place, phase: str = "") -> Cost:
    """Another file takes all room, at a random instant or when the run enters a phase."""
    number = place.draw.randrange(2, 6)
    training = Training(place.folder, phase=(phase or "none", number))
    at = f"when it enters {phase} for the {number}th time"
    if phase:
        training.at_phase()
    else:
        at = training.at_random(place.draw)
    with full(place.room):
        code = training.ends()
    cost = Cost(at, code, training.said(SAYS_WHY))
    if not cost.said.startswith("unslothrl: ") or "Traceback" in training.output:
        cost.wrong.append("no line that says why")
    return resumed(place.folder, place.whole, cost, last_step(place.folder))


@contextlib.contextmanager
def full(room: Path) -> Iterator[None]:
    """Nothing more can be written into that file system."""
    filler = room / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(2**16))
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x")
    yield
    filler.unlink()


def disk_full_before(place: Place) -> Cost:
    with full(place.room):
        return refused_at_first(place)


def read_only(place: Place) -> Cost:
    training = Training(place.folder)
    at = training.at_random(place.draw)
    with mounted_read_only(place.folder):
        code = training.ends()
    cost = Cost(at, code, training.said(SAYS_WHY))
    if "Read-only" not in cost.said:
        cost.wrong.append("no line that says why")
    return resumed(place.folder, place.whole, cost, last_step(place.folder))


@contextlib.contextmanager
def mounted_read_only(folder: Path) -> Iterator[None]:
    """What opens a file in it from now on finds a file system that is read-only."""
    folder.mkdir(exist_ok=True)
    mount("--bind", folder, folder)
    mount("-o", "remount,bind,ro", folder)
    yield
    unmount(folder)


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def unmount(folder: str | Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def read_only_before(place: Place) -> Cost:
    with mounted_read_only(place.room):
        return refused_at_first(place)


def refused_at_first(place: Place) -> Cost:
    """A run that cannot begin; the same command begins it later."""
    log = place.wholes / f"refused-{os.getpid()}"
    with log.open("w+b") as file:
        flags = ["--output_dir", str(place.room), "--run_name", "x", "--max_steps", "2"]
        code = subprocess.run(
            [sys.executable, str(ROOT / "train_distributed.py"), "--learner", "grpo", *LOCAL,
             *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
        ).returncode  # fmt: skip
    errors = [line for line in log.read_text().splitlines() if line.startswith("unslothrl: ")]
    log.unlink()
    cost = Cost("before the start", code, (errors or [""])[0].replace(str(place.room), "runs"))
    if len(errors) != 1:
        cost.wrong.append(f"{len(errors)} lines that say why")
    return cost


def killed(place: Place) -> Cost:
    training = Training(place.folder)
    at = training.at_random(place.draw)
    os.killpg(training.process.pid, signal.SIGKILL)
    code = training.ends()
    return resumed(place.folder, place.whole, Cost(at, code, "nothing"), last_step(place.folder))


def halted(place: Place) -> Cost:
    """SIGSTOP, and SIGCONT some seconds later."""
    training = Training(place.folder)
    at = training.at_random(place.draw)
    training.send(signal.SIGSTOP)
    time.sleep(seconds := place.draw.uniform(3, 6))
    training.send(signal.SIGCONT)
    cost = Cost(f"{at}, for {seconds:.1f} s", training.ends(), "nothing: it continues")
    return compared(place.folder, place.whole, cost)


def stopped(place: Place, numbers: Sequence[signal.Signals]) -> Cost:
    """By signals, the later ones up to 0.3 s after the one before."""
    training = Training(place.folder)
    at = training.at_random(place.draw)
    for place_of, number in enumerate(numbers):
        time.sleep(place.draw.uniform(0, 0.3) if place_of else 0)
        training.send(number)
    cost = Cost(at, training.ends(), training.said("^resume: "), wrong=faults_of_a_stop(training))
    return resumed(place.folder, place.whole, cost, last_step(place.folder))


def terminal_lost(place: Place) -> Cost:
    """Its terminal, which is a real one, goes away: as when a window or a connection is closed."""
    main, side = pty.openpty()
    training = Training(place.folder, over={0: side, 1: side, 2: side})
    os.close(side)
    end, seen = place.draw.randrange(STEPS - 2), b""
    later_s = place.draw.uniform(0, 0.5)
    os.set_blocking(main, False)
    while last_step(place.folder) < end and training.process.poll() is None:
        with contextlib.suppress(BlockingIOError, OSError):
            seen += os.read(main, 2**16)
        time.sleep(0.01)
    time.sleep(later_s)
    os.close(main)
    cost = Cost(f"{later_s:.2f} s after step {end}", training.ends(), "nothing: it is gone")
    cost.wrong = faults_of_a_stop(training)
    return resumed(place.folder, place.whole, cost, last_step(place.folder))


def pipe_closed(place: Place) -> Cost:
    """`| head`, which goes when it has had its lines."""
    count = place.draw.randrange(3, 16)
    head = subprocess.Popen(["head", "-n", str(count)], stdin=subprocess.PIPE,
                            stdout=subprocess.DEVNULL)  # fmt: skip
    training = Training(place.folder, over={1: head.stdin.fileno()})
    head.stdin.close()
    head.wait()
    cost = Cost(f"after {count} lines", training.ends(), "")
    cost.wrong = faults_of_a_stop(training)
    return resumed(place.folder, place.whole, cost, last_step(place.folder))


def second_process(place: Place) -> Cost:
    """Another process wants its folder; then it is killed, and holds nothing."""
    first = Training(place.folder, phase=("generation", place.draw.randrange(2, STEPS)))
    first.at_phase()
    first.send(signal.SIGSTOP)  # so that it is there for as long as the other takes to start
    second = Training(place.folder)
    code = second.ends()
    cost = Cost(f"in step {last_step(place.folder) + 1}", code, second.said(SAYS_WHY))
    if f"in use by process {first.process.pid} on host {platform.node()}" not in cost.said:
        cost.wrong.append("it is not said who")
    cost.said = cost.said.replace(str(first.process.pid), "N").replace(platform.node(), "H")
    os.killpg(first.process.pid, signal.SIGKILL)
    first.ends()
    return resumed(place.folder, place.whole, cost, last_step(place.folder))


def half_done(place: Place, kind: str = "half", *flags: str) -> int:
    """A run that was stopped after some steps, each of which is done once. -> after how many."""
    step = place.draw.randrange(2, STEPS - 1)
    folder = place.wholes / f"{kind}-{step}"
    if not folder.exists():
        training = Training(folder, *flags)
        training.wait_for(step)
        training.send(signal.SIGTERM)
        assert training.ends() == 143, training.output
    shutil.copytree(folder, place.folder)
    return last_step(folder)


def damaged(place: Place, damage: Callable[[Place, Path], str], says: str) -> Cost:
    """Files of a run that has been stopped are damaged before it goes on. `damage` gets the newest
    checkpoint."""
    steps = half_done(place)
    newest = sorted(place.folder.glob("checkpoints/step_*"))[-1]
    cost = Cost(damage(place, newest), 143, "")
    cost = resumed(place.folder, place.whole, cost, steps)
    training_log = (place.room / "x.log").read_text(errors="replace")
    cost.said = next((each for each in training_log.splitlines() if says in each), "")
    if not cost.said:
        cost.wrong.append("the damage is not said")
    return cost


def chosen(place: Place, newest: Path) -> Path:
    return place.draw.choice(sorted(newest.iterdir()))


def cut(place: Place, newest: Path) -> str:
    path = chosen(place, newest)
    size = place.draw.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} after {size} bytes"


def flipped(place: Place, newest: Path) -> str:
    path = chosen(place, newest)
    where, bit = place.draw.randrange(path.stat().st_size), 1 << place.draw.randrange(8)
    flip(path, where, bit)
    return f"bit {bit} of byte {where} of {path.name}"


def flip(path: Path, where: int, bit: int) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(where)
        (value,) = file.read(1)
        file.seek(where)
        file.write(bytes([value ^ bit]))


def missing(place: Place, newest: Path) -> str:
    path = chosen(place, newest)
    path.unlink()
    return path.name


def cut_record(place: Place, newest: Path) -> str:
    """The last line of metrics or of the newest rollouts is half there: a copy that was cut off."""
    newest_rollouts = sorted(place.folder.glob("rollouts/step_*.jsonl"))[-1]
    path = place.draw.choice([place.folder / "metrics.jsonl", newest_rollouts])
    content = path.read_bytes()
    last = len(content.rstrip(b"\n").rpartition(b"\n")[2])
    taken = place.draw.randrange(1, last)
    path.write_bytes(content[:-taken])
    return f"{path.name}, {taken} bytes"


def all_damaged(place: Place) -> Cost:
    """Refused; with the newest given back it goes on."""
    steps = half_done(place)
    kept = place.room / "kept"
    shutil.copytree(place.folder / "checkpoints", kept)
    ways = []
    for folder in place.folder.glob("checkpoints/step_*"):
        ways.append(place.draw.choice([cut, flipped, missing])(place, folder))
    training = Training(place.folder)
    cost = Cost(", ".join(ways), training.ends(), training.said(SAYS_WHY))
    shutil.rmtree(place.folder / "checkpoints")
    kept.rename(place.folder / "checkpoints")
    return resumed(place.folder, place.whole, cost, steps)


def of_a_file(place: Place) -> tuple[Path, list[str], Path]:
    """-> a data file, which is there again, the flags of a run on it, the run without a fault."""
    path = problems(place.wholes / "problems.jsonl")
    flags = ["--learner", "grpo", *LOCAL, "--dataset", str(path), "--system_prompt", ""]
    return path, flags, whole_run(place.wholes, "whole-data", *flags)


def data_vanishes(place: Place) -> Cost:
    """While the run trains on it."""
    path, flags, whole = of_a_file(place)
    training = Training(place.folder, *flags)
    at = training.at_random(place.draw)
    path.unlink()
    return compared(place.folder, whole, Cost(at, training.ends(), "nothing: it continues"))


def data_gone(place: Place, changes: bool = False) -> Cost:
    """Before a resume: refused; with the file given back it goes on."""
    path, flags, whole = of_a_file(place)
    steps = half_done(place, "half-data", *flags)
    path.unlink()
    if changes:
        lines = problems(path).read_text().splitlines(keepends=True)
        del lines[place.draw.randrange(len(lines))]
        path.write_text("".join(lines))
    training = Training(place.folder)
    cost = Cost(f"after step {steps}", training.ends(), training.said(SAYS_WHY))
    problems(path)
    return resumed(place.folder, whole, cost, steps)


def clock_jumps(place: Place, days: int) -> Cost:
    """The system's clock, in the middle of a run."""
    shim, shared = place.wholes / "clock_jump.so", place.room / "jump"
    if not shim.exists():
        source = ROOT / "bench" / "clock_jump.c"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", str(source), "-o", str(shim), "-ldl"], check=True
        )
    shared.write_bytes(struct.pack("qq", 0, 0))
    variables = {"LD_PRELOAD": str(shim), "CLOCK_JUMP": str(shared)}
    program = (str(ROOT / "tests" / "killed.py"), "none", "1", "1")
    training = Training(place.folder, environment=variables, program=program)
    at = training.at_random(place.draw)
    with shared.open("r+b", buffering=0) as file:
        file.write(struct.pack("q", days * DAY_S))
    cost = Cost(at, training.ends(), "nothing: it continues")
    _, asked = struct.unpack("qq", shared.read_bytes())
    if not asked:
        cost.wrong.append("nobody has asked for the time after the jump")
    cost.wrong += impossible_times(place.folder)
    return compared(place.folder, place.whole, cost)


def impossible_times(folder: Path) -> list[str]:
    """Seconds of the record that are negative, or longer than the run can have taken."""
    summary = json.loads((folder / "summary.json").read_text())
    found = {name: summary[name] for name in ("seconds", "eval_seconds", "wall_seconds")}
    for row in rows(folder / "metrics.jsonl"):
        timed = {name: value for name, value in row.items() if name.endswith("_s")}
        found |= {f"{name} of step {row['step']}": value for name, value in timed.items()}
    times = {name: value for name, value in found.items() if is_number(value)}
    per_s = {name for name in times if "tokens_per_s" in name}
    return [
        f"{name} {value}" for name, value in times.items()
        if value < 0 or (value > 600 and name not in per_s)
    ]  # fmt: skip


NOT_A_NUMBER = '''"""The clipped surrogate, whose gradient is not a number in one of its calls."""

import os

import torch

from unslothrl.algorithms.objective import Objective

calls = 0


def surrogate(ratio, logprobs, advantages, clip):
    global calls
    calls += 1
    losses = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    if calls == int(os.environ.get("NOT_A_NUMBER_IN", 0)):
        losses = losses * float("nan")
    return losses, torch.zeros_like(advantages, dtype=torch.bool)


OBJECTIVE = Objective(clip=surrogate)
'''


def not_finite(place: Place) -> Cost:
    """An objective of the user's own returns NaN once: that update is left out."""
    path = place.room / "surrogate.py"
    path.write_text(NOT_A_NUMBER)
    call = place.draw.randrange(1, STEPS)
    flags = ["--learner", str(path), *LOCAL, "--no_check_first_batch"]  # which calls it too
    training = Training(place.folder, *flags, environment={"NOT_A_NUMBER_IN": str(call)})
    cost = Cost(f"call {call} of the loss", training.ends(), training.said("is not finite"))
    skipped = [row["step"] for row in rows(place.folder / "metrics.jsonl")
               if row.get("train/skipped_updates")]  # fmt: skip
    if len(skipped) != 1:
        cost.wrong.append(f"skipped updates are counted in steps {skipped}")
    cost.data = data_lost(place.folder, place.whole)
    return cost


def short_of_memory(place: Place, where: str) -> Cost:
    """Of the host's, which stands in for a card's: see bench/little_memory.py."""
    number = place.draw.randrange(*((2, STEPS) if where == "update" else (5, 20)))
    flags = ["--learner", "grpo", *LOCAL, "--num_candidates", "16", "--topk", "16"]
    # Larger, so that activations or the cache need more than all else: where the libraries' own
    # small allocations fail, they crash.
    rows = ["--batch_size", "32", "--max_num_seqs", "512"]
    flags += ["--train_batch_size", "64"] if where == "update" else rows
    whole = whole_run(place.wholes, f"whole-large-{where}", *flags)
    training = Training(
        place.folder, *flags,
        program=(str(ROOT / "bench" / "little_memory.py"), where, str(number)),
        environment={"MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    unit = "pass" if where == "update" else "step of the engine"
    says = "memory ran out" if where == "update" else "generation goes on with"
    cost = Cost(f"{unit} {number}", training.ends(), training.said(says))
    if not cost.said:
        cost.wrong.append("it has not run out of memory")
    if where == "generation":  # the line is little_memory.py's
        cost.said = "nothing: it continues with fewer rows"
    cost = compared(place.folder, whole, cost)
    # Where oneDNN lacks memory, PyTorch or the engine goes on without it, which rounds otherwise
    if switched := training.said("mkldnn_matmul failed") or training.said("without oneDNN"):
        cost.wrong = []
    if where == "update" or switched:  # gradients are added up in another order
        cost.differs = []
    return cost

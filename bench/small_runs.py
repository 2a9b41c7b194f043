"""Small real runs in processes of their own, and what a fault has cost them.

A run has `STEPS` steps on the embedded base and task. What a fault costs is read from the run's
folder once it has ended: see `Cost`.
"""

import atexit
import contextlib
import fcntl
import functools
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import killed  # noqa: E402
from runs_compared import differences, rows  # noqa: E402

from unslothrl.tracking import origin  # noqa: E402

STEPS = 6
FLAGS = (
    f"--max_steps {STEPS} --batch_size 4 --num_candidates 4 --topk 4 --max_new_tokens 40 --lr 5e-4 "
    "--eval_every 3 --eval_problems 2 --eval_candidates 2 --save_every 3 --checkpoint_every 1"
).split()
LOCAL = ["--cluster", "local", "--engine", "transformers", "--number_of_actors", "0"]
MOST_OPEN = 4096  # files of this process
MOST_S = 600.0  # that a run may take
MOST_LATER_S = 0.5  # after a step, that a fault comes: longer than a step takes
LOUD = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")  # what a terminal does not show


@dataclass
class Cost:
    """What came of one fault."""

    at: str  # the instant
    code: int  # of the process that met it
    said: str  # the line that tells the user
    times: int = 1  # that the fault was injected
    lost: int = 0  # whole steps that had to be done again
    data: int = 0  # prompts and lines of the record that are missing in the end, or there twice
    differs: list[str] = field(default_factory=list)  # of the run that was not disturbed
    wrong: list[str] = field(default_factory=list)  # anything else that must not be


class Training:
    """A process that trains into a folder, or goes on there where it is a run's."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        phase: tuple[str, int] = ("none", 1),
        environment: Mapping[str, str] | None = None,
        over: Mapping[int, int] | None = None,
        program: Sequence[str] | None = None,
        is_new: bool = False,
    ):
        """`flags` are beside `FLAGS`, `phase` is one of tests/killed.py that it tells of when it
        enters it for that time, `over` has descriptors in the place of 0, 1, 2. `is_new`: it
        is started, not forked; so is a `program` with its arguments, in the place of
        tests/killed.py."""
        where = ["--output_dir", str(folder.parent), "--run_name", folder.name, *FLAGS]
        arguments = [*where, *(flags or ["--learner", "grpo", *LOCAL])]
        if (folder / "config.toml").exists():
            arguments = ["--resume", str(folder)]
        reading, writing = os.pipe()
        self.folder, self.told = folder, reading
        self.path = folder.with_name(f"{folder.name}.log")
        log = self.path.open("ab")
        self.begins = log.tell()
        streams = {0: os.open(os.devnull, os.O_RDONLY), 1: log.fileno(), 2: log.fileno()}
        killed = [*map(str, (*phase, writing))]
        arguments = ["--", "train", *arguments]
        if program is None and not is_new:
            arguments = [*killed, *arguments]
            self.process = Forked(arguments, {**streams, **(over or {})}, environment or {})
        else:
            program = program or (str(ROOT / "tests" / "killed.py"), *killed)
            self.process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=ROOT, pass_fds=[writing], preexec_fn=listening, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        log.close()
        os.close(streams[0])
        os.close(writing)

    def wait_for(self, step: int) -> None:
        """Until its log has that step, or it has ended."""
        end = time.monotonic() + MOST_S
        while self.process.poll() is None and last_step(self.folder) < step:
            assert time.monotonic() < end, self.output
            time.sleep(0.01)

    def at_random(self, draw: random.Random, last: int = STEPS - 3) -> str:
        """Waits for an instant after a step. -> which; 0 is before the first, once there is a
        folder."""
        step, later_s = draw.randrange(last + 1), draw.uniform(0, MOST_LATER_S)
        while self.process.poll() is None and not (self.folder / "config.toml").exists():
            time.sleep(0.01)
        self.wait_for(step)
        time.sleep(later_s)
        return f"{later_s:.2f} s after step {step}"

    def at_phase(self) -> None:
        """Waits until it enters its phase."""
        ready, _, _ = select.select([self.told], [], [], MOST_S)
        assert ready, self.output

    def is_told(self) -> bool:
        """Whether it has entered its phase."""
        return bool(select.select([self.told], [], [], 0)[0])

    def send(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    def ends(self) -> int:
        """-> its exit code."""
        try:
            return self.process.wait(MOST_S)
        finally:
            os.close(self.told)
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def output(self) -> str:
        with self.path.open("rb") as file:
            file.seek(self.begins)
            return LOUD.sub("", file.read().decode(errors="replace"))

    def said(self, pattern: str) -> str:
        """The first line with that in it, without paths of this machine; "" without one."""
        lines = (line.strip() for line in self.output.splitlines())
        found = next((line for line in lines if re.search(pattern, line)), "")
        for path, name in ((self.folder, "runs/x"), (self.folder.parent, "runs")):
            found = found.replace(str(path), name)
        return re.sub(rf"{re.escape(str(ROOT))}\S*/", "", found)


class Forked:
    """tests/killed.py in a process of its own, forked from this one, which has imported the
    libraries: that takes twice as long as a run."""

    def __init__(
        self, arguments: Sequence[str], streams: Mapping[int, int], environment: Mapping[str, str]
    ):
        import_libraries()
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                for number, descriptor in streams.items():
                    os.dup2(descriptor, number)
                told = int(arguments[2])
                os.closerange(3, told)
                os.closerange(told + 1, MOST_OPEN)
                sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
                sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
                listening()
                os.environ.update(environment)
                sys.argv = [str(ROOT / "tests" / "killed.py"), *arguments]
                killed.main()
            except SystemExit as end:
                self.end(int(end.code or 0))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)

    @staticmethod
    def end(code: int) -> NoReturn:
        """As the interpreter does."""
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} has not ended")
            time.sleep(0.01)
        return code


@functools.cache
def import_libraries() -> None:
    """What a run imports."""
    import bitsandbytes  # noqa: F401
    import peft  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import unslothrl.runs.rl  # noqa: F401
    from unslothrl.backends import peft as backend  # noqa: F401


def listening() -> None:
    """In the child: signals arrive that a background job ignores; a terminal is its own."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def last_step(folder: Path) -> int:
    return max((row["step"] for row in rows(folder / "metrics.jsonl")), default=0)


def problems(path: Path) -> Path:
    """Writes sums of the embedded task. -> the file"""
    draw = random.Random(0)
    pairs = [(draw.randrange(100, 999), draw.randrange(100, 999)) for _ in range(60)]
    lines = [json.dumps({"problem": f"What is {a} + {b}?", "answer": str(a + b)}) for a, b in pairs]
    path.write_text("\n".join(lines) + "\n")
    return path


def whole_run(room: Path, name: str, *flags: str, is_new: bool = False) -> Path:
    """The folder of a run that nobody disturbs."""
    folder = room / name
    if not (folder / "summary.json").exists():
        training = Training(folder, *flags, is_new=is_new)
        assert training.ends() == 0, training.output
    return folder


def resumed(folder: Path, whole: Path, cost: Cost, steps: int) -> Cost:
    """Has a run that had so many whole steps go on to its end, and adds what that shows to
    `cost`."""
    before = len(origin.read(folder).resumes)
    training = Training(folder)
    code = training.ends()
    if code:
        cost.wrong.append(f"exit code {code} on resuming: {training.said('unslothrl: ')}")
        return cost
    begins = [each.step for each in origin.read(folder).resumes[before:]]
    cost.lost = max(0, steps - begins[0]) if begins else steps
    return compared(folder, whole, cost)


def compared(folder: Path, whole: Path, cost: Cost) -> Cost:
    """Adds to `cost` how a run that has ended differs from the whole one."""
    cost.data, cost.differs = data_lost(folder, whole), differences(folder, whole)
    return cost


def data_lost(folder: Path, whole: Path) -> int:
    """Lines of metrics, and prompts with their candidates, that are missing or there twice."""
    found = recorded(folder)
    return len(set(found) ^ set(recorded(whole))) + len(found) - len(set(found))


def recorded(folder: Path) -> list[tuple]:
    """A key of each line of metrics and of rollouts."""
    lines: list[tuple] = [(row["step"],) for row in rows(folder / "metrics.jsonl")]
    for path in sorted(folder.glob("rollouts/step_*.jsonl")):
        lines += [(path.name, row["task"], row["candidate"]) for row in rows(path)]
    return lines


def faults_of_a_stop(training: Training) -> list[str]:
    """What is missing after an orderly stop."""
    folder, missing = training.folder, []
    if not (folder / "summary.json").exists():
        return ["no summary.json"]
    summary = json.loads((folder / "summary.json").read_text())
    if summary["status"] != "interrupted":
        missing.append(f"status {summary['status']}")
    if "repeated" in (summary["goes_on"] or ""):
        missing.append(f"continues {summary['goes_on']}")
    if not summary["resume"] or not (folder / "report.html").exists():
        missing.append("no report or no line that resumes")
    return missing

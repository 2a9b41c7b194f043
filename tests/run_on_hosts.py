"""A run of the main job on the hosts of hosts.py, watched from outside: what it prints and when,
its processes by name, its steps as they end, what it has consumed, and what it leaves behind."""

import contextlib
import itertools
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from hosts import Host
from runs_compared import rows as rows_of

from unslothrl.embedded import task
from unslothrl.system.variables import PROCESS

POLL_S = 0.02
RAYS_OWN = (
    "gcs_server",
    "ray::DashboardAgent",
    "ray::IDLE",
    "ray::RuntimeEnvAgent",
    "ray/_private/log_monitor.py",
    "ray/autoscaler/_private/monitor.py",
    "ray/dashboard/dashboard.py",
    "ray.util.client.server",
    "raylet",
)


def write_problems(host: Host, count: int) -> Path:
    """Writes that many different problems of the embedded task there. -> the file"""
    file = host.home / f"problems-{count}.jsonl"
    rows: dict[str, dict] = {}
    for row in task.problems("train", 0):
        rows.setdefault(row["problem"], row)
        if len(rows) == count:
            break
    host.path(file).write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    return file


@dataclass(frozen=True)
class Line:
    """What the driver printed, and when by `time.monotonic`."""

    at: float
    text: str


class RunOnHosts:
    """A run whose driver is on the first of `hosts`, all of which run Ray."""

    def __init__(self, hosts: Sequence[Host], name: str, options: Mapping[str, object]):
        self.hosts, self.name = hosts, name
        head = hosts[0]
        given = {"ray_address": head.ray_address, "run_name": name, **options}
        self.command = ["python", "train_distributed.py"]
        for option, value in given.items():
            self.command += [f"--{option}", *([] if value is True else [str(value)])]
        self.folder = head.path(head.checkout / "runs" / name)
        self.lines: list[Line] = []
        self.began = time.monotonic()
        self.driver = head.popen(
            self.command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.driver.stdout is not None
        for line in self.driver.stdout:
            self.lines.append(Line(time.monotonic(), line.rstrip()))

    @property
    def output(self) -> str:
        return "\n".join(f"{line.at - self.began:7.1f} {line.text}" for line in self.lines)

    def wait(
        self, what: str, happened: Callable[[], Any], timeout_s: float, poll_s: float = POLL_S
    ) -> Any:
        """-> what `happened` returns once it is true. AssertionError if the driver ends before."""
        until = time.monotonic() + timeout_s
        while True:
            has_ended = self.driver.poll() is not None
            if value := happened():
                return value
            assert not has_ended, f"{what}: the driver has ended\n{self.output}"
            assert time.monotonic() < until, f"{what}: not within {timeout_s} s\n{self.output}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.driver.wait(poll_s)

    def metrics(self) -> list[dict[str, Any]]:
        """The steps that have ended, in order."""
        return [row for row in rows_of(self.folder / "metrics.jsonl") if row["step"]]

    def wait_for_step(self, step: int, timeout_s: float) -> None:
        self.wait(f"step {step}", lambda: len(self.metrics()) >= step, timeout_s)

    def line_after(self, at: float, text: str) -> Line | None:
        """The first line since then that has `text`."""
        return next((line for line in self.lines if line.at > at and text in line.text), None)

    def processes(self) -> dict[str, tuple[Host, psutil.Process]]:
        """The run's actors and learners that live, by name; the newest of each."""
        alive: dict[str, tuple[Host, psutil.Process]] = {}
        for host in self.hosts:
            for process in host.processes():
                with contextlib.suppress(psutil.Error):
                    name = process.environ().get(PROCESS)
                    if name is None or process.status() == psutil.STATUS_ZOMBIE:
                        continue
                    if not process.cmdline()[0].startswith("ray::"):
                        continue  # a process that the actor has started
                    older = alive.get(name)
                    if older is None or older[1].create_time() < process.create_time():
                        alive[name] = host, process
        return alive

    def finish(self, timeout_s: float) -> int:
        """Waits for the driver's end. -> its exit code"""
        self.wait("the end", lambda: self.driver.poll() is not None, timeout_s)
        self.reader.join()
        return self.driver.returncode

    def stop(self) -> None:
        """Ends the driver, if it still runs, as Ctrl-C would not."""
        self.driver.kill()
        self.driver.wait()
        self.reader.join()

    def left_behind(self, timeout_s: float = 15.0) -> list[str]:
        """Processes that are left on the hosts, after some time to end in, and files in memory."""
        until = time.monotonic() + timeout_s
        while (processes := list(self._orphans())) and time.monotonic() < until:
            psutil.wait_procs([process for _, process in processes], timeout=0.5)
        left = [f"{host.name}: {describe(process)}" for host, process in processes]
        for host in self.hosts:
            for folder in ("/dev/shm", "/tmp"):
                left += [f"{host.name}: {folder}/{path.name}"
                         for path in host.path(folder).glob("unslothrl*")]  # fmt: skip
        return left

    def _orphans(self) -> Iterator[tuple[Host, psutil.Process]]:
        for host, process in [(each, one) for each in self.hosts for one in each.processes()]:
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if not any(part in command for part in RAYS_OWN):
                    yield host, process

    def consumed(self, tasks: int, episodes: int, candidates: int) -> list[str]:
        return wrongly_consumed(self.folder, tasks, episodes, candidates)


def groups_of(folder: Path) -> Iterator[tuple[int, str, list[int]]]:
    """(step, task, its candidates) of every group that a run's steps have consumed."""
    for path in sorted((folder / "rollouts").glob("step_*.jsonl")):
        step = int(path.stem.removeprefix("step_"))
        candidates: list[int] = []
        rows = rows_of(path)
        for row, following in itertools.zip_longest(rows, rows[1:]):
            candidates.append(row["candidate"])
            if following is None or following["candidate"] == 0:
                yield step, row["task"], candidates
                candidates = []


def wrongly_consumed(folder: Path, tasks: int, episodes: int, candidates: int) -> list[str]:
    """What is wrong with what a run has consumed: each of so many tasks must have come up once an
    episode (trained on, filtered or without signal), with all of its candidates."""
    times: Counter[str] = Counter()
    wrong = []
    for step, task_id, drawn in groups_of(folder):
        times[task_id] += 1
        if drawn != list(range(candidates)):
            wrong.append(f"step {step}, {task_id}: candidates {drawn}")
    wrong += [f"{name}: {n} times, not {episodes}" for name, n in times.items() if n != episodes]
    if len(times) != tasks:
        wrong.append(f"{len(times)} tasks of {tasks}")
    return wrong


def describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:120]}"
    return f"{process.pid}, which has ended"


def rewards(run: RunOnHosts) -> list[float]:
    return [row["reward/mean"] for row in run.metrics()]

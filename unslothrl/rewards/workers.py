"""Processes for work that may never end: each call has a deadline, and who misses it is killed.

    with Workers(2) as workers:
        workers.call([Call("unslothrl.rewards.maths:same", ("1/2", "0.5"))])   -> [Result(True)]

A call names a function, "module:function" or "file.py:function", and what it is given: JSON values.
Workers keep what they have imported. One more than is used is kept warm, so that a killed one is
replaced at once. Memory is limited, so a runaway computation fails instead of filling the machine.
"""

import collections
import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 5.0
MEMORY_MB = 2048
START_S = 60.0  # for a process to start and to import a function's module
IMPORTED = b"imported"  # the line that says so


@dataclass(frozen=True)
class Call:
    function: str
    arguments: tuple = ()


@dataclass(frozen=True)
class Result:
    """`error` says why there is no value: what was raised, or that the deadline passed."""

    value: Any = None
    error: str | None = None
    seconds: float = 0.0


class Worker:
    """One process, `unslothrl.rewards.worker`, that answers a line with a line."""

    def __init__(self, memory_mb: int):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unslothrl.rewards.worker", str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # so that what it starts is killed with it
        )
        self.index: int | None = None  # the call it works on
        self.began = self.ends = 0.0
        self.known: set[str] = set()  # functions that it has imported
        self.rest = b""

    def send(self, index: int, call: Call, deadline_s: float) -> None:
        """The deadline counts from where the function is imported, which may take longer."""
        assert self.process.stdin is not None
        self.index, self.began = index, time.monotonic()
        self.ends = self.began + (deadline_s if call.function in self.known else START_S)
        self.known.add(call.function)
        line = json.dumps([call.function, *call.arguments]) + "\n"
        self.process.stdin.write(line.encode())

    def imported(self, deadline_s: float) -> None:
        self.began = time.monotonic()
        self.ends = self.began + deadline_s

    def read(self) -> list[bytes] | None:
        """The lines that have arrived whole; None when the process has ended."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines if data else None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Workers:
    """`count` processes at work."""

    def __init__(self, count: int, deadline_s: float = DEADLINE_S, memory_mb: int = MEMORY_MB):
        self.deadline_s, self.memory_mb = deadline_s, memory_mb
        self.idle = [Worker(memory_mb) for _ in range(count)]
        self.spare = Worker(memory_mb)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, calls: Sequence[Call]) -> list[Result]:
        """The results in order; every call has `deadline_s` of its own."""
        waiting = collections.deque(enumerate(calls))
        results: list[Result | None] = [None] * len(calls)
        with selectors.DefaultSelector() as selector:
            busy: set[Worker] = set()
            while waiting or busy:
                while waiting and self.idle:
                    worker = self.idle.pop()
                    self._begin(worker, *waiting.popleft(), results, busy, selector)
                nearest = min((worker.ends for worker in busy), default=0.0)
                for key, _ in selector.select(max(0.0, nearest - time.monotonic())):
                    self._finish(key.data, results, busy, selector)
                now = time.monotonic()
                for worker in [worker for worker in busy if now >= worker.ends]:
                    error = f"took longer than {worker.ends - worker.began:g} s"
                    self._replace(worker, error, results, busy, selector)
        return [result for result in results if result is not None]

    def _begin(self, worker: Worker, index: int, call: Call, results, busy, selector) -> None:
        busy.add(worker)
        selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        try:
            worker.send(index, call, self.deadline_s)
        except BrokenPipeError:
            worker.index = index
            self._replace(worker, "its process had ended", results, busy, selector)

    def _finish(self, worker: Worker, results, busy, selector) -> None:
        lines = worker.read()
        if lines is None:
            self._replace(worker, "ended its process", results, busy, selector)
            return
        for line in lines:
            if line == IMPORTED:
                worker.imported(self.deadline_s)
                continue
            value, error = json.loads(line)
            results[worker.index] = Result(value, error, time.monotonic() - worker.began)
            selector.unregister(worker.process.stdout)
            busy.remove(worker)
            self.idle.append(worker)

    def _replace(self, worker: Worker, error: str, results, busy, selector) -> None:
        """Kills a worker whose call has failed; the spare takes its place."""
        results[worker.index] = Result(None, error, time.monotonic() - worker.began)
        selector.unregister(worker.process.stdout)
        busy.remove(worker)
        worker.kill()
        self.idle.append(self.spare)
        self.spare = Worker(self.memory_mb)

    def close(self) -> None:
        for worker in (*self.idle, self.spare):
            worker.kill()
        self.idle = []

"""Ray's processes: what each is started with; how calls of their methods begin, how results or
errors come back; and how processes that do not answer are noticed."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from unslothrl.cluster.handles import Call, Clock
from unslothrl.config.options import Config
from unslothrl.planning.placement import ProcessPlan
from unslothrl.system import variables
from unslothrl.system.machine import Machine

GET_S = 60.0  # in which a result that is there must arrive
STATE_S = 900.0  # in which a learner's state must: half a gigabyte of a 7B, over a slow link
BETWEEN_S = 0.25  # between two questions to a process
PING_S = 30.0  # without an answer of its watching thread, a process hangs
FORGET_S = 10.0  # in which half of how long an answer took is forgotten


@dataclass(frozen=True)
class Start:
    """What a process is started with on its node."""

    environment: dict[str, str]
    config: Config  # with the user's files as that node has them
    base: Path
    strategy: Any = "DEFAULT"  # Ray's, of scheduling


def process_environment(machine: Machine, scratch: Path, plan: ProcessPlan) -> dict[str, str]:
    """What a process gets here: this one's environment, its import path, and its GPUs."""
    return {
        **variables.of_workers(machine.cpus, bool(machine.gpus)),
        **(variables.of_cards(*plan.cards) if plan.cards else {}),
        "PYTHONPATH": variables.python_path(),
        variables.SCRATCH: str(scratch),
    }


class RayCall(Call[Any]):
    """A call that runs in another process; `ref` is where its result will be."""

    def __init__(self, transport: "RayTransport", ref: Any):
        self.transport, self.ref = transport, ref


class RayTransport:
    """The way to an actor or a learner in a process of its own; `host` is Ray's handle of it."""

    def __init__(self, host: Any):
        self.host = host

    def call(self, method: str, *arguments: Any) -> RayCall:
        refs = [a.ref if isinstance(a, RayCall) else a for a in arguments]
        return RayCall(self, self.host.call.remote(method, *refs))

    def fetch(self, argument: Any) -> RayCall | float:
        """In a thread of its own there. What is no call travels with the call that takes it."""
        if not isinstance(argument, RayCall):
            return 0.0
        fetch = self.host.fetch.options(concurrency_group="fetch")
        return RayCall(self, fetch.remote([argument.ref]))

    def ready(self) -> RayCall:
        """Ends when the process has built what it holds, or failed to."""
        return RayCall(self, self.host.ready.remote())


class RayHost:
    """What Ray runs: an actor or a learner, and beside it a thread that says how far it is."""

    threads: ClassVar = {"watch": 1, "fetch": 1}  # besides, which answer while a call runs

    def __init__(self, build: Callable, *arguments: Any):
        self.failed: Exception | None = None
        try:
            self.target = build(*arguments)
        except Exception as error:  # of one raised here Ray keeps no more than its text
            self.failed = error

    def ready(self) -> None:
        """Raises what ended its construction."""
        if self.failed is not None:
            raise self.failed

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.target, method)(*arguments)

    def pid(self) -> int:
        return os.getpid()

    def fetch(self, refs: list[Any]) -> float:
        """Reads objects of Ray's in a list, which Ray does not fetch itself. -> seconds"""
        import ray

        ray.wait(refs, fetch_local=False)
        started = time.perf_counter()
        ray.get(refs)
        return time.perf_counter() - started

    def progress(self) -> tuple[int, int]:
        return self.target.progress.state


def result_of(ref: Any, timeout_s: float = GET_S) -> tuple[Any, Exception | None]:
    """-> (what a reference of Ray's stands for, or what was raised instead)."""
    import ray

    try:
        return ray.get(ref, timeout=timeout_s), None
    except Exception as error:
        return None, error


# Whether processes answer


class Watch:
    """Of one process: asks how far it is, and notices when it does not answer."""

    def __init__(self, host: Any):
        self.host = host
        self.state = (0, 0)  # completions or sequences done, tokens
        self.death: Exception | None = None  # what Ray says where the process has died
        self.ref: Any = None  # where the answer will be
        self.clock = Clock()
        self.asked, self.last = 0.0, -math.inf  # when it was asked, by the clock and as it was
        self.waited = 0.0  # seconds after which it had not answered yet
        self.longest = (0.0, -math.inf)  # seconds of an answer, and when that came

    def ask(self) -> "Watch":
        """Takes the answer if it is there, and asks again. Does not wait."""
        import ray

        now, silence_s = time.monotonic(), self.clock.now() - self.asked
        if self.ref is not None and ray.wait([self.ref], timeout=0)[0]:
            waited, self.waited = self.waited, 0.0  # not until now: nobody looked
            state, error = result_of(self.ref)
            self.ref = None
            if isinstance(error, ray.exceptions.ActorDiedError):
                self.death = error
            if error is not None:  # its call, if any, says so, too
                return self
            self.state = state
            self.longest = max(self.answer_s(now), waited), now
        elif self.ref is not None:
            self.waited = silence_s
        if self.ref is None and now - self.last >= BETWEEN_S:
            self.ref = self.host.progress.options(concurrency_group="watch").remote()
            self.asked, self.last = self.clock.now(), now
        return self

    def silence_s(self) -> float:
        """For how long the process has not answered; 0 where it has."""
        return 0.0 if self.ref is None else self.clock.now() - self.asked

    def answer_s(self, at: float) -> float:
        """How long answers take at a time: the longest, less the longer ago it is."""
        seconds, when = self.longest
        return float(seconds * 0.5 ** (max(0.0, at - when) / FORGET_S))

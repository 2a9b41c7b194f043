"""Calls of methods in Ray's processes: how they begin, how their results or errors come back."""

import os
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unslothrl.cluster import failures
from unslothrl.cluster.base import Outcome
from unslothrl.cluster.handles import Call
from unslothrl.cluster.stalls import Stalls
from unslothrl.errors import ResultLost

ASK_S = 0.25  # between two questions to a process
PING_S = 30.0  # without an answer of its watching thread, a process hangs
GET_S = 60.0  # in which a result that is there must arrive
USUAL, MOST_USUAL_S = 2.0, 3.0  # times as long as the longest answer of late is no silence yet
FORGET_S = 10.0  # in which half of that is forgotten


LARGE = ("update", "measure", "load_state")  # methods whose arguments fill the object store

Asked = str | bytes | tuple[str, tuple[Any, ...]]
"""A method, with its arguments where none is another call's result. They come in one piece because
Ray pickles each by itself; pickled already, because that takes it five times as long as it takes
pickle; but not large ones, whose buffers it writes into its object store without a copy."""


def read(asked: Asked, arrived: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """-> (method, arguments); `arrived` are those that Ray had to wait for."""
    if isinstance(asked, str):
        return asked, arrived
    return pickle.loads(asked) if isinstance(asked, bytes) else asked


class RayCall(Call[Any]):
    """A call that runs in another process; `ref` is where its result will be."""

    def __init__(self, transport: "RayTransport", ref: Any):
        self.transport, self.ref = transport, ref


class RayTransport:
    """The way to an actor or a learner in a process of its own; `host` is Ray's handle of it."""

    def __init__(self, host: Any, node: str = "", fetched: dict[str, Any] | None = None):
        """`fetched`: what each node was asked last to fetch, of all processes."""
        self.host, self.node = host, node
        self.fetched = {} if fetched is None else fetched

    def call(self, method: str, *arguments: Any) -> RayCall:
        if any(isinstance(argument, RayCall) for argument in arguments):
            refs = [a.ref if isinstance(a, RayCall) else a for a in arguments]
            return RayCall(self, self.host.call.remote(method, *refs))
        asked = (method, arguments) if method in LARGE else pickle.dumps((method, arguments), 5)
        return RayCall(self, self.host.call.remote(asked))

    def fetch(self, argument: Any) -> RayCall | float:
        """In a thread of its own there. What is no call travels with the call that takes it."""
        if not isinstance(argument, RayCall) or self.fetched.get(self.node) == argument.ref:
            return 0.0
        self.fetched[self.node] = argument.ref
        return RayCall(self, self.host.fetch.remote([argument.ref]))

    def ready(self) -> RayCall:
        """Ends when the process has built what it holds, or failed to."""
        return RayCall(self, self.host.ready.remote())


class Host:
    """What Ray runs: an actor or a learner, and beside it a thread that says how far it is."""

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

    def call(self, asked: Asked, *arrived: Any) -> Any:
        """Calls a method."""
        method, arguments = read(asked, arrived)
        return getattr(self.target, method)(*arguments)

    def pid(self) -> int:
        return os.getpid()

    def fetch(self, refs: list[Any]) -> float:
        """Reads objects of Ray's, each once for all processes of a node. They come in a list
        because Ray would fetch arguments itself. -> seconds"""
        import ray

        if refs:
            ray.wait(refs, num_returns=len(refs), fetch_local=False)
        started = time.perf_counter()
        ray.get(refs)
        return time.perf_counter() - started

    def progress(self) -> tuple[int, int]:
        return self.target.progress.state


def watched_host() -> type:
    """`Host` with threads of their own for what is answered while a call runs."""
    import ray

    groups = {"progress": "watch", "pid": "watch", "fetch": "fetch"}
    methods = {
        name: ray.method(concurrency_group=group)(getattr(Host, name))
        for name, group in groups.items()
    }
    return type("Host", (Host,), methods)


@dataclass
class Results:
    """Turns what Ray gives back into values and this package's errors."""

    names: dict[str, str]  # Ray's id of an actor -> its name
    logs: Path | None = None
    here: str = ""  # the driver's node
    oom_kills: int = field(default_factory=failures.oom_killed)

    def poll(self, calls: Iterable[RayCall], timeout_s: float) -> list[Outcome]:
        """Those of `calls` that have ended, at once if all have, else after `timeout_s`."""
        import ray

        by_ref = {call.ref: call for call in calls}
        if not by_ref:
            return []
        done, _ = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=timeout_s)
        try:
            values = ray.get(done, timeout=GET_S)
        except Exception:  # one of them has failed: which?
            return [self._outcome(by_ref[ref]) for ref in done]
        return [Outcome(by_ref[ref], value) for ref, value in zip(done, values, strict=True)]

    def _outcome(self, call: RayCall) -> Outcome:
        import ray

        try:
            return Outcome(call, ray.get(call.ref, timeout=GET_S))
        except Exception as error:
            return Outcome(call, error=self.error_of(error))

    def error_of(self, error: Exception) -> Exception:
        """What a process raised, `ProcessLost` where it has died, or `ResultLost`."""
        from ray.exceptions import (
            GetTimeoutError,
            ObjectFetchTimedOutError,
            ObjectLostError,
            RayError,
        )

        cause = failures.original(error)
        if isinstance(cause, ObjectLostError | ObjectFetchTimedOutError | GetTimeoutError):
            return ResultLost(f"a result was lost on its way ({type(cause).__name__})")
        if isinstance(cause, RayError):
            return failures.process_died(cause, self.names, self.logs, self.oom_kills, self.here)
        assert isinstance(cause, Exception)
        return cause


class Watch:
    """Asks processes how far they are, and notices those that do not answer."""

    def __init__(self, hosts: Sequence[Any]):
        self.hosts = list(dict.fromkeys(hosts))
        self.states: dict[Any, tuple[int, int]] = {}
        self.asked: dict[Any, tuple[Any, float]] = {}  # host -> (where the answer will be, since)
        self.last: dict[Any, float] = {}  # when a host was asked last
        self.waited: dict[Any, float] = {}  # seconds after which a host had not answered yet
        self.longest: dict[Any, tuple[float, float]] = {}  # seconds of a host's answer, and when
        self.death: Exception | None = None  # what Ray says of a host that has died
        self.stalls = Stalls()

    def ask(self) -> float:
        """Takes the answers that are there, and asks again. Does not wait. -> the seconds for which
        this process was stopped since it did so last, in which nobody could answer."""
        import ray

        stall_s = self.stalls.look()
        if stall_s:
            self.asked = {host: (ref, at + stall_s) for host, (ref, at) in self.asked.items()}
        now = time.monotonic()
        for host in self.hosts:
            if host in self.asked and ray.wait([self.asked[host][0]], timeout=0)[0]:
                try:
                    ref, _ = self.asked.pop(host)
                    waited = self.waited.pop(host, 0.0)  # not until now: nobody looked
                    self.states[host] = ray.get(ref, timeout=GET_S)
                    self.longest[host] = max(self.usual_s(host), waited), now
                except ray.exceptions.ActorDiedError as error:  # its call, if any, says so, too
                    self.death = error
                except Exception:  # it is not to be reached: its call will say so
                    continue
            elif host in self.asked:
                self.waited[host] = now - self.asked[host][1]
            if host not in self.asked and now - self.last.get(host, 0.0) >= ASK_S:
                self.asked[host] = host.progress.remote(), now
                self.last[host] = now
        return stall_s

    def sums(self) -> tuple[int, int]:
        """(done, tokens) over all, as far as they have answered."""
        return sum(done for done, _ in self.states.values()), sum(
            tokens for _, tokens in self.states.values()
        )

    def silence_s(self, host: Any) -> float:
        """For how long a host has not answered, beyond what answers of it have taken on a machine
        that may be busy; 0 where it has."""
        if host not in self.asked:
            return 0.0
        at = self.asked[host][1]
        usual = min(USUAL * self.usual_s(host, at), MOST_USUAL_S)
        return max(0.0, time.monotonic() - at - usual)

    def usual_s(self, host: Any, at: float | None = None) -> float:
        """How long answers of a host take at a time, by default now: the longest, less the longer
        ago it is."""
        seconds, when = self.longest.get(host, (0.0, 0.0))
        now = time.monotonic() if at is None else at
        return float(seconds * 0.5 ** (max(0.0, now - when) / FORGET_S))

    def hung(self) -> list[Any]:
        """The hosts that have not answered for `PING_S`."""
        return [host for host in self.asked if self.silence_s(host) > PING_S]

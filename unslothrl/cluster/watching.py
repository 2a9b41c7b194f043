"""Asking processes how far they are, and noticing those that do not answer."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from unslothrl.cluster.ray_calls import GET_S
from unslothrl.cluster.stalls import Stalls

ASK_S = 0.25  # between two questions to a process
PING_S = 30.0  # without an answer of its watching thread, a process hangs
FORGET_S = 10.0  # in which half of how long an answer took is forgotten


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
                    self.longest[host] = max(self.answer_s(host), waited), now
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
        """For how long a host has not answered; 0 where it has."""
        return time.monotonic() - self.asked[host][1] if host in self.asked else 0.0

    def answer_s(self, host: Any, at: float | None = None) -> float:
        """How long answers of a host take at a time, by default now: the longest, less the longer
        ago it is."""
        seconds, when = self.longest.get(host, (0.0, 0.0))
        now = time.monotonic() if at is None else at
        return float(seconds * 0.5 ** (max(0.0, now - when) / FORGET_S))

    def hung(self) -> list[Any]:
        """The hosts that have not answered for `PING_S`."""
        return [host for host in self.asked if self.silence_s(host) > PING_S]


class Watches:
    """A `Watch` for each process that somebody has wanted to know about."""

    def __init__(self) -> None:
        self.of: dict[Any, Watch] = {}

    def ask(self, host: Any) -> Watch:
        """What watches a process, which has been asked again."""
        watch = self.of.setdefault(host, Watch([host]))
        watch.ask()
        return watch

    def drop(self, host: Any) -> None:
        """A process has been ended."""
        self.of.pop(host, None)

    def answer_s(self) -> float:
        """How long answers take now, over the processes that have answered of late: the lower
        median, since one that was cut off for a while says nothing of the others. 0 without any."""
        now = time.monotonic()
        recent = [
            watch.answer_s(host, now)
            for host, watch in self.of.items()
            if host in watch.longest and now - watch.longest[host][1] < FORGET_S
        ]
        return statistics.median_low(recent) if recent else 0.0

"""Asking processes how far they are, and noticing those that do not answer."""

import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from unslothrl.cluster.ray_calls import GET_S

ASK_S = 0.25  # between two questions to a process
PING_S = 30.0  # without an answer of its watching thread, a process hangs
FORGET_S = 10.0  # in which half of how long an answer took is forgotten
STALL_S = 5.0  # between two looks that follow one another within a second


class Stalls:
    """When the driver itself was stopped, by Ctrl-Z or with its container, nobody else was late."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock, self.looked = clock, clock()

    def look(self) -> float:
        """-> the seconds for which nobody looked, 0 unless that was far too long. What others were
        given by a clock has to be put off by as much."""
        now = self.clock()
        passed, self.looked = now - self.looked, now
        return passed if passed > STALL_S else 0.0


class Watch:
    """Of one process: asks how far it is, and notices when it does not answer."""

    def __init__(self, host: Any):
        self.host = host
        self.state = (0, 0)  # completions or sequences done, tokens
        self.death: Exception | None = None  # what Ray says where the process has died
        self.ref: Any = None  # where the answer will be
        self.asked, self.last = 0.0, -math.inf  # when it was asked, less stalls and as it was
        self.waited = 0.0  # seconds after which it had not answered yet
        self.longest = (0.0, -math.inf)  # seconds of an answer, and when that came
        self.stalls = Stalls()

    def ask(self) -> "Watch":
        """Takes the answer if it is there, and asks again. Does not wait."""
        import ray

        self.asked += self.stalls.look()
        now = time.monotonic()
        if self.ref is not None and ray.wait([self.ref], timeout=0)[0]:
            waited, self.waited = self.waited, 0.0  # not until now: nobody looked
            ref, self.ref = self.ref, None
            try:
                self.state = ray.get(ref, timeout=GET_S)
                self.longest = max(self.answer_s(now), waited), now
            except ray.exceptions.ActorDiedError as error:  # its call, if any, says so, too
                self.death = error
            except Exception:  # it is not to be reached: its call will say so
                return self
        elif self.ref is not None:
            self.waited = now - self.asked
        if self.ref is None and now - self.last >= ASK_S:
            self.ref = self.host.progress.remote()
            self.asked = self.last = now
        return self

    def silence_s(self) -> float:
        """For how long the process has not answered; 0 where it has."""
        return 0.0 if self.ref is None else time.monotonic() - self.asked

    def hangs(self) -> bool:
        return self.silence_s() > PING_S

    def answer_s(self, at: float) -> float:
        """How long answers take at a time: the longest, less the longer ago it is."""
        seconds, when = self.longest
        return float(seconds * 0.5 ** (max(0.0, at - when) / FORGET_S))


def answer_s(watches: Iterable[Watch]) -> float:
    """How long answers take now, over the processes that have answered of late: the lower median,
    since one that was cut off for a while says nothing of the others. 0 without any."""
    now = time.monotonic()
    recent = [watch.answer_s(now) for watch in watches if now - watch.longest[1] < FORGET_S]
    return statistics.median_low(recent) if recent else 0.0

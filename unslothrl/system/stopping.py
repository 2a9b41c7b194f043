"""Orderly stops: what Ctrl-C, SIGTERM, SIGHUP and a closed pipe do to a run.

Each raises `Stopped` in the main thread, at once or, inside `held`, when that ends. Once a run is
stopping, further signals change nothing, but for a second Ctrl-C, which gives up what is being
saved. A signal that is ignored when the process starts (`nohup`, a background job) stays ignored.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGPIPE: "its output was closed"}


class Stopped(KeyboardInterrupt):
    def __init__(self, number: signal.Signals = signal.SIGINT):
        super().__init__(NAMES.get(number, number.name))
        self.number = number

    @property
    def exit_code(self) -> int:
        """As a shell reports a process that the signal has ended."""
        return 128 + self.number


class Stops:
    """Whether this process has been asked to stop, and whether it may at this moment."""

    def __init__(self) -> None:
        self.holding = 0
        self.may_hang = False  # what holds: a second Ctrl-C is not held
        self.is_stopping = False
        self.number = signal.SIGINT  # what stops it
        self.is_urgent = False  # it has been asked again while it was stopping
        self.is_closed = False  # the output
        self.waiting: signal.Signals | None = None

    def ask(self, signalled: int, frame: FrameType | None = None) -> None:
        """In the main thread. Raises Stopped unless it is held, or stopping already."""
        number = signal.Signals(signalled)
        if self.is_stopping and number != signal.SIGINT:
            self.is_urgent = True
            return
        if self.is_closed and number == signal.SIGTERM:
            number = signal.SIGPIPE
        is_held = self.holding and not (self.may_hang and self.waiting and number == signal.SIGINT)
        if is_held:
            self.waiting = self.waiting or number
            return
        self.is_stopping, self.number = True, number
        raise Stopped(number)


_stops = Stops()


def listen() -> None:
    """Has signals stop this process from now on."""
    global _stops
    _stops = Stops()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stops.ask)


@contextlib.contextmanager
def held(may_hang: bool = False) -> Iterator[None]:
    """Inside it, in the main thread, nothing stops: what belongs together is done as one. Where
    that `may_hang`, a second Ctrl-C stops it."""
    _stops.holding += 1
    _stops.may_hang |= may_hang
    try:
        yield
    finally:
        _stops.holding -= 1
        _stops.may_hang &= not may_hang
    if not _stops.holding and _stops.waiting is not None:
        number, _stops.waiting = _stops.waiting, None
        _stops.ask(number)


def output_closed() -> None:
    """Nobody reads what this process prints: it goes nowhere from now on, and the run stops."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if os.path.sameopenfile(1, 2):
        os.dup2(nowhere, 2)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    if not _stops.is_stopping:
        _stops.is_closed = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def cause() -> Stopped:
    """What stops this process, also where a library has raised KeyboardInterrupt for it."""
    return Stopped(_stops.number)


def is_urgent() -> bool:
    """Whether a run that is ending was asked to stop: what can be done later is not waited for."""
    return _stops.is_urgent


def begin() -> None:
    """The run is ending, whatever the reason."""
    _stops.is_stopping = True


def is_asked() -> bool:
    """Whether a stop waits until what is `held` has ended."""
    return _stops.waiting is not None

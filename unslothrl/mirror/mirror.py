"""The mirror of a run: its folder copied in a thread, so that no step waits for it and nothing that
happens there stops the run."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from unslothrl import stopping
from unslothrl.checkpoints.store import Checkpoints
from unslothrl.errors import UserError
from unslothrl.mirror import address
from unslothrl.mirror.sending import STEP, Sender
from unslothrl.mirror.target import Target, asked, opened
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import CHECKPOINTS, CONFIG, ORIGIN

FINISHED_S = 600.0  # that the last pass of a finished run may take
STOPPED_S = 10.0  # of one that was stopped
SLOW_S = 300.0  # without a file that has arrived, before the user is told
TRIES, RETRY_S = 3, 2.0  # in the end
WAKE_S = 0.5  # after which a SIGTERM is seen
MOST_ORIGIN = 1 << 20


class Mirror:
    """Of one run; without a target it does nothing."""

    def __init__(
        self,
        target: Target | None = None,
        folder: Path = Path(),
        note: Callable[[str], None] = lambda line: None,
    ):
        """`note` gets a line when the target fails, and when it works again."""
        self.folder, self.note = folder, note
        self.sender = Sender(folder, target) if target is not None else None
        self.changed = threading.Condition()
        self.wanted, self.finished = 0, 0  # passes asked for, and those that have ended
        self.failure: str | None = None  # of the last pass
        self.is_closed, self.is_slow = False, False
        self.thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        return f"mirror {self.sender.target.url}" if self.sender else "mirror"

    def update(self) -> None:
        """The folder has something new. Returns at once."""
        if self.sender is None or self.is_closed:
            return
        with self.changed:
            self.wanted += 1
            self.changed.notify_all()
            if self.thread is None:  # a daemon: one that hangs does not hold the process
                self.thread = threading.Thread(target=self._work, daemon=True, name="mirror")
                self.thread.start()
        self._check_speed()

    def _check_speed(self) -> None:
        assert self.sender is not None
        since = time.monotonic() - self.sender.arrived_at
        if self.wanted > self.finished + 1 and since > SLOW_S and not self.is_slow:
            self.is_slow = True
            self.note(f"{self.name}: nothing has arrived for {since:.0f} s, the run goes on")

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.wanted > self.finished)
                asked_for = self.wanted
            self._pass()
            with self.changed:
                self.finished = asked_for
                self.changed.notify_all()

    def _pass(self) -> None:
        assert self.sender is not None
        before = self.failure
        try:
            self.sender.send()
            self.failure = None
        except Exception as error:  # of any library
            self.failure = address.said(error)
            self.sender.forget()
        if self.is_closed:
            return
        if self.failure and not before:
            self.note(f"{self.name}: {self.failure}: the run goes on, and what is missing there is "
                      "sent after the next checkpoint")  # fmt: skip
        elif before and not self.failure:
            self.note(f"{self.name} is complete again")

    def close(self, within_s: float = FINISHED_S) -> bool:
        """Sends what is left, within that time. -> whether the mirror has everything; `note` gets a
        line if not."""
        if self.sender is None or self.is_closed:
            return True
        end = time.monotonic() + within_s
        try:
            is_complete = self._finish(end)
        except KeyboardInterrupt:  # it is not worth the user's time
            is_complete = False
        self.is_closed = True
        if not is_complete:
            self.note(self._behind(within_s))
        return is_complete

    def _finish(self, end: float) -> bool:
        for attempt in range(TRIES):
            self.update()
            with self.changed:
                while self.finished != self.wanted and not is_over(end):
                    self.changed.wait(min(WAKE_S, max(0.0, end - time.monotonic())))
                if self.finished != self.wanted or not self.failure:
                    return self.finished == self.wanted
                if attempt + 1 < TRIES and not is_over(end):
                    self.changed.wait(min(RETRY_S, max(0.0, end - time.monotonic())))
        return False

    def _behind(self, within_s: float) -> str:
        assert self.sender is not None
        waiting = dict(self.sender.waiting)
        size = sum(waiting.values()) / 1e6
        why = self.failure or f"not done within {within_s:.0f} s"
        return (
            f"{self.name} is behind ({why}): {len(waiting)} files or checkpoints, {size:.1f} MB, "
            f"are not there: --resume {self.folder} sends them"
        )


def is_over(end: float) -> bool:
    return time.monotonic() >= end or stopping.is_urgent()


class Mirrored(Protocol):
    """The options of a run that say where it is copied to."""

    @property
    def mirror(self) -> str | None: ...
    @property
    def output_dir(self) -> str: ...
    @property
    def run_name(self) -> str | None: ...


def of_run(config: Mirrored) -> Target | None:
    """The target of a run that is about to begin, None without `--mirror`. UserError where its
    package is missing, it cannot be written, or it holds another run of this name."""
    if config.mirror is None:
        return None
    folder = Path(config.output_dir) / (config.run_name or "run")
    check_place(config.mirror, folder)
    target = opened("mirror", config.mirror)
    asked("mirror", config.mirror, "written", lambda: check_writable(target))
    run = target.below(folder.name)
    asked("mirror", config.mirror, "read", lambda: check_same(run, folder))
    return run


def check_place(mirror: str, folder: Path) -> None:
    """A folder is not copied into itself."""
    if address.scheme(mirror) not in ("file", "local"):
        return
    place = Path(mirror.partition("://")[2] if address.is_url(mirror) else mirror).resolve()
    own = folder.resolve()
    if place / folder.name == own or place.is_relative_to(own):
        raise UserError(
            f"mirror {mirror}: {folder} is there itself: set --mirror to another folder, or to none"
        )


def check_writable(target: Target) -> None:
    name = f".write-test-{os.getpid()}"
    target.write(name, b"")
    target.remove(name)


def check_same(run: Target, folder: Path) -> None:
    """UserError where the mirror holds another run of this name."""
    theirs = run.read(ORIGIN, MOST_ORIGIN)
    if theirs is None and run.read(CONFIG, 1) is None:
        return
    ours = origin.read(folder)
    if not ours.started or origin.parsed(theirs or b"{}").started != ours.started:
        raise UserError(
            f"mirror {run.url} holds another run: set another --run_name, or continue that one "
            f"with --resume {run.url}"
        )
    here = max(Checkpoints(folder).steps(), default=0)
    names = {entry.base for entry in run.entries(CHECKPOINTS)}
    there = max((int(name[5:]) for name in names if STEP.fullmatch(name)), default=0)
    if there > here:
        raise UserError(
            f"mirror {run.url} is at step {there}, and {folder} at step {here}: continue the "
            f"former with --resume {run.url} --output_dir another, or set another --mirror"
        )

"""The mirror of a run: its folder copied by a thread, so that no step waits for it and nothing that
happens there stops the run.

The order keeps the mirror whole at every instant: first the adapter that the run began with, since
it cannot go on without, then config.toml, which makes it a run, and what checkpoints refer to
(metrics, rollouts, adapters), then the files of a checkpoint with SHA256SUMS, without which it does
not count, as the last, then `latest`, and in the end checkpoints that are gone here are removed
there.
"""

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from unslothrl.checkpoints.store import BEST, LATEST, OF_STEP, SUMS
from unslothrl.errors import UserError
from unslothrl.files import expanded, link_or_copy, remove
from unslothrl.mirror import fetching
from unslothrl.mirror.fetching import OWN, STATE, Target, is_name, stat_of
from unslothrl.system import stopping
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import CHECKPOINTS, CONFIG, ORIGIN, SUMMARY
from unslothrl.weights.starting_adapter import START

FINISHED_S = 600.0  # that the last pass of a finished run may take
LATE_S = 1800.0  # after which a copy that has not ended is told of
WAKE_S = 0.5  # after which a SIGTERM is seen
KEPT = 2  # checkpoints that the mirror keeps, also where the run keeps one alone


class Sender:
    """Copies what is new or has changed in a run's folder to its mirror."""

    def __init__(self, folder: Path, target: Target):
        self.folder, self.target = folder, target
        self.sent: dict[str, list[int]] = {}  # by earlier passes: size, mtime
        state = folder / OWN / STATE
        if state.exists():
            found = json.loads(state.read_text())
            self.sent = found["sent"] if found["target"] == target.url else {}

    def send(self) -> None:
        """One pass. Raises whatever the target raises; what has been sent by then stays sent."""
        links = self.folder / OWN / CHECKPOINTS
        try:
            there = self.target.sizes()
            held = self.hold(links)
            files = sorted(plain_files(self.folder), key=order)
            if SUMMARY not in files and SUMMARY in there:  # the run goes on
                self.target.remove(SUMMARY)
            if held:  # those after it are of a future that the run has given up
                self.remove_checkpoints(n for n in steps_of(there) if n > max(held))
            self.send_files([name for name in files if name != SUMMARY], there)
            for name, folder in sorted(held.items()):
                self.send_checkpoint(folder, f"{CHECKPOINTS}/{name}")
            pointers = (self.folder / CHECKPOINTS / name for name in (LATEST, BEST))
            named = [p for p in pointers if p.exists() and p.read_text().strip() in held]
            self.send_files([f"{CHECKPOINTS}/{pointer.name}" for pointer in named], there)
            if held:
                whole = {n for n in steps_of(there) if f"{CHECKPOINTS}/{n}/{SUMS}" in there}
                newest = sorted(n for n in {*whole, *held} if n <= max(held))[-KEPT:]
                self.remove_checkpoints(steps_of(there) - {*held, *newest})
            self.send_files([name for name in files if name == SUMMARY], there)
        finally:
            remove(links)
            fetching.write_state(self.folder, self.target.url, self.sent)

    def remove_checkpoints(self, names: Iterable[str]) -> None:
        """The sums first: what is cut short is no checkpoint."""
        for name in names:
            self.target.remove(f"{CHECKPOINTS}/{name}/{SUMS}")
            self.target.remove(f"{CHECKPOINTS}/{name}")

    def hold(self, links: Path) -> dict[str, Path]:
        """Name -> folder of links to its files, for each checkpoint: the run may delete it."""
        remove(links)
        held = []
        for path in (self.folder / CHECKPOINTS).glob("step_*"):
            with contextlib.suppress(FileNotFoundError, shutil.Error):  # it is being replaced
                held.append(shutil.copytree(path, links / path.name, copy_function=link_or_copy))
        return {each.name: each for each in held if (each / SUMS).exists()}

    def send_files(self, names: list[str], there: dict[str, int]) -> None:
        for name in names:
            path = self.folder / name
            if not path.exists():  # deleted meanwhile
                continue
            stat = stat_of(path)  # before: what is added meanwhile is sent by the next pass
            if self.sent.get(name) != stat or there.get(name) != stat[0]:
                self.target.put(path, name)
                self.sent[name] = stat

    def send_checkpoint(self, folder: Path, at: str) -> None:
        """What the mirror has already stays: one small file differs after an evaluation."""
        sums, before = (folder / SUMS).read_bytes(), self.target.read(f"{at}/{SUMS}")
        if before == sums:
            return
        self.target.remove(f"{at}/{SUMS}")
        for line in sums.splitlines():
            if line not in before.splitlines():
                name = line.decode().partition("  ")[2]
                self.target.put(folder / name, f"{at}/{name}")
        self.target.put(folder / SUMS, f"{at}/{SUMS}")


def steps_of(there: dict[str, int]) -> set[str]:
    """The names of checkpoints that a mirror has files of."""
    names = (name.split("/")[1] for name in there if name.startswith(f"{CHECKPOINTS}/"))
    return {name for name in names if OF_STEP.fullmatch(name)}


def plain_files(folder: Path) -> Iterator[str]:
    """The names of everything but checkpoints, temporary files, the lock, and links."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if is_name(name) and name != CHECKPOINTS]
        for path in (Path(parent, name) for name in names if is_name(name)):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()


def order(name: str) -> tuple[bool, bool, str]:
    return not name.startswith(f"{START}/"), name not in (CONFIG, ORIGIN), name


class Mirror:
    def __init__(self, target: Target, folder: Path, note: Callable[[str], None]):
        """`note` gets a line when the target fails, and when it works again."""
        self.folder, self.note, self.target = folder, note, target
        self.failure: str | None = None  # of the last pass
        self.is_closed = False
        self.thread = threading.Thread()  # the latest pass
        self.began = 0.0  # when it did, by the monotonic clock

    def update(self) -> None:
        """The folder has something new. Returns at once; a pass under way leaves it to the next."""
        if not self.is_closed and not self.thread.is_alive():
            # A daemon: one that hangs does not hold the process.
            self.thread = threading.Thread(target=self._send, daemon=True)
            self.began = time.monotonic()
            self.thread.start()
        elif (seconds := time.monotonic() - self.began) > LATE_S:
            self._ended(f"a copy has not ended for {seconds / 60:.0f} minutes")

    def _send(self) -> None:
        failure = None
        try:
            Sender(self.folder, self.target).send()
        except Exception as error:  # of any library
            failure = fetching.said(error)
        self._ended(failure)

    def _ended(self, failure: str | None) -> None:
        before, self.failure = self.failure, failure
        if failure and not before:
            self._say(
                f"{failure}: the run continues, and what is missing there is sent after the next "
                "checkpoint"
            )
        elif before and not failure:
            self._say("it is complete again")

    def _say(self, line: str) -> None:
        if not self.is_closed:
            self.note(f"mirror {self.target.url}: {line}")

    def close(self, within_s: float = FINISHED_S) -> None:
        """Sends what is left, within that time; where not all is there then, a `note`."""
        if self.is_closed:
            return
        end = time.monotonic() + within_s
        with contextlib.suppress(KeyboardInterrupt):  # not worth the user's time
            self._wait(end)
            self.update()
            self._wait(end)
        if self.thread.is_alive() or self.failure:
            why = self.failure or f"not done within {within_s:.0f} s"
            self._say(f"not all of the run is there ({why}): --resume {self.folder} sends the rest")
        self.is_closed = True

    def _wait(self, end: float) -> None:
        """For the pass that is under way."""
        while self.thread.is_alive() and time.monotonic() < end and not stopping.is_urgent():
            self.thread.join(WAKE_S)


def of_run(config: Any) -> Target:
    """The target of a run that is about to begin, by its options, which have a `--mirror`.
    UserError where it cannot be written, or holds another run of this name."""
    folder = Path(config.output_dir) / (config.run_name or "run")
    check_place(config.mirror, folder)
    target = Target.opened("mirror", config.mirror)
    run = Target.opened("mirror", f"{config.mirror}/{folder.name}")
    with fetching.reaching("mirror", config.mirror):
        with tempfile.NamedTemporaryFile(prefix=".write-test-") as trial:
            path = Path(trial.name)
            target.put(path, path.name)
            target.remove(path.name)
        theirs = run.read(ORIGIN) or run.read(CONFIG)
        steps = steps_of(fetching.to_fetch(run.sizes()))  # the others had not arrived whole
    if theirs:
        check_same(run, folder, theirs, steps)
    return run


def check_place(mirror: str, folder: Path) -> None:
    """UserError for a folder that the run's lies in, such as `/`, or that lies in a run's."""
    if fetching.scheme(mirror) not in ("file", "local"):
        return
    place = expanded(mirror.partition("://")[2] if fetching.is_url(mirror) else mirror).resolve()
    in_run = any((above / CONFIG).exists() for above in (place, *place.parents))
    if folder.resolve().is_relative_to(place) or in_run:
        why = "lies in a run's folder" if in_run else f"is no other place than {folder}"
        raise UserError(f"mirror {mirror} {why}: set --mirror to another folder, or to none")


def check_same(run: Target, folder: Path, theirs: bytes, steps: set[str]) -> None:
    """UserError where the mirror holds another run of this name, or is further than it is here."""
    ours = origin.read(folder)
    if not ours.started or origin.parsed(theirs).started != ours.started:
        raise UserError(
            f"mirror {run.url} holds another run: set another --run_name, or continue that one "
            f"with --resume {run.url}"
        )
    here = max((path.name for path in (folder / CHECKPOINTS).glob("step_*")), default="step_000000")
    there = max(steps, default=here)
    if there > here:
        raise UserError(
            f"mirror {run.url} is at {there}, and {folder} at {here}: continue the former with "
            f"--resume {run.url} --output_dir another, or set another --mirror"
        )

"""The trackers of a run, fed by the loop: what one of them raises, or that it hangs, costs a note
and that tracker, never the run."""

import json
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unslothrl.files import write_whole
from unslothrl.redaction import redacted
from unslothrl.tracking import trackers
from unslothrl.tracking.metrics import is_number
from unslothrl.tracking.trackers import TrackedRun, Tracker
from unslothrl.types import Group
from unslothrl.untrusted import read_object

IDS = "trackers.json"  # in the run's folder: tracker -> the id of the run there
MOST_IDS = 1 << 16  # bytes
MOST_WAITING = 1000  # calls that a tracker has not taken, before it is given up
CLOSE_S = 60.0  # that trackers have in the end to write and send what is left
SAMPLES = 4  # completions of each evaluation set, the first of its first problems
MOST_SETS = 4
MOST_TEXT = 4000  # characters of a text in a table

Start = Callable[[str, TrackedRun], Tracker]


def start_tracker(name: str, run: TrackedRun) -> Tracker:
    return trackers.load(name).start(run)


class Trackers:
    """All trackers of a run; none unless `start` is called."""

    def __init__(
        self,
        names: Sequence[str] = (),
        folder: Path = Path(),
        config: Mapping[str, Any] | None = None,
        note: Callable[[str], None] = print,
        start: Start = start_tracker,
    ):
        """`config` is in JSON's types; `note` gets a line for each tracker that fails."""
        self.names, self.folder, self.config = trackers.wanted(names), folder, config or {}
        self.note, self.start_one = note, start
        self.threads: list[TrackerThread] = []

    def start(self, resumed_at: int | None = None) -> None:
        """Begins the run in every tracker, or goes on after a step."""
        ids = run_ids(self.folder, self.names) if self.names else {}
        for name in self.names:
            run = TrackedRun(self.folder.name, ids[name], self.folder, self.config, resumed_at)
            self.threads.append(TrackerThread(name, partial(self.start_one, name, run)))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """The numbers of a row of metrics.jsonl."""
        numbers = {name: value for name, value in metrics.items() if is_number(value)}
        numbers.pop("step", None)
        self._tell(lambda tracker: tracker.log(step, numbers))

    def samples(self, step: int, drawn: Mapping[str, Sequence[Group]]) -> None:
        """Of what an evaluation drew, by set, a few completions."""
        if self.threads:
            rows = list(sample_rows(drawn))
            self._tell(lambda tracker: tracker.samples(step, rows))

    def close(self, status: str, within_s: float = CLOSE_S) -> None:
        """Ends the run in every tracker; those that do not return in time are left behind."""
        end = time.monotonic() + within_s
        for thread in self.threads:
            thread.tell(lambda tracker: tracker.close(status))
            thread.tell(None)
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive() and thread.failure is None:
                thread.failure = f"it has not finished within {within_s:.0f} s"
        self._drop_failed()
        self.threads = []

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for thread in self.threads:
            thread.tell(call)
        self._drop_failed()

    def _drop_failed(self) -> None:
        for thread in self.threads:
            if thread.failure is not None:
                self.note(f"track {thread.name}: {thread.failure}: nothing more is logged there")
        self.threads = [thread for thread in self.threads if thread.failure is None]


class TrackerThread(threading.Thread):
    """Does one tracker's calls, in order. It is a daemon: one that hangs does not hold the run."""

    def __init__(self, name: str, start: Callable[[], Tracker]):
        super().__init__(name=name, daemon=True)
        self.calls: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(MOST_WAITING)
        self.start_tracker = start
        self.failure: str | None = None
        self.start()

    def tell(self, call: Callable[[Tracker], None] | None) -> None:
        """Queues a call; None ends the thread."""
        try:
            self.calls.put_nowait(call)
        except queue.Full:
            self.failure = self.failure or f"it has not taken the last {MOST_WAITING} calls"

    def run(self) -> None:
        try:
            tracker = self.start_tracker()
            while (call := self.calls.get()) is not None:
                call(tracker)
        except BaseException as error:  # SystemExit included: it must not end more than this thread
            said = " ".join(redacted(str(error), guess=True).split())
            self.failure = f"{type(error).__name__}: {said:.300}"


def run_ids(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Tracker -> the run's id there, kept in the run's folder for a resume."""
    path = folder / IDS
    try:
        ids = {name: str(value) for name, value in read_object(path, MOST_IDS).items()}
    except ValueError:  # none yet, or damaged
        ids = {}
    new = {name: secrets.token_hex(4) for name in names if name not in ids}
    if new:
        write_whole(path, json.dumps(ids | new, indent=1).encode() + b"\n")
    return ids | new


def sample_rows(drawn: Mapping[str, Sequence[Group]]) -> Iterator[dict[str, Any]]:
    """The first candidate of the first problems of each evaluation set, long texts cut."""
    for name, groups in list(drawn.items())[:MOST_SETS]:
        for group in groups[:SAMPLES]:
            completion = group.completions[0]
            yield {
                "set": name,
                "task": group.task.id,
                "prompt": cut(group.task.prompt),
                "answer": cut(group.task.answer),
                "completion": cut(completion.text),
                "score": group.scores[0],
                "finish_reason": completion.finish_reason,
                "tokens": sum(completion.version_counts.values()),
            }


def cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + " ..."

"""What a process does in a part of a step, recorded by torch's profiler while it is asked to.

A recording is of one call of a method, and ends after `MOST_S` seconds: a second has some 100,000
events. torch is imported when one begins, and nothing is done here in other steps.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARTS = ("generation", "measuring", "update")
MOST_S = 2.0  # of a part of a step
MOST_BYTES = 32 << 20  # of a trace, compressed; a larger one is left out
SHOWN = 12  # operators of a recording's table
NAME_WIDTH = 44


@dataclass(frozen=True, slots=True)
class Recording:
    """A part of a step in a process, e.g. ("actor-0", "generation")."""

    process: str
    part: str
    seconds: float
    trace: bytes  # Chrome's trace format, gzip; empty where it was too large
    table: str  # of its operators


class Profiler:
    """Of one process: records each part once after `arm`."""

    def __init__(self, process: str):
        self.process = process
        self.armed: set[str] = set()
        self.recordings: list[Recording] = []
        self.running: Any = None  # torch's
        self.part_name, self.began, self.ticks = "", 0.0, 0

    def arm(self) -> None:
        """Records the next call of every part."""
        self.armed = set(PARTS)

    def take(self) -> list[Recording]:
        """What has been recorded since `arm`; no more is recorded."""
        self.armed = set()
        recordings, self.recordings = self.recordings, []
        return recordings

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Around a call; parts inside it belong to it."""
        if name not in self.armed or self.running is not None:
            yield
            return
        from torch.profiler import profile

        self.part_name, self.ticks, self.began = name, 0, time.perf_counter()
        self.running = profile()  # of the CPU, and of the GPU where there is one
        self.running.start()
        try:
            yield
        finally:
            self._stop()

    def tick(self) -> None:
        """After each step of an engine and each micro-batch: ends a recording that is long."""
        self.ticks += 1
        if self.running is not None and time.perf_counter() - self.began > MOST_S:
            self._stop()

    def _stop(self) -> None:
        """Ends the recording that runs; one without a step of the engine is tried again."""
        if self.running is None:
            return
        running, self.running = self.running, None
        seconds = time.perf_counter() - self.began
        running.stop()
        if self.ticks:
            self.armed.discard(self.part_name)
            found = trace_of(running), table_of(running)
            self.recordings.append(Recording(self.process, self.part_name, seconds, *found))


def trace_of(running: Any) -> bytes:
    """The file that Perfetto and chrome://tracing open."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        running.export_chrome_trace(str(path))
        return path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""


def table_of(running: Any) -> str:
    """torch's own table: the operators with the most own time, on the device where it was used."""
    events = running.key_averages()
    kind = "device" if any(event.self_device_time_total for event in events) else "cpu"
    table = events.table(f"self_{kind}_time_total", SHOWN, max_name_column_width=NAME_WIDTH)
    return str(table)

"""Adapters that are damaged between the learner and an actor, on runs with processes under Ray.

A learner's adapter lies in Ray's object store, a shared memory that Ray's raylet has open; vLLM
reads it from a file in a folder of the run. Both are changed here from outside of the run.
"""

import contextlib
import glob
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from injections import Place, flip
from small_runs import STEPS, Cost, Training, compared, whole_run

from unslothrl.system.variables import PROCESS

TRANSFORMERS = ["--engine", "transformers"]
VLLM = ["--engine", "vllm"]
ONE_ACTOR = ["--learner", "grpo", "--number_of_actors", "1", "--learner_chunk_size", "0"]
BEGINS = b'{"base_model.model.'  # an adapter, after the length of its header
PUBLISHED_S = 8.0  # in which a learner has published on a busy machine
TIMES = 5  # that files are damaged in a run before they are read, if it has so many versions


def damaged_object(place: Place) -> Cost:
    """A flipped bit in what the actor fetches. It is stopped while it has nothing to do, until the
    version is there and damaged."""
    flags = [*ONE_ACTOR, *TRANSFORMERS]
    whole = whole_run(place.wholes, "whole-ray", *flags, is_new=True)
    version = place.draw.randrange(1, STEPS + 1)
    training = Training(place.folder, *flags, phase=("publish", version + 1), is_new=True)
    training.wait_for(version - 1)
    driver = training.process.pid
    while (actor := process_named("actor-0", driver)) is None:
        assert training.process.poll() is None, training.output
    training.at_phase()
    actor.send_signal(signal.SIGSTOP)
    try:
        store = Store.of(driver)
        store.wait_for_another()
        where = store.flip_all(place.draw)
    finally:
        actor.send_signal(signal.SIGCONT)
    says = "arrived damaged"
    cost = Cost(f"v{version}, byte {where}", training.ends(), training.said(says))
    if not cost.said:
        cost.wrong.append("nobody has noticed")
    return compared(place.folder, whole, cost)


class Store:
    """Ray's object store."""

    def __init__(self, path: str):
        self.file = os.open(path, os.O_RDWR)

    @classmethod
    def of(cls, driver: int) -> "Store":
        """Of the run whose driver has that id."""
        for process in psutil.Process(driver).children(recursive=True):
            if process.name() == "raylet":
                for number in os.listdir(folder := f"/proc/{process.pid}/fd"):
                    if "plasma" in os.readlink(path := f"{folder}/{number}").lower():
                        with contextlib.suppress(OSError):  # a socket of that name
                            return cls(path)
        raise AssertionError("Ray has no store")

    def adapters(self) -> Iterator[tuple[int, bytes]]:
        """(where it begins, its bytes) of each that lies in the store, or has."""
        for begin, content in self.written():
            found = content.find(BEGINS)
            while found >= 0:
                with contextlib.suppress(ValueError):  # of one that is partly overwritten
                    yield begin + found - 8, whole_at(content, found - 8)
                found = content.find(BEGINS, found + 1)

    def written(self) -> Iterator[tuple[int, bytes]]:
        """The parts of the file that are not holes."""
        end = 0
        with contextlib.suppress(OSError):  # there are no more
            while True:
                begin = os.lseek(self.file, end, os.SEEK_DATA)
                end = os.lseek(self.file, begin, os.SEEK_HOLE)
                yield begin, os.pread(self.file, end - begin, begin)

    def wait_for_another(self) -> None:
        """Until there is another version; it may have come before."""
        known, end = set(self.adapters()), time.monotonic() + PUBLISHED_S
        while set(self.adapters()) <= known and time.monotonic() < end:
            time.sleep(0.1)

    def flip_all(self, draw: random.Random) -> int:
        """Flips one bit of the newest version, and of what is left of older ones. -> which byte"""
        where = -1
        for begin, content in list(self.adapters()):
            first = 8 + int.from_bytes(content[:8], "little")  # of its tensors
            where = draw.randrange(first, len(content))
            value = content[where] ^ 1 << draw.randrange(8)
            os.pwrite(self.file, bytes([value]), begin + where)
        return where


def whole_at(content: bytes, begin: int) -> bytes:
    """The safetensors file that begins there. ValueError where there is none."""
    end = begin + 8 + int.from_bytes(content[begin : begin + 8], "little")
    header = json.loads(content[begin + 8 : end])
    size = max(each["data_offsets"][1] for each in header.values())
    return content[begin : end + size]


def process_named(name: str, driver: int) -> psutil.Process | None:
    """An actor or a learner of the run whose driver has that id; None where there is none."""
    for process in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.Error, IndexError):
            if process.environ().get(PROCESS) == name and process.cmdline()[0].startswith("ray::"):
                return process
    return None


def damaged_file(place: Place, damage: Callable[[Path, random.Random], None]) -> Cost:
    """The file that vLLM is about to read, as soon as it is there, of `TIMES` versions."""
    flags = [*ONE_ACTOR, *VLLM]
    whole = whole_run(place.wholes, "whole-vllm", *flags, is_new=True)
    training = Training(place.folder, *flags, is_new=True)
    first: dict[str, Path] = {}  # of each version
    damaged: set[str] = set()
    again: set[str] = set()  # versions that the actor has written once more because of it
    while training.process.poll() is None:
        for path in versions():
            version = path.parent.name.split("-")[0]
            if first.setdefault(version, path) != path:
                again.add(version)
            elif version not in damaged and len(again) < TIMES:
                damaged.add(version)
                with contextlib.suppress(OSError):
                    damage(path, place.draw)
    says = "nothing: it is written again"
    at = f"{len(again)} of {len(first)} versions in time"
    cost = Cost(at, training.ends(), says, times=len(again))
    if not again:
        cost.wrong.append("all were read before they were damaged")
    return compared(place.folder, whole, cost)


def versions() -> Iterator[Path]:
    """The files that vLLM reads of the adapter's versions, of all runs on this machine."""
    for room in ("/dev/shm", "/tmp"):
        found = glob.glob(f"{room}/unslothrl-*/**/v*/adapter_model.safetensors", recursive=True)
        yield from map(Path, found)  # Path's own glob raises where a folder vanishes meanwhile


def flip_a_bit(path: Path, draw: random.Random) -> None:
    where = draw.randrange(path.stat().st_size - 10_000, path.stat().st_size)
    flip(path, where, 1 << draw.randrange(8))


def vanish(path: Path, draw: random.Random) -> None:
    path.unlink()

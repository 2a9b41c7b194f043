"""Engines that sleep on one card: one at a time, also where a process dies."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unslothrl.embedded import BASE
from unslothrl.engines.vllm import VllmEngine
from unslothrl.engines.vllm_internals import sleep_lock
from unslothrl.system.variables import SCRATCH, VISIBLE

LOCK = f"unslothrl-{os.getuid()}-card-0.lock"


@pytest.fixture(autouse=True)
def card_0(monkeypatch):
    monkeypatch.setenv(VISIBLE, "0")


def is_free(lock: Path) -> bool:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


class Llm:
    """Notes whether the lock was taken when it was told to sleep or to wake."""

    def __init__(self, lock: Path):
        self.lock, self.locked = lock, []

    def sleep(self, level: int) -> None:
        self.locked.append(("sleep", not is_free(self.lock)))

    def wake_up(self) -> None:
        self.locked.append(("wake", not is_free(self.lock)))


def test_an_engine_sleeps_and_wakes_under_the_lock_of_its_card(tmp_path, monkeypatch):
    monkeypatch.setenv(SCRATCH, str(tmp_path))
    llm = Llm(tmp_path / LOCK)
    engine = VllmEngine(llm, BASE, takes_turns=True)
    engine.wake()
    engine.sleep()
    assert llm.locked == [("sleep", True), ("wake", True), ("sleep", True)]
    assert is_free(llm.lock)


def test_a_process_that_dies_leaves_the_lock_free(tmp_path):
    program = f"""
import os
from unslothrl.engines.vllm_internals import sleep_lock
with sleep_lock({str(tmp_path)!r}):
    print("held", flush=True)
    os.read(0, 1)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    assert not is_free(tmp_path / LOCK)
    child.kill()
    child.communicate()
    with sleep_lock(str(tmp_path)):
        assert not is_free(tmp_path / LOCK)
    assert is_free(tmp_path / LOCK)


def test_what_a_link_of_that_name_leads_to_is_left_alone(tmp_path):
    """In a folder that everybody writes to."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError), sleep_lock(str(tmp_path)):
        pass
    assert (tmp_path / "mine").read_text() == "mine"

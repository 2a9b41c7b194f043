"""Engines that sleep on one card: one at a time, also where a process dies."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


def test_an_engine_sleeps_and_wakes_under_the_lock_of_its_card(tmp_path, monkeypatch):
    monkeypatch.setenv(SCRATCH, str(tmp_path))
    lock, told = tmp_path / LOCK, []
    llm = SimpleNamespace(
        sleep=lambda level: told.append(("sleep", is_free(lock))),
        wake_up=lambda: told.append(("wake", is_free(lock))),
    )
    engine = VllmEngine(llm, BASE, takes_turns=True)
    engine.wake()
    engine.sleep()
    assert told == [("sleep", False), ("wake", False), ("sleep", False)] and is_free(lock)


def test_a_process_that_dies_leaves_the_lock_free(tmp_path):
    program = (
        "from unslothrl.engines.vllm_internals import sleep_lock\n"
        f"with sleep_lock({str(tmp_path)!r}): print('held', flush=True); input()"
    )
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

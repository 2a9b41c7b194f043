"""One process at a time trains into a folder: real locks, real processes."""

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys

import pytest

from unslothrl.errors import UserError
from unslothrl.tracking import run_lock
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.run_lock import RunLock

HOLDS = (
    "import sys, os; from pathlib import Path; from unslothrl.tracking.run_lock import RunLock\n"
    "lock = RunLock.take(Path(sys.argv[1]))\n"
    "child = os.fork()\n"
    "print('held', flush=True) if child else None\n"
    "sys.stdin.read()"
)


class Holder:
    """A process that holds the lock, with a child of its own."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "held\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def holder(tmp_path):
    held = Holder(tmp_path)
    yield held
    held.end()
    held.process.stdin.close()  # its child ends


def test_another_process_is_named(tmp_path, holder):
    host, pid = platform.node(), holder.process.pid
    with pytest.raises(UserError, match=rf"is in use by process {pid} on host {host}: wait"):
        RunLock.take(tmp_path)


def test_a_dead_process_holds_nothing_though_its_child_lives(tmp_path, holder):
    holder.end()
    RunLock.take(tmp_path).release()


def test_this_process_takes_it_once(tmp_path):
    lock = RunLock.take(tmp_path)
    with pytest.raises(UserError, match=f"process {os.getpid()}"):
        RunLock.take(tmp_path)
    lock.release()
    lock.release()
    RunLock.take(tmp_path).discard()
    assert list(tmp_path.iterdir()) == []


def without_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "no locks here")


def test_where_there_are_no_locks_the_file_says_who(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(fcntl, "lockf", without_locks)
    with pytest.raises(UserError, match=f"process {holder.process.pid}"):
        RunLock.take(tmp_path)
    holder.end()
    RunLock.take(tmp_path).release()


def test_a_process_of_the_same_number_is_another_one(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "lockf", without_locks)
    named = {"pid": 1, "host": platform.node(), "started": "12"}
    (tmp_path / run_lock.LOCK).write_text(json.dumps(named))
    RunLock.take(tmp_path).release()
    named["started"] = run_lock.start_of(1)
    (tmp_path / run_lock.LOCK).write_text(json.dumps(named))
    with pytest.raises(UserError, match="process 1 on"):
        RunLock.take(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": "x"}', "\x00" * 9000])
def test_any_content_is_no_holder(tmp_path, content):
    (tmp_path / run_lock.LOCK).write_text(content)
    RunLock.take(tmp_path).release()


def test_a_run_folder_is_locked_from_its_creation_on(tmp_path):
    folder = RunFolder.create(tmp_path, "x", "")
    with pytest.raises(UserError, match="in use by process"):
        RunFolder.create(tmp_path, "x", "")
    with pytest.raises(UserError, match="in use by process"):
        RunFolder.reopen(tmp_path / "x")
    folder.close()
    with pytest.raises(UserError, match="already holds a run"):
        RunFolder.create(tmp_path, "x", "")
    RunFolder.reopen(tmp_path / "x").close()


def test_what_a_link_leads_to_is_not_emptied(tmp_path):
    """A run's folder may be another's."""
    (tmp_path / "run").mkdir()
    (tmp_path / "mine").write_text("mine")
    lock = tmp_path / "run" / ".lock"
    lock.symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match=r"/\.lock is a link: remove it$"):
        RunLock.take(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(UserError, match=r"/\.lock is not a regular file: remove it$"):
        RunLock.take(tmp_path / "run")
    lock.unlink()
    lock.symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match="is a link"):
        RunLock.take(tmp_path / "run")
    assert not (tmp_path / "new").exists()

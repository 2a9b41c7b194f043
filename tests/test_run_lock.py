"""One process at a time trains into a folder: real locks, real processes."""

import platform
import subprocess
import sys

import pytest

from unslothrl.errors import UserError
from unslothrl.tracking.run_folder import LOCK, RunFolder, is_free, locked

HOLDS = (
    "import sys, os; from pathlib import Path; from unslothrl.tracking.run_folder import locked\n"
    "lock = locked(Path(sys.argv[1]))\n"
    "child = os.fork()\n"
    "print('held', flush=True) if not child else None\n"
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
    assert not is_free(tmp_path)
    with pytest.raises(UserError, match=rf"process {pid} on host {host}:"):
        locked(tmp_path)


def test_a_killed_process_holds_nothing_though_its_child_lives(tmp_path, holder):
    holder.end()
    locked(tmp_path).release()


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
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError):
        locked(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("content", ["", "{"])
def test_any_content_is_no_holder(tmp_path, content):
    (tmp_path / LOCK).write_text(content)
    locked(tmp_path).release()

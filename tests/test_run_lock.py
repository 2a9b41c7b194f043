"""One process at a time trains into a folder: real locks, real processes."""

import platform
import subprocess
import sys

import pytest

from unslothrl.errors import UserError
from unslothrl.tracking.run_folder import LOCK, RunFolder, is_free, locked

HOLDS = """
import os, sys
from pathlib import Path
from unslothrl.tracking.run_folder import locked
lock = locked(Path(sys.argv[1]))
if not os.fork(): print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_named_until_it_is_killed_though_its_child_lives(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    assert not is_free(tmp_path)
    with pytest.raises(UserError, match=rf"process {holder.pid} on host {platform.node()}:"):
        locked(tmp_path)
    holder.kill()
    holder.wait()
    locked(tmp_path).release()
    holder.stdin.close()  # its child ends


def test_a_run_folder_is_locked_from_its_creation_on(tmp_path):
    folder = RunFolder.create(tmp_path, "x", "")
    with pytest.raises(UserError, match="in use by process"):
        RunFolder.create(tmp_path, "x", "")
    with pytest.raises(UserError, match="in use by process"):
        RunFolder.reopen(tmp_path / "x")
    folder.close()
    RunFolder.reopen(tmp_path / "x").close()


def test_what_a_link_leads_to_is_not_emptied(tmp_path):
    """A run's folder may be another's."""
    (tmp_path / "run").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError):
        locked(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"


def test_any_content_is_no_holder(tmp_path):
    for content in ("", "{"):
        (tmp_path / LOCK).write_text(content)
        locked(tmp_path).release()

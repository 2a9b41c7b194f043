"""Deadlines of the processes that rewards run in, whatever their pipes hold."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from users import AS_NOBODY, copy_package, python_for_everyone

from unslothrl.rewards.calls import Call
from unslothrl.rewards.processes import ProcessPool

pytestmark = pytest.mark.real

PAGE = 4096

FUNCTIONS = """
import time
def length(text):
    return len(text)
def stalls(text):
    time.sleep(1000)
"""


@pytest.fixture
def functions(tmp_path) -> str:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    return str(tmp_path / "functions.py")


def small_pipes(pool: ProcessPool) -> None:
    for process in (*pool.working, pool.spare):
        assert fcntl.fcntl(process.child.stdin, fcntl.F_SETPIPE_SZ, PAGE) == PAGE


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe can be set on Linux")
def test_a_deadline_holds_though_a_pipe_has_a_single_page(functions):
    lengths = range(0, 20 * PAGE, PAGE // 2)
    with ProcessPool(2, deadline_s=0.5) as pool:
        pool.call([Call(f"{functions}:length", ("",))] * 4)
        small_pipes(pool)
        results = pool.call([Call(f"{functions}:length", ("x" * n,)) for n in lengths], ahead=32)
        assert [result.value for result in results] == list(lengths)
        stalls = Call(f"{functions}:stalls", ("",))
        pool.call([stalls], ahead=32)
        small_pipes(pool)
        started = time.monotonic()
        after = [Call(f"{functions}:length", ("x" * 2 * PAGE,))] * 40  # several wait in its pipe
        results = pool.call([stalls, *after], ahead=32)
        assert time.monotonic() - started < 5
    assert [result.value for result in results] == [None] + [2 * PAGE] * 40
    assert results[0].error is not None and results[0].error.startswith("took longer than 0.5 s")


def test_a_deadline_holds_though_a_process_reads_nothing(functions):
    with ProcessPool(1, deadline_s=0.5) as pool:
        pool.call([Call(f"{functions}:length", ("",))])
        os.kill(pool.working[0].child.pid, signal.SIGSTOP)
        started = time.monotonic()
        results = pool.call([Call(f"{functions}:length", ("x" * 10**6,))] * 2)
        assert time.monotonic() - started < 5
    assert [result.value for result in results] == [None, 10**6]


# As a user whose pages of pipes are used up, so that new pipes get a page or two.
EXHAUSTED = """
import fcntl, json, os, resource, sys, time
from unslothrl.rewards.calls import Call
from unslothrl.rewards.processes import ProcessPool
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
held = []
while True:
    pair = os.pipe()
    held.append(pair)
    if fcntl.fcntl(pair[0], fcntl.F_GETPIPE_SZ) < 1 << 16:
        break
    assert len(held) < 40000
functions = sys.argv[1]
with ProcessPool(2, deadline_s=1.0) as pool:
    size = fcntl.fcntl(pool.working[0].child.stdin, fcntl.F_GETPIPE_SZ)
    pool.call([Call(functions + ":length", ("",))] * 4)
    started = time.monotonic()
    after = [Call(functions + ":length", ("x" * 8192,))] * 40
    results = pool.call([Call(functions + ":stalls", ("",)), *after], 32)
    seconds = time.monotonic() - started
print(json.dumps([size, [result.value for result in results], results[0].error, seconds]))
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="it becomes another user")
def test_a_deadline_holds_though_a_user_has_no_room_for_pipes(tmp_path_factory):
    python = python_for_everyone()
    if python is None:
        pytest.skip("no Python that user nobody could start")
    folder = tmp_path_factory.mktemp("nobody")
    for parent in (folder, *folder.parents):  # pytest's folders are for their owner alone
        if parent == Path(tempfile.gettempdir()):
            break
        os.chmod(parent, 0o755)
    copy_package(folder)
    (folder / "functions.py").write_text(FUNCTIONS)
    done = subprocess.run(
        [*AS_NOBODY, python, "-B", "-c", EXHAUSTED, folder / "functions.py"],
        capture_output=True, text=True, cwd=folder, timeout=60,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    size, values, error, seconds = json.loads(done.stdout)
    assert size < 1 << 16 and values == [None] + [8192] * 40
    assert error.startswith("took longer than 1 s") and seconds < 10

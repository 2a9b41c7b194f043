"""The processes that rewards run in: their deadlines, whatever their pipes hold, and that no call
pays for what another has done to its process."""

import collections
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from fakes import completed
from few_cases import few

from unslothrl import rewards
from unslothrl.rewards.processes import STRAY, ProcessPool, RewardCall, RewardProcess
from unslothrl.rewards.scorer import Scorer

pytestmark = pytest.mark.real

# Writes to each descriptor that it has, also to those that can only be opened for writing anew.
STREWING = """
import os, random, threading
def honest(row):
    return row
def writes(row, writes, in_background):
    if in_background:
        threading.Thread(target=strew, args=(row, writes), daemon=True).start()
    else:
        strew(row, writes)
    return row
def strew(row, writes):
    rng = random.Random(row)
    for number in map(int, os.listdir("/proc/self/fd")):
        for _ in range(writes):
            data = rng.choice([
                b"[0.5, null]\\n", b"\\n", b"[0.5", b"9", rng.randbytes(40),
                rng.randbytes(16).hex().encode() + b"[0.5, null]\\n",
                b'["token", "functions:honest", [0.5], {}]\\n',
            ])
            for is_new in (False, True):
                try:
                    flags = os.O_WRONLY | os.O_NONBLOCK
                    to = os.open(f"/proc/self/fd/{number}", flags) if is_new else number
                    os.write(to, data)
                    if is_new:
                        os.close(to)
                except OSError:
                    pass
"""


NEVER = """
import os
def never(told):
    with open(told, "w") as file:
        file.write(str(os.getpid()))
    while True:
        pass
"""
ASKS = """
import sys
from unslothrl.rewards.processes import ProcessPool, RewardCall
ProcessPool(1, deadline_s=1000).call([RewardCall(sys.argv[1], (sys.argv[2],))])
"""


def test_a_call_that_never_ends_ends_with_whoever_is_killed_that_asked(tmp_path):
    (tmp_path / "never.py").write_text(NEVER)
    told = tmp_path / "told"
    os.mkfifo(told)
    words = [sys.executable, "-c", ASKS, f"{tmp_path}/never.py:never", str(told)]
    with subprocess.Popen(words) as asking:
        process = psutil.Process(int(told.read_text()))
        asking.kill()
    _, left = psutil.wait_procs([process], timeout=20)
    for each in left:
        each.kill()
    assert not left


def test_a_deadline_holds_though_a_process_reads_nothing(tmp_path):
    (tmp_path / "length.py").write_text("def length(text):\n    return len(text)\n")
    with closing(ProcessPool(1, deadline_s=0.5)) as pool:
        pool.call([RewardCall(f"{tmp_path}/length.py:length", ("",))])
        os.kill(pool.processes[0].child.pid, signal.SIGSTOP)
        started = time.monotonic()
        results = pool.call([RewardCall(f"{tmp_path}/length.py:length", ("x" * 10**6,))] * 2)
        assert time.monotonic() - started < 5
    assert [result.value for result in results] == [None, 10**6]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("in_background", few([False, True]))
def test_nothing_that_a_function_writes_moves_a_score(in_background, tmp_path, capfd):
    (tmp_path / "stray.py").write_text(STREWING)
    rows, writing = range(80), range(0, 80, 4)  # 20 rows, 50 writes to each descriptor in each
    honest = [RewardCall(f"{tmp_path}/stray.py:honest", (row,)) for row in rows]
    calls = list(honest)
    for row in writing:
        calls[row] = RewardCall(f"{tmp_path}/stray.py:writes", (row, 50, in_background))
    with closing(ProcessPool(2, shows_prints=True)) as pool:
        pool.call([RewardCall("math:sqrt", (4,))])
        before = {process.child.pid for process in pool.processes}
        results = pool.call(calls)
        after = {process.child.pid for process in pool.processes}
        assert in_background or not before & after  # a thread may write when all is done
        again = pool.call(honest)
    assert all(
        result.error or result.value == row % 80 for row, result in enumerate(results + again)
    )
    failed = [row for row, result in enumerate(results) if result.error]
    reasons = {results[row].error for row in failed}
    assert reasons <= {STRAY, "ended its process", "its process had ended"}
    if not in_background:
        assert failed == list(writing)
        assert [result.value for result in again] == list(rows)
    assert "Traceback" not in capfd.readouterr().err


# A call leaves a thread behind, which acts when a later call of its process tells it to. One
# function, as a file is imported for each of its functions.
LEAVING = """
import os, threading
told, thread = threading.Event(), None
def call(row, what="is plain"):
    global thread
    with open(__file__ + ".made", "a") as file:
        print(row, file=file)
    if what == "ends at once":
        os._exit(1)
    if what == "tells" and thread is not None:
        told.set()
        thread.join()
    elif what.startswith(("writes", "ends")):
        thread = threading.Thread(target=act, args=(what,), daemon=True)
        thread.start()
    return row
def act(what):
    told.wait()
    if what == "ends":
        os._exit(1)
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            os.write(number, b"[0.5]" if what == "writes a part" else b"[0.5]\\n" * 3)
        except OSError:
            pass
def batch(completions):
    return [call(row, what) for row, what in enumerate(completions)]
"""


@pytest.fixture
def leaving(tmp_path) -> str:
    (tmp_path / "leaving.py").write_text(LEAVING)
    return str(tmp_path / "leaving.py")


def times_made(path: str) -> dict[int, int]:
    """row -> how often its call was begun."""
    return collections.Counter(map(int, Path(path + ".made").read_text().split()))


def kill_idle(processes: list[RewardProcess]) -> None:
    """As the system does where memory is short; returns once they have ended."""
    for process in processes:
        os.kill(process.child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.child.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("has_answered", [False, True])
def test_processes_that_are_killed_while_idle_cost_no_call(has_answered, leaving):
    calls = [RewardCall(f"{leaving}:call", (row,)) for row in range(6)]
    with closing(ProcessPool(2)) as pool:
        pool.call([RewardCall("math:sqrt", (4,))])
        if has_answered:
            pool.call([RewardCall(f"{leaving}:call", (row,)) for row in range(6, 12)])
        kill_idle(pool.processes)
        assert [result.value for result in pool.call(calls)] == list(range(6))
    assert set(times_made(leaving).values()) == {1}


@pytest.mark.parametrize("act", ["writes", "writes a part", "ends"])
def test_what_a_call_has_left_behind_costs_no_other_call(act, leaving):
    calls = [RewardCall(f"{leaving}:call", (row,)) for row in range(20)]
    for row in (3, 10):
        calls[row] = RewardCall(f"{leaving}:call", (row, act))
        calls[row + 4] = RewardCall(f"{leaving}:call", (row + 4, "tells"))
    with closing(ProcessPool(1)) as pool:
        results = pool.call(calls)
    assert [(result.value, result.error) for result in results] == [(i, None) for i in range(20)]
    # again where it may not have been the call's own doing
    assert times_made(leaving) == {row: 2 if row in (7, 14) else 1 for row in range(20)}


def test_a_batch_pays_for_nothing_that_another_has_left_behind(leaving):
    with closing(Scorer(rewards.choose((f"{leaving}:batch",)))) as scorer:
        for texts in (["ends", "is plain"], ["tells", "is plain", "is plain"]):
            found = scorer.score([completed(text, 1, "7") for text in texts])
            assert found.rewards["batch"] == list(map(float, range(len(texts))))
            assert found.failures == []
        kill_idle(scorer.custom_processes.processes)
        found = scorer.score([completed(text, 1, "7") for text in ["is plain"] * 3])
        assert (found.rewards["batch"], found.failures) == ([0.0, 1.0, 2.0], [])
    assert times_made(leaving) == {0: 4, 1: 3, 2: 2}  # three batches; "tells" was called twice


def test_a_call_that_ends_its_process_fails_alone(leaving):
    whats = ["is plain", "ends at once"] * 5
    with closing(ProcessPool(1)) as pool:
        results = pool.call([RewardCall(f"{leaving}:call", pair) for pair in enumerate(whats)])
    assert [result.value for result in results] == [None if row % 2 else row for row in range(10)]
    assert {result.error for result in results[1::2]} == {"ended its process"}
    # each after a plain one
    assert times_made(leaving) == {row: 2 if row % 2 else 1 for row in range(10)}

"""The run folder, with real files, and numbers as text."""

import errno
import itertools
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from fakes import group
from rich.console import Console

from unslothrl.checkpoints.store import RunState
from unslothrl.config.options import Config
from unslothrl.errors import ProcessLost, RunError, UserError
from unslothrl.files import newest_numbered
from unslothrl.records import Call, Failure, Transcript, Turn
from unslothrl.runs.resolve import Resolved
from unslothrl.runs.rl import RlRun
from unslothrl.tracking import metrics
from unslothrl.tracking.rows import read_jsonl, rollout_rows
from unslothrl.tracking.run_folder import (
    HOLDER,
    LOCK,
    RunFolder,
    free_name,
    is_free,
    is_held,
    json_line,
    locked,
    stop_holder,
)
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.trackers import Trackers
from unslothrl.weights.adapter import Adapter
from unslothrl.weights.adapter_use import Use

CONFIG = 'learner = "grpo"\nlr = 2e-05\nshuffle_rewards = false\n'


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "first", CONFIG)


def test_create_writes_the_config_and_refuses_where_it_cannot(folder, tmp_path):
    assert (folder.path / "config.toml").read_text() == CONFIG
    folder.close()
    with pytest.raises(UserError, match=r"run_name first: .* set another --run_name"):
        RunFolder.create(folder.path.parent, "first", CONFIG)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"output_dir .*file cannot be written"):
        RunFolder.create(tmp_path / "file", "run", CONFIG)


@pytest.mark.parametrize(
    ("error", "options", "stays"),
    [
        (UserError("no such card"), {}, False),
        (UserError("no such card"), {"resume": "runs/first"}, True),
        (RunError("it died"), {}, True),
    ],
)
def test_the_name_of_a_run_that_was_refused_is_free_again(folder, error, options, stays):
    ended(folder, Config(**options)).close("failed", error)
    assert folder.path.exists() == stays == ("status" in folder.read_summary())


def test_runs_that_begin_together_under_one_name_are_each_kept(folder, capsys):
    """Both chose it before either had a folder."""
    config = Config(output_dir=str(folder.path.parent), run_name="first")
    run = RlRun(Resolved(config, frozenset(), ()))
    run.view = Terminal(console=Console(width=200), live=False)
    with run.at_end:
        assert run.begin(Use("embedded", ""), {}, {}) == ["run_name first -> first-2: it is taken"]
        assert run.folder.path == folder.path.with_name("first-2") and is_held(run.folder.path)
        assert 'run_name = "first-2"' in (run.folder.path / "config.toml").read_text()
    assert (folder.path / "config.toml").read_text() == CONFIG


def ended(folder, config, trainer=None, clock=time.monotonic) -> RlRun:
    """A run that is about to end."""
    run = RlRun(Resolved(config, frozenset(), ()))
    run.folder, run.trainer = folder, trainer
    run.trackers = Trackers((), folder.path, {}, print)
    run.view = Terminal(console=Console(width=200), live=False, clock=clock)
    run.earlier = SimpleNamespace(checkpoint=None, step=0) if config.resume else None
    return run


def trainer_after(step: int, error: BaseException | None = None) -> SimpleNamespace:
    """Without an adapter, or one whose learner does not answer."""
    return SimpleNamespace(
        state=RunState(step=step),
        published=error and "a version",
        save_boundary=lambda: False,
        save_last_adapter=mock.Mock(side_effect=error),
    )


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ProcessLost("learner-0", "learner-0 does not answer"), "learner-0 does not answer"),
        (KeyboardInterrupt(), "interrupted again"),
    ],
)
def test_a_run_is_interrupted_in_order_although_its_adapter_cannot_be_had(
    folder, error, why, capsys
):
    run = ended(folder, Config(), trainer_after(3, error))
    run.close("interrupted")
    assert folder.read_summary()["status"] == "interrupted"
    assert f"the last adapter is not saved: {why}" in capsys.readouterr().out
    with pytest.raises(type(error)):
        run.close("finished")


@pytest.mark.parametrize(
    ("step", "checkpoint", "error", "said"),
    [
        (12, 10, None, "continues: after step 10, 2 steps will be repeated\n"),
        (10, 10, RunError("it died"), "continues: after step 10\n"),
        (3, None, None, "continues: from its start, 3 steps will be repeated\n"),
        (0, None, None, "continues: from its start\n"),
    ],
)
def test_a_run_that_ends_early_says_how_it_goes_on(step, checkpoint, error, said, folder, capsys):
    if checkpoint is not None:
        folder.checkpoints.write(RunState(step=checkpoint), b"")
    times = itertools.chain([0.0] * 2, itertools.repeat(75.0))
    run = ended(folder, Config(), trainer_after(step), lambda: next(times))
    run.close("failed" if error else "interrupted", error)
    assert folder.read_summary()["wall_seconds"] == 75
    written = capsys.readouterr().out
    assert said in written and f"--resume {folder.path}\n" in written
    assert error or f"interrupted: {step} steps in 0 s; 1:15 with start and end\n" in written


def test_what_others_have_put_into_a_refused_runs_folder_stays(folder):
    (folder.path / "log.txt").touch()
    folder.discard()
    assert [path.name for path in folder.path.iterdir()] == ["log.txt"]


DIES = """
import os, signal, sys
from unslothrl.tracking.run_folder import RunFolder
def begin(folder):
    (folder / "start").mkdir()
    (folder / "run.json").touch()
    os.kill(os.getpid(), signal.SIGKILL)
RunFolder.create(sys.argv[1], "one", "", begin)
"""


@pytest.mark.real
def test_what_a_kill_leaves_of_a_beginning_is_begun_again(tmp_path):
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert {path.name for path in (tmp_path / "one").iterdir()} == {".lock", "start", "run.json"}
    assert free_name(str(tmp_path), "one") == "one"
    folder = RunFolder.create(tmp_path, "one", "")
    assert {path.name for path in (tmp_path / "one").iterdir()} == {".lock", "config.toml"}
    assert free_name(str(tmp_path), "one") == "one-2"
    (tmp_path / "one" / "config.toml").unlink()
    assert free_name(str(tmp_path), "one") == "one-2"  # a process begins it now
    folder.close()
    (tmp_path / "two").mkdir()
    assert free_name(str(tmp_path), "two") == "two-2"
    (tmp_path / "two" / ".lock").touch()
    assert free_name(str(tmp_path), "two") == "two"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_beginning_that_is_broken_off_leaves_nothing(error, tmp_path):
    def begin(folder):
        (folder / "start").mkdir()
        (folder / "start" / "adapter_model.safetensors").write_bytes(b"half")
        (folder / "data.json").touch()
        raise error

    with pytest.raises(UserError if isinstance(error, OSError) else KeyboardInterrupt):
        RunFolder.create(tmp_path, "one", "", begin)
    assert not list(tmp_path.iterdir())


def test_metrics_are_json_lines_of_which_an_incomplete_last_one_is_cut_by_a_resume(folder):
    folder.log({"step": 1, "x": math.nan, "y": np.float32(0.5), "n": np.int64(3), "z": -math.inf})
    first = {"step": 1, "x": None, "y": 0.5, "n": 3, "z": None}  # null for what JSON lacks
    path = folder.path / "metrics.jsonl"
    assert path.read_text() == json.dumps(first) + "\n"
    with path.open("a") as file:
        file.write('{"step": 2, "rew')
    assert folder.read_metrics() == [first]
    folder.truncate_after(1, 1, 1)
    folder.log({"step": 2})
    assert folder.read_metrics() == [first, {"step": 2}]


def test_resume_deletes_what_came_after_the_step(folder):
    for step in (9, 10, 11):
        folder.log({"step": step})
        folder.write_rows("rollouts", step, [])
        folder.write_rows("evals", step, [])
        folder.checkpoints.write(RunState(step=step), b"", is_best=step == 11)
        folder.save_adapter(Adapter.of(step - 1, b"", "{}"))
    folder.write_summary({"status": "interrupted", "steps": 11})
    folder.truncate_after(10, 10, 9)  # one step has changed nothing
    assert [row["step"] for row in folder.read_metrics()] == [9, 10]
    assert folder.steps_of("rollouts") == [9, 10] == folder.steps_of("evals")
    assert folder.checkpoints.steps() == [10]
    assert not (folder.checkpoints.folder / "best").exists()
    adapters = folder.path / "adapters"
    assert {each.name for each in adapters.iterdir()} == {"v000008", "v000009", "left-v000010"}
    assert newest_numbered(adapters, "v") == adapters / "v000009"
    assert folder.read_summary() == {}
    folder.truncate_after(10, logged=9, version=9)  # its evaluation is to come
    assert [row["step"] for row in folder.read_metrics()] == [9]
    assert (folder.steps_of("rollouts"), folder.steps_of("evals")) == ([9, 10], [9])


def test_rollouts_have_exactly_the_keys_of_the_contract(folder):
    first = replace(group("a", [0.0, 1.0]), advantages=(-1.0, 1.0), chosen=(1,))
    second = replace(group("b", [0.5, 0.5]), chosen=(0, 1))
    path = folder.write_rows("rollouts", 10, rollout_rows([first, second]))
    assert path == folder.path / "rollouts" / "step_000010.jsonl"
    rows = read_jsonl(path)
    assert rows[1] == {
        "task": "a", "candidate": 1, "prompt": "prompt a", "answer": "7", "completion": "",
        "finish_reason": "stop", "rewards": {"accuracy": 1.0}, "score": 1.0, "advantage": 1.0,
        "selected": True, "policy_version": 0,
    }  # fmt: skip
    assert [row["selected"] for row in rows] == [False, True, True, True]
    filtered = rollout_rows([group("a", [1.0, 1.0])])  # count as generated
    assert [(row["advantage"], row["selected"]) for row in filtered] == [(0.0, False)] * 2


def test_rollouts_of_episodes_have_their_turns_and_why_they_are_lost():
    calls = (Call("add", '{"a": 2}'), Call("sub", error="not JSON"))
    turn = Turn("hi", "error: not JSON", 0.5, calls=2, failed_calls=1, tool_calls=calls)
    made = group("a", [0.0, 1.0])
    played, lost = (
        replace(each, transcript=Transcript((turn,), "P", "asked"), finish_reason=end)
        for each, end in zip(made.completions, ("stop", "lost"), strict=True)
    )
    failures = (Failure("accuracy", "late", "", 1), Failure("environment", "exits", "", 1))
    made = replace(made, completions=(played, lost), failures=failures)
    first, second = (json.loads(json_line(row)) for row in rollout_rows([made]))
    assert first["prompt"] == "P" and "lost" not in first and second["lost"] == "exits"
    assert first["turns"] == second["turns"]
    (turn,) = first["turns"]
    assert turn.pop("tool_calls") == [
        {"name": "add", "arguments": '{"a": 2}', "error": ""},
        {"name": "sub", "arguments": "", "error": "not JSON"},
    ]
    assert turn == {
        "reply": "hi", "observation": "error: not JSON", "reward": 0.5, "calls": 2,
        "failed_calls": 1,
    }  # fmt: skip


def test_the_summary_is_json_and_replaced_whole(folder):
    folder.write_summary({"status": "failed", "adapter": folder.path, "best": {"x": math.inf}})
    read = json.loads((folder.path / "summary.json").read_text())
    assert read == {"status": "failed", "adapter": str(folder.path), "best": {"x": None}}
    with pytest.raises(TypeError):
        folder.write_summary({"status": object()})
    assert folder.read_summary() == read
    assert sorted(os.listdir(folder.path)) == [".lock", "config.toml", "summary.json"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (83, "1:23"), (3723, "1:02:03"), (-1, "0 s")],
)
def test_duration(seconds, text):
    assert metrics.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.3412, "0.341"), (12.34, "12.3"), (3105.3, "3,105"), (1.2e-5, "1.2e-05"), (0.0, "0.000"),
     (-0.0031, "-0.0031"), (7, "7"), (None, "-"), (math.nan, "-")],
)  # fmt: skip
def test_short(value, text):
    assert metrics.short(value) == text


def test_sparkline_averages_neighbours_to_fit():
    assert metrics.sparkline([0, 1], 10) == "▁█"
    assert metrics.sparkline([0, 0, 1, 1, 7, 7], 3) == "▁▂█"
    assert metrics.sparkline([2, 2], 10) == "▄▄"
    assert metrics.sparkline([], 10) == metrics.sparkline([1], 0) == ""


# One process at a time trains into a folder: real locks, real processes

HOLDS = """
import os, sys
from pathlib import Path
from unslothrl.tracking.run_folder import locked
lock = locked(Path(sys.argv[1]))
if not os.fork(): print("held", flush=True)
sys.stdin.read()
"""


def started(code: str, folder) -> subprocess.Popen:
    command, pipe = [sys.executable, "-c", code, str(folder)], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def test_another_process_is_named_until_it_is_killed_though_its_child_lives(tmp_path):
    holder = started(HOLDS, tmp_path)
    assert holder.stdout.readline() == "held\n"
    assert not is_free(tmp_path) and is_held(tmp_path)
    with pytest.raises(UserError, match=rf"process {holder.pid} on host {platform.node()}:"):
        locked(tmp_path)
    holder.kill()
    holder.wait()
    locked(tmp_path).release()
    holder.stdin.close()  # its child ends


def test_only_the_process_that_holds_a_folder_is_stopped(tmp_path):
    """Whatever its file says, which may be somebody else's."""
    assert not is_held(tmp_path)
    holder, other = (started(code, tmp_path) for code in (HOLDS, "input()"))
    assert holder.stdout.readline() == "held\n"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / LOCK).symlink_to(tmp_path / LOCK)
    assert is_held(tmp_path) and not is_held(tmp_path / "linked")
    said = (tmp_path / LOCK).read_text()
    for process, host in ((other.pid, platform.node()), (holder.pid, "elsewhere"), (2**30, "x")):
        (tmp_path / LOCK).write_text(HOLDER.format(process, host))
        with pytest.raises(UserError, match=rf"in use by process {process} on host"):
            stop_holder(tmp_path)
    (tmp_path / LOCK).write_text(said)
    stop_holder(tmp_path)
    assert holder.wait() == -signal.SIGTERM and other.poll() is None
    for process in (holder, other):
        process.stdin.close()
    other.wait()


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

"""The run folder, the terminal and the report, with real files and a clock set by the test."""

import errno
import io
import json
import math
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import group
from rich.console import Console

from unslothrl.checkpoints.run_state import RunState
from unslothrl.config.options import Config
from unslothrl.errors import ProcessLost, RunError, UserError
from unslothrl.records import Call, Failure, Transcript, Turn
from unslothrl.runs.resolve import Resolved
from unslothrl.runs.rl import RlRun
from unslothrl.tracking import metrics, origin
from unslothrl.tracking.rows import rollout_rows
from unslothrl.tracking.run_folder import RunFolder, free_name, json_line
from unslothrl.tracking.step_lines import Schedule, summary_lines
from unslothrl.tracking.terminal import Terminal
from unslothrl.weights.adapter import Adapter

CONFIG = 'learner = "grpo"\nlr = 2e-05\nshuffle_rewards = false\n'


class Clock:
    """Seconds, moved by the test."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "first", CONFIG)


# The run folder


def test_create_writes_the_config_and_refuses_a_folder_with_a_run(folder):
    assert (folder.path / "config.toml").read_text() == CONFIG
    folder.close()
    with pytest.raises(UserError, match=r"run_name first: .* set another --run_name"):
        RunFolder.create(folder.path.parent, "first", CONFIG)


def test_create_accepts_a_folder_without_a_run(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    RunFolder.create(tmp_path, "mine", CONFIG)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_create_names_an_output_dir_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"output_dir .*file cannot be written .*--output_dir"):
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
    view = Terminal(console=Console(file=io.StringIO()), live=False)
    ended(folder, view, Config(**options)).close("failed", error)
    assert folder.path.exists() == stays == ("status" in folder.read_summary())


def ended(folder, view, config, trainer=None) -> RlRun:
    """A run that is about to end."""
    run = RlRun(Resolved(config, frozenset(), ()))
    run.folder, run.view, run.trainer = folder, view, trainer
    run.earlier = SimpleNamespace(checkpoint=None, step=0) if config.resume else None
    return run


class WithoutLearner:
    """A trainer whose learner does not answer."""

    tasks, state, published = SimpleNamespace(close=lambda: None), RunState(step=3), "a version"

    def __init__(self, error: BaseException):
        self.error = error

    def save_boundary(self):
        return False

    def save_last_adapter(self):
        raise self.error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ProcessLost("learner-0", "learner-0 does not answer"), "learner-0 does not answer"),
        (KeyboardInterrupt(), "interrupted again"),
    ],
)
def test_a_run_is_interrupted_in_order_although_its_adapter_cannot_be_had(folder, error, why):
    printed = io.StringIO()
    view = Terminal(console=Console(file=printed, width=200), live=False)
    run = ended(folder, view, Config(), WithoutLearner(error))
    run.close("interrupted")
    assert folder.read_summary()["status"] == "interrupted"
    assert f"the last adapter is not saved: {why}" in printed.getvalue()
    with pytest.raises(type(error)):
        run.close("finished")


def test_what_others_have_put_into_a_refused_runs_folder_stays(folder):
    (folder.path / "log.txt").touch()
    folder.discard()
    assert [path.name for path in folder.path.iterdir()] == ["log.txt"]


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    assert free_name(str(tmp_path), "one") == "one"
    for name in ("one", "one-2"):
        (tmp_path / name).mkdir()
    assert free_name(str(tmp_path), "one") == "one-3"


def test_a_nested_run_json_says_nothing(tmp_path):
    for depth in (400, 900, 100_000):
        text = '{"recipe": ' + "[" * depth + "]" * depth + "}"
        (tmp_path / "run.json").write_text(text)
        assert origin.read(tmp_path).command == ""


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_beginning_that_is_broken_off_leaves_nothing(error, tmp_path):
    def begin(folder):
        (folder / ".start").mkdir()
        (folder / ".start" / "adapter_model.safetensors").write_bytes(b"half")
        (folder / "data.json").touch()
        raise error

    with pytest.raises(UserError if isinstance(error, OSError) else KeyboardInterrupt):
        RunFolder.create(tmp_path, "one", "", begin)
    assert not list(tmp_path.iterdir())


def test_reopen_refuses_a_folder_without_a_run(tmp_path, folder):
    folder.close()
    assert RunFolder.reopen(folder.path).path == folder.path
    with pytest.raises(UserError, match=r"it has no config\.toml"):
        RunFolder.reopen(tmp_path)


def test_metrics_are_one_json_object_a_line_with_null_for_what_json_lacks(folder):
    folder.log(
        {"step": 1, "train/loss": math.nan, "reward/mean": np.float32(0.5), "n": np.int64(3)}
    )
    folder.log({"step": 2, "train/loss": -math.inf})
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert lines[0] == '{"step": 1, "train/loss": null, "reward/mean": 0.5, "n": 3}'
    assert folder.read_metrics()[1] == {"step": 2, "train/loss": None}


def test_an_incomplete_last_line_is_ignored_and_cut_by_the_next_log(folder):
    folder.log({"step": 1})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    assert folder.read_metrics() == [{"step": 1}]
    folder.log({"step": 2})
    assert folder.read_metrics() == [{"step": 1}, {"step": 2}]


def test_a_broken_line_elsewhere_is_named(folder):
    (folder.path / "metrics.jsonl").write_text('{"step": 1}\nrubbish\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is not JSON"):
        folder.read_metrics()


def test_resume_deletes_what_came_after_the_step(folder):
    for step in (9, 10, 11):
        folder.log({"step": step})
        folder.write_rollouts(step, [])
        folder.write_evaluation(f"step_{step:06d}", [])
        folder.checkpoints.write(RunState(step=step), b"")
    folder.write_summary({"status": "interrupted", "steps": 11})
    folder.truncate_after(10)
    assert [row["step"] for row in folder.read_metrics()] == [9, 10]
    assert folder.steps_of("rollouts") == [9, 10] == folder.steps_of("evals")
    assert folder.checkpoints.steps() == [10]
    assert folder.read_summary() == {}
    folder.truncate_after(10, logged=9)  # its evaluation is to come
    assert [row["step"] for row in folder.read_metrics()] == [9]
    assert (folder.steps_of("rollouts"), folder.steps_of("evals")) == ([9, 10], [9])


def test_rollouts_have_exactly_the_keys_of_the_contract(folder):
    groups = [group("a", [0.0, 1.0]), group("b", [0.5, 0.5])]
    rows = rollout_rows(groups, [[-1.0, 1.0], [0.0, 0.0]], [[1], [0, 1]])
    path = folder.write_rollouts(10, rows)
    assert path == folder.path / "rollouts" / "step_000010.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[1] == {
        "task": "a",
        "candidate": 1,
        "prompt": "prompt a",
        "answer": "7",
        "completion": "",
        "finish_reason": "stop",
        "rewards": {"accuracy": 1.0},
        "score": 1.0,
        "advantage": 1.0,
        "selected": True,
        "policy_version": 0,
    }
    assert [row["selected"] for row in rows] == [False, True, True, True]


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
    assert (
        first["turns"]
        == second["turns"]
        == [
            {
                "reply": "hi",
                "observation": "error: not JSON",
                "reward": 0.5,
                "calls": 2,
                "failed_calls": 1,
                "tool_calls": [
                    {"name": "add", "arguments": '{"a": 2}', "error": ""},
                    {"name": "sub", "arguments": "", "error": "not JSON"},
                ],
            }
        ]
    )


def test_rollouts_keep_any_text(folder):
    hostile = "line\u2028separator \ud83d half \x00 é\n"
    folder.write_rollouts(1, [{"completion": hostile}])
    assert folder.read_rollouts(1) == [{"completion": hostile}]


def test_an_adapter_is_written_byte_for_byte(folder):
    path = folder.save_adapter(Adapter.of(10, b"\x00weights", '{"r": 32}'))
    assert path == folder.path / "adapters" / "v000010"
    assert (path / "adapter_model.safetensors").read_bytes() == b"\x00weights"
    assert json.loads((path / "adapter_config.json").read_text()) == {"r": 32}
    assert sorted(os.listdir(path.parent)) == ["v000010"]


def test_the_summary_is_json_and_replaced_whole(folder):
    folder.write_summary({"status": "failed", "adapter": folder.path, "best": {"x": math.inf}})
    read = json.loads((folder.path / "summary.json").read_text())
    assert read == {"status": "failed", "adapter": str(folder.path), "best": {"x": None}}
    with pytest.raises(TypeError):
        folder.write_summary({"status": object()})
    assert folder.read_summary() == read
    assert sorted(os.listdir(folder.path)) == [".lock", "config.toml", "summary.json"]


# Numbers as text


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


# The remaining time


def test_remaining_time_by_hand():
    clock = Clock()
    schedule = Schedule(eval_every=5, clock=clock)
    schedule.evaluated(0, 20.0)
    assert schedule.to_end() is None
    schedule.stepped(1, 12, 8.0)
    schedule.stepped(2, 12, 10.0)
    # Mean step 9 s; evaluations after 5, 10 and 12, 20 s each.
    assert schedule.to_end() == 10 * 9 + 3 * 20
    clock.now += 7
    assert schedule.to_end() == 143


def test_remaining_time_includes_an_evaluation_until_it_is_done():
    schedule = Schedule(eval_every=5, clock=Clock())
    schedule.evaluated(0, 20.0)
    schedule.stepped(5, 10, 8.0)
    assert schedule.to_end() == 5 * 8 + 2 * 20
    schedule.evaluated(5, 30.0)
    assert schedule.to_end() == 5 * 8 + 25
    schedule.stepped(10, 10, 8.0)
    assert schedule.to_end() == 25
    schedule.evaluated(10, 25.0)
    assert schedule.to_end() == 0


def test_remaining_time_without_evaluations_uses_recent_steps_only():
    schedule = Schedule(eval_every=0, clock=Clock())
    for step in range(1, 21):
        schedule.stepped(step, 30, 100.0 if step <= 10 else 2.0)
    assert schedule.to_end() == 20


# The terminal


def view(live: bool, width: int = 80, encoding: str = "utf-8", eval_every: int = 5):
    """-> (terminal, its clock, a function that returns what was written)"""
    clock, raw = Clock(), io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n", write_through=True)
    console = Console(
        file=file,
        force_terminal=live,
        width=width,
        height=24,
        color_system=None,
        legacy_windows=False,
    )
    terminal = Terminal(eval_every, console, live, clock)
    return terminal, clock, lambda: raw.getvalue().decode(encoding)


STEP = {
    "step": 1,
    "reward/mean": 0.341,
    "rollout/score": 0.25,
    "rollout/mean_length": 91.6,
    "rollout/tokens_per_s": 3105.3,
    "timing/step_s": 8.2,
    "train/sampler_gap": 0.00134,
}
EVAL = {"eval/gsm8k/pass@1": 0.5, "eval/gsm8k/best_of_n": 0.9, "timing/eval_s": 20.0}
AFTER = {"eval/gsm8k/pass@1": 0.875, "eval/gsm8k/best_of_n": 1.0, "timing/eval_s": 20.0}
SUMMARY = {
    "status": "finished",
    "steps": 2,
    "seconds": 83.0,
    "first_eval": {"step": 0, **EVAL},
    "last_eval": {"step": 2, **AFTER},
    "adapter": "runs/first/adapters/v000002",
    "command": "unslothrl chat --adapter runs/first/adapters/v000002",
    "report": "runs/first/report.html",
}


def play(terminal: Terminal, clock: Clock) -> None:
    """A run of two steps."""
    with terminal:
        terminal.header(["grpo on gsm8k\x1b[2J", "1 actor"])
        terminal.stage("starting Ray")
        clock.now += 3
        terminal.evaluation(0, EVAL)
        terminal.progress("generation", 0, 64, 0)
        clock.now += 61
        terminal.progress("generation", 16, 64, 6100)
        terminal.progress("update", 0, 64, 0)
        terminal.step(STEP, 1, 2)
        terminal.step({"reward/mean": 0.5, "timing/step_s": 8.0}, 2, 2)
        terminal.evaluation(2, AFTER)
        terminal.finish(SUMMARY)


def test_plain_output_is_these_lines():
    terminal, clock, written = view(live=False, encoding="ascii")
    play(terminal, clock)
    assert written().splitlines() == [
        "grpo on gsm8k?[2J",
        "  1 actor",
        "starting Ray",
        "evaluation after step 0 on gsm8k: pass@1 0.500, best of n 0.900, 20.0 s",
        "generation: 16 of 64, 100 tokens/s",
        "step 1/2: reward 0.341, score 0.250, length 92, seconds 8.2, gap 0.0013, tokens/s 3,105, "
        "end in 28 s",
        "step 2/2: reward 0.500, seconds 8.0",
        "evaluation after step 2 on gsm8k: pass@1 0.875, best of n 1.000, 20.0 s",
        "finished: 2 steps in 1:23",
        "pass@1: 0.500 -> 0.875  +0.375  gsm8k",
        "best of n: 0.900 -> 1.000  +0.100  gsm8k",
        "reward: 0.341 -> 0.500  +0.159  in training, first and last step",
        "adapter: runs/first/adapters/v000002",
        "use it: unslothrl chat --adapter runs/first/adapters/v000002",
        "report: runs/first/report.html",
    ]
    assert all(character.isprintable() or character == "\n" for character in written())


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (0, 2, "pass@1: 0.500 -> 0.875  +0.375  gsm8k"),
        (0, 1, "pass@1: 0.500 -> 0.875  +0.375  gsm8k, after step 0 and 1"),
        (1, 2, "pass@1: 0.500 -> 0.875  +0.375  gsm8k, after step 1 and 2"),
        (0, 0, "pass@1: 0.500  gsm8k, after step 0"),
        (2, 2, "pass@1: 0.500  gsm8k"),
    ],
)
def test_an_evaluation_of_an_earlier_step_is_shown_with_it(first, last, said):
    both = {"step": first, **EVAL}, {"step": last, **(EVAL if first == last else AFTER)}
    lines = summary_lines(
        SUMMARY | dict(zip(("first_eval", "last_eval"), both, strict=True)), (), "->"
    )
    assert f"{lines[1][0]}: {lines[1][1]}" == said


def test_failure_before_the_first_step_is_shown():
    terminal, _, written = view(live=False)
    with terminal:
        terminal.finish({"status": "failed", "steps": 0, "seconds": 0.0, "first_eval": None})
        terminal.failed("actor-0 died: out of memory")
    assert written() == "failed: 0 steps in 0 s\nfailed: actor-0 died: out of memory\n"


def shown(terminal: Terminal) -> list[str]:
    """The live area as text."""
    with terminal.console.capture() as captured:
        terminal.console.print(terminal.area())
    return captured.get().rstrip("\n").split("\n")


def test_the_live_area_shows_reward_progress_and_time():
    terminal, clock, _ = view(live=True)
    terminal.evaluation(0, EVAL)
    terminal.step(STEP, 1, 12)
    terminal.step({**STEP, "reward/mean": 0.882}, 2, 12)
    terminal.progress("generation", 0, 64, 0)
    clock.now += 2
    terminal.progress("generation", 16, 64, 6200)
    assert shown(terminal) == [
        "",
        "   reward ▁█  0.341 → 0.882",
        "     3/12 generation " + "━" * 8 + "─" * 22 + " 16/64  3,100 tokens/s",
        "          2 s so far, end in 2:20",
    ]


def test_the_live_area_starts_over_with_each_phase():
    terminal, clock, _ = view(live=True)
    terminal.progress("generation", 64, 64, 6400)
    clock.now += 10
    terminal.progress("generation", 8, 64, 100)
    clock.now += 2
    terminal.progress("generation", 16, 64, 300)
    assert "100 tokens/s" in shown(terminal)[1]
    terminal.stage("saving the adapter")
    clock.now += 4
    assert shown(terminal)[1].strip() == "saving the adapter  4 s"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [12, 30, 40, 60, 80, 200])
def test_no_line_of_a_live_view_reaches_the_last_column(width, encoding):
    terminal, clock, written = view(live=True, width=width, encoding=encoding)
    for step in range(1, 41):
        terminal.step(STEP, step, 40)
    rows = [line for line in written().splitlines() if line]
    terminal.progress("generation", 0, 4096, 0)
    clock.now += 1
    terminal.progress("generation", 1000, 4096, 123456)
    assert all(len(line) < width for line in [*rows, *shown(terminal)])
    assert len(rows) == 40


def test_a_live_view_ends_with_a_visible_cursor_and_an_unwrapped_summary():
    terminal, clock, written = view(live=True, width=40)
    play(terminal, clock)
    assert written().count("\x1b[?25l") == written().count("\x1b[?25h") == 1
    last = written().split("\x1b[?25h")[-1]
    assert "use it: unslothrl chat --adapter runs/first/adapters/v000002\n" in last
    assert "→ 0.875" in last


def test_an_interrupt_restores_the_terminal():
    terminal, _, written = view(live=True)
    with pytest.raises(KeyboardInterrupt), terminal:
        terminal.progress("generation", 1, 2, 3)
        raise KeyboardInterrupt
    assert "\x1b[?25h" in written()
    assert terminal.live is None


def test_a_pipe_and_a_notebook_get_plain_lines(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    for name in ("JPY_PARENT_PID", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    assert Terminal(console=Console(file=Screen())).live_area
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not Terminal(console=Console(file=io.StringIO())).live_area
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    assert not Terminal(console=Console(file=Screen())).live_area


def test_a_resumed_run_shows_its_first_reward():
    terminal, _, written = view(live=False)
    terminal.resumed([{"step": 0}, {"step": 1, "reward/mean": 0.25}])
    terminal.step({"reward/mean": 0.75, "timing/step_s": 1.0}, 2, 2)
    terminal.finish({"status": "finished", "steps": 2, "seconds": 60.0, "eval_seconds": 100.0})
    output = written()
    assert "reward: 0.250 -> 0.750  +0.500" in output
    assert "finished: 2 steps in 1:00, and 1:40 of evaluation" in output

"""What a run prints beside its figures: samples, advice, stages, how it goes on."""

import io
import os
import pty
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import completed
from rich.cells import cell_len
from rich.console import Console

from unslothrl.checkpoints.run_state import RunState
from unslothrl.config.options import Config
from unslothrl.data.tasks import Data, EndlessTasks, FiniteTasks
from unslothrl.errors import RunError
from unslothrl.records import Group, Transcript, Turn
from unslothrl.runs.resolve import Resolved
from unslothrl.runs.rl import RlRun
from unslothrl.runs.run import unexpected
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.step_lines import BestCompletion, NeverRight, Phase, StepTable, plain_step
from unslothrl.tracking.terminal import Terminal, clipped
from unslothrl.training.trial import facts, header
from unslothrl.weights.base_model import run_reporting

ROOT = Path(__file__).parents[1]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def view(live: bool, width: int = 80, encoding: str = "utf-8"):
    """-> (terminal, its clock, a function that returns what was written)"""
    clock, raw = Clock(), io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n", write_through=True)
    console = Console(
        file=file, force_terminal=live, width=width, height=24, color_system=None,
        legacy_windows=False,
    )  # fmt: skip
    return Terminal(5, console, live, clock), clock, lambda: raw.getvalue().decode(encoding)


def group(*rewards_and_texts: tuple[float, str], problem: str = "1 + 1?") -> Group:
    made = [completed(text, problem=problem) for _, text in rewards_and_texts]
    rewards = tuple(reward for reward, _ in rewards_and_texts)
    return Group(made[0][0], tuple(each for _, each in made), {"r": rewards}, rewards)


# Samples

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x00\r\nanswer [bold]2[/bold] \U0001f600 漢字"


def test_the_best_completion_of_all_groups_is_shown_the_first_of_equals():
    best = BestCompletion.of([group((0.5, "a"), (1.0, "b")), group((1.0, "c"))])
    assert best is not None and (best.text, best.reward) == ("b", 1.0)
    assert BestCompletion.of([]) is None


def episode(question: str, *turns: Turn) -> Group:
    """One candidate, which has earned 1."""
    task, completion = completed("\n".join(turn.reply for turn in turns), problem="the row's")
    completion = replace(completion, transcript=Transcript(turns, "rendered", question))
    return Group(task, (completion,), {"environment": (1.0,)}, (1.0,))


def test_a_sample_of_an_episode_is_its_own_question_and_its_turns():
    turns = Turn("34 * 56 =", "= 1904"), Turn("<answer>1904</answer>")
    terminal, _, written = view(live=False)
    terminal.sample([episode("What is 34 * 56?", *turns)])
    said = "34 * 56 = | = 1904 | <answer>1904</answer>"
    assert written() == f"sample, reward 1: What is 34 * 56? -> {said}\n"
    best = BestCompletion.of([episode("", Turn("7"))])  # the task's own prompt
    assert best is not None and (best.problem, best.text) == ("the row's", "7")


@pytest.mark.parametrize("width", [12, 40, 80])
def test_a_sample_of_an_episode_is_text_and_stays_inside_the_terminal(width):
    terminal, _, written = view(live=True, width=width)
    terminal.sample([episode(HOSTILE, Turn(HOSTILE, HOSTILE * 9), Turn(HOSTILE))])
    output = written()
    assert all(c.isprintable() or c == "\n" for c in output)
    lines = output.splitlines()
    assert 3 <= len(lines) <= 5 and all(cell_len(line) < width for line in lines)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [12, 40, 60, 80])
def test_a_sample_is_text_and_stays_inside_the_terminal(width, encoding):
    terminal, _, written = view(live=True, width=width, encoding=encoding)
    terminal.sample([group((1.0, HOSTILE * 40), problem=HOSTILE)])
    output = written()
    assert all(c.isprintable() or c == "\n" for c in output)
    lines = output.splitlines()
    assert 3 <= len(lines) <= 5 and all(cell_len(line) < width for line in lines)
    if width == 80:
        assert "[bold]2[/bold]" in output and "(reward 1)" in output


def test_a_plain_sample_is_one_line_with_its_beginning_and_end():
    terminal, _, written = view(live=False)
    terminal.sample([group((0.25, "begin " + "x" * 10_000 + "\n\tend"))])
    (line,) = written().splitlines()
    assert line.startswith("sample, reward 0.25: 1 + 1? -> begin xxx") and line.endswith("x end")
    assert len(line) < 500


def test_samples_come_with_the_first_step_and_then_now_and_then():
    terminal, clock, written = view(live=False)
    for minutes in range(6):
        clock.now = 60.0 * minutes
        terminal.sample([group((1.0, f"minute {minutes}"))])
    shown = [line.rpartition("minute ")[2] for line in written().splitlines()]
    assert shown == ["0", "2", "4"]


@pytest.mark.parametrize("most", range(12))
def test_clipped_text_fits_and_keeps_both_ends(most):
    short = clipped("abcdefghijklmnop", most)
    assert len(short) == most
    if most >= 6:
        assert short[0] == "a" and short[-1] == "p"
    assert clipped("ab", max(2, most)) == "ab"


# Advice


def test_a_score_that_stays_zero_is_said_twice_and_at_the_end():
    terminal, _, written = view(live=False)
    for step in range(1, 41):
        terminal.step({"rollout/score": 0.0, "timing/step_s": 1.0}, step, 40)
    terminal.finish({"status": "finished", "steps": 40, "seconds": 40.0})
    output = written()
    assert output.count("no completion was ever right, in 3 steps") == 1
    assert output.count("no completion was ever right, in 30 steps") == 1
    assert "finished: 40 steps in 40 s\nscore: no completion was ever right\n" in output


@pytest.mark.parametrize("scores", [[0.0, 0.0, 0.125, 0.0, 0.0, 0.0], [None] * 6, [0.0, 0.0]])
def test_one_right_completion_or_too_few_steps_are_no_reason(scores):
    watch = NeverRight()
    rows = [{} if score is None else {"rollout/score": score} for score in scores]
    assert [watch.saw(row) for row in rows] == [None] * len(rows)


def test_a_resumed_run_remembers_that_some_were_right():
    terminal, _, written = view(live=False)
    terminal.resumed([{"step": 1, "rollout/score": 0.5}])
    for step in range(2, 8):
        terminal.step({"rollout/score": 0.0, "timing/step_s": 1.0}, step, 9)
    assert "ever right" not in written()


# The table

STEP = {
    "reward/mean": 0.5, "rollout/score": 0.25, "rollout/mean_length": 90.0, "timing/step_s": 8.0,
    "reward/failed": 0, "reward/zero_signal_groups": 3, "train/sampler_gap": 0.001,
    "rollout/tokens_per_s": 3000.0,
}  # fmt: skip


def test_failed_and_zero_signal_counts_are_in_a_row_of_80_columns():
    heading, row = StepTable().add(STEP, 1, 9, 80)
    assert heading.split("  ")[-1].strip() == "tokens/s" and "no signal" in heading
    assert "failed" not in heading
    heading, row = StepTable().add({**STEP, "reward/failed": 12}, 1, 9, 80)
    assert "failed" in heading and " 12 " in row and len(row) == len(heading) < 80
    heading, row = StepTable().add(STEP, 1, 9, 40)
    assert heading.split() == ["step", "reward", "score", "length"] and len(row) < 40


def test_groups_without_signal_are_shown_of_how_many():
    heading, row = StepTable().add(
        {**STEP, "reward/zero_signal_groups": 27, "rollout/groups": 32}, 1, 9, 80
    )
    start = heading.index("no signal")
    assert row[: start + len("no signal")].endswith(" 27/32") and len(row) == len(heading)
    assert "groups without signal 3/32, " in plain_step({**STEP, "rollout/groups": 32}, 1, 9, None)


def test_a_column_that_comes_later_gets_a_heading():
    table = StepTable()
    headings = [
        table.add({**STEP, "reward/failed": failed}, step, 9, 80)[0] is not None
        for step, failed in enumerate([0, 0, 5, 5, 0])
    ]
    assert headings == [True, False, True, False, True]


def test_a_plain_step_says_what_failed_and_had_no_signal():
    line = plain_step({**STEP, "reward/failed": 2}, 1, 9, 75.0)
    assert "rewards failed 2, groups without signal 3, " in line and line.endswith("end in 1:15")
    assert "failed" not in plain_step(STEP, 1, 9, None)


# Stages and bars


def test_what_lasts_is_said_again_every_minute_where_nothing_is_drawn():
    terminal, clock, written = view(live=False)
    terminal.stage("loading actor 0")
    for clock.now in (59.0, 61.0, 62.0, 122.0):
        terminal.tick()
    assert written().splitlines() == [
        "loading actor 0", "loading actor 0: 1:01 so far", "loading actor 0: 2:02 so far",
    ]  # fmt: skip


def test_a_bar_moves_by_tokens_where_all_completions_end_together():
    assert Phase("generation", 0.0).share == 0
    terminal, _, _ = view(live=True)
    terminal.progress("generation", 0, 32, 0)
    terminal.progress("generation", 32, 32, 3200)  # 100 each
    terminal.stage("between")
    terminal.progress("generation", 0, 32, 10_000)
    assert terminal.phase is not None
    for tokens, share in ((10_800, 0.25), (11_600, 0.5), (90_000, 0.95)):
        terminal.progress("generation", 0, 32, tokens)
        assert terminal.phase.share == share
    terminal.progress("generation", 32, 32, 13_200)
    assert terminal.phase.share == 1


def test_a_bar_that_has_not_moved_yet_shows_seconds():
    terminal, clock, _ = view(live=True)
    terminal.progress("generation", 0, 32, 0)
    clock.now = 7
    with terminal.console.capture() as captured:
        terminal.console.print(terminal.area())
    assert "0/32  7 s" in captured.get()


def test_others_may_draw_while_the_area_is_suspended():
    terminal, _, written = view(live=True)
    with terminal:
        terminal.stage("downloading x")
        with terminal.suspended():
            assert terminal.live is None
        assert terminal.live is not None
    assert terminal.live is None and "downloading x" in written()
    with terminal.suspended():
        assert terminal.live is None


# How a run begins and ends


def test_the_start_names_rewards_with_weights_and_the_sizes_of_the_splits():
    config = Config(reward=("boxed", "format=0.5"), number_of_actors=1, batch_size=6)
    data = Data(FiniteTasks(["task"] * 45, 0), {"held_out": ["task"] * 5}, ("a note",))
    lines = header(config, data, 30, ["changed"])
    assert "reward: 1 x boxed + 0.5 x format" in lines
    assert "data: 45 problems to train on, 5 to evaluate on (held_out)" in lines
    assert "30 steps: 6 prompts each, 16 completions a prompt of at most 1200 tokens" in lines
    episodes = header(replace(config, tools=("python",), max_episode_tokens=4000), data, 30, [])
    assert "30 steps: 6 prompts each, 16 episodes a prompt of at most 4000 tokens" in episodes
    assert lines[1].startswith("1 actor (") and lines[-1] == "a note" and "changed" in lines
    endless = Data(EndlessTasks.__new__(EndlessTasks), {"test": [], "hard": ["task"]})
    assert facts(Config(), endless) == [
        "reward: 1 x accuracy + 0.1 x format + 0.2 x tags",
        "data: problems without end to train on, 0 to evaluate on (test), 1 to evaluate on (hard)",
    ]


class Ended:
    """A trainer after some steps, with no adapter."""

    published = None

    def __init__(self, step: int):
        self.tasks, self.state = SimpleNamespace(close=lambda: None), RunState(step=step)

    def save_boundary(self) -> bool:
        return False


def ended(tmp_path, step: int, checkpoint: int | None, error: Exception | None = None) -> str:
    folder = RunFolder.create(tmp_path, "my run", "")
    if checkpoint is not None:
        folder.checkpoints.write(RunState(step=checkpoint), b"")
    terminal, clock, written = view(live=False)
    clock.now = 75
    run = RlRun(Resolved(Config(), frozenset(), ()))
    run.view, run.folder, run.trainer, run.has_results = terminal, folder, Ended(step), True
    run.close("failed" if error else "interrupted", error)
    assert folder.read_summary()["wall_seconds"] == 75
    return written()


def test_a_run_that_was_interrupted_says_how_it_goes_on(tmp_path):
    output = ended(tmp_path, step=12, checkpoint=10)
    assert f"--resume '{tmp_path}/my run'\n" in output
    assert "goes on: after step 10, 2 steps will be repeated\n" in output
    assert "interrupted: 12 steps in 0 s; 1:15 with start and end\n" in output


def test_a_run_that_failed_says_so_too(tmp_path):
    output = ended(tmp_path, step=10, checkpoint=10, error=RunError("it died"))
    assert f"--resume '{tmp_path}/my run'\n" in output
    assert "goes on: after step 10\n" in output


def test_without_a_checkpoint_a_run_goes_on_from_its_start(tmp_path):
    output = ended(tmp_path, step=3, checkpoint=None)
    assert f"--resume '{tmp_path}/my run'\n" in output
    assert "goes on: from its start, 3 steps will be repeated\n" in output
    assert "goes on: from its start\n" in ended(tmp_path / "other", step=0, checkpoint=None)


class OutOfMemoryError(RuntimeError):
    """As torch's, by its name."""


def test_what_fills_a_card_says_what_to_lower(tmp_path):
    folder = RunFolder.create(tmp_path, "x", "")
    said = str(unexpected(OutOfMemoryError("CUDA out of memory. Tried to allocate"), folder))
    assert "lower --train_batch_size" in said and "error.txt" in said
    assert f"bundle {folder.path}` makes an archive" in said


# The bars of another program

BARS = """
import sys
for done in range(4):
    sys.stderr.write(f"\\rLoading: {done}/3 [00:0{done}<00:01, 1.0it/s]")
    sys.stderr.flush()
sys.stderr.write("\\nlast line\\n")
sys.exit(3)
"""


def test_the_counts_of_another_programs_bars_are_reported():
    seen: list[tuple[int, int]] = []
    command = [sys.executable, "-c", BARS]
    code, written = run_reporting(command, lambda done, total: seen.append((done, total)))
    assert code == 3 and written.strip().splitlines()[-1] == "last line"
    assert seen[-1] == (3, 3) and seen == sorted(seen)
    assert run_reporting(command, None)[0] == 3


# A real run on a terminal

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38|48)[;m]")

FLAGS = (
    "--number_of_actors 0 --engine transformers --cluster local --max_steps 2 --batch_size 4 "
    "--eval_problems 4 --eval_candidates 2"
)


def on_a_terminal(command: list[str], width: int, **environment: str) -> tuple[int, str]:
    """Runs a command in a terminal of so many columns. -> (exit code, what it wrote)"""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    variables = {**os.environ, "TERM": "xterm", **environment}
    for name in ("COLUMNS", "JPY_PARENT_PID", "COLAB_RELEASE_TAG", "FORCE_COLOR"):
        variables.pop(name, None)
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    pieces: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 1 << 16):
                pieces.append(piece)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    code = process.wait(timeout=300)
    reader.join(timeout=10)
    os.close(ours)
    return code, b"".join(pieces).decode(errors="replace")


COPIED = ("adapter", "use", "evaluate", "export", "report")  # lines that are not cut in two


@pytest.mark.slow
@pytest.mark.real
def test_a_run_in_a_narrow_terminal_without_colour(tmp_path):
    """As over ssh from a phone: no line but those to be copied is wider than the terminal, nothing
    is coloured, and every part that takes long has said what it does."""
    environment = {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "unslothrl", *FLAGS.split(), "--output_dir", str(tmp_path)]
    code, written = on_a_terminal(command, 40, **environment)
    assert code == 0, written
    assert COLOUR.search(written) is None
    for said in ("loading learner 0", "generation", "eval", "update", "sample"):
        assert said in written, said
    lines = re.split(r"[\r\n]+", ESCAPE.sub("", written))
    wide = [line for line in lines if cell_len(line) > 40]
    assert [line for line in wide if line.split()[0] not in COPIED] == []
    assert any(line.split()[:1] == ["1/2"] for line in lines)
    assert any(line.startswith("finished  2 steps in") for line in lines)
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h")  # the cursor is back

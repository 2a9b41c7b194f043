"""What a run prints beside its figures: samples, advice, stages, how it goes on."""

import io
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fakes import completed
from rich.console import Console

from unslothrl.config.options import Config
from unslothrl.data.tasks import Data, EndlessTasks, FiniteTasks
from unslothrl.records import Group, Transcript, Turn
from unslothrl.runs.run import unexpected
from unslothrl.tracking.metrics import improved_line, sample_line, step_line, summary_lines
from unslothrl.tracking.report.history import RunHistory
from unslothrl.tracking.report.signs import found
from unslothrl.tracking.report.verdict import BROKEN, HACKED, Verdict
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.training.trial import facts, header


def view(live: bool, width: int = 80):
    """-> (terminal, its clock, a function that returns what was written)"""
    clock, file = SimpleNamespace(now=0.0), io.StringIO()
    console = Console(
        file=file, force_terminal=live, width=width, height=24, color_system=None,
        legacy_windows=False, _environ={"TERM": "xterm"},
    )  # fmt: skip
    return Terminal(console, live, lambda: clock.now), clock, file.getvalue


def group(*rewards_and_texts: tuple[float, str], problem: str = "1 + 1?") -> Group:
    made = [completed(text, problem=problem) for _, text in rewards_and_texts]
    rewards = tuple(reward for reward, _ in rewards_and_texts)
    return Group(made[0][0], tuple(each for _, each in made), {"r": rewards}, rewards)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x00\r\nanswer [bold]2[/bold] \U0001f600 漢字"


def episode(question: str, *turns: Turn) -> Group:
    """One candidate, which has earned 1."""
    task, completion = completed("\n".join(turn.reply for turn in turns), problem="the row's")
    completion = replace(completion, transcript=Transcript(turns, "rendered", question))
    return Group(task, (completion,), {"environment": (1.0,)}, (1.0,))


def test_a_sample_is_the_first_of_the_best_completions_or_the_turns_of_an_episode():
    groups = [group((0.5, "a"), (1.0, "b")), group((1.0, "c"))]
    assert sample_line(groups) == "sample, reward 1: 1 + 1? -> b"
    turns = Turn("34 * 56 =", "= 1904"), Turn("<answer>1904</answer>")
    said = "What is 34 * 56? -> 34 * 56 = | = 1904 | <answer>1904</answer>"
    assert sample_line([episode("What is 34 * 56?", *turns)]) == f"sample, reward 1: {said}"
    assert sample_line([episode("", Turn("7"))]).endswith("the row's -> 7")  # the task's own prompt


def test_what_has_improved_most_is_the_problem_whose_mean_score_rose_most():
    before = [group((0.0, "3"), (1.0, "2")), group((0.0, "no"), (0.0, "no"), problem="2 + 2?")]
    after = [group((1.0, "2"), (1.0, "2")), group((0.0, "5"), (1.0, "4\n"), problem="2 + 2?")]
    said = "improved most: 1 + 1? -> before: 3 -> now: 2"  # both by 0.5, the first of them
    assert improved_line(before, after) == said
    assert improved_line(before[1:], after[1:]).endswith("2 + 2? -> before: no -> now: 4")
    assert improved_line(after, after) is None


@pytest.mark.parametrize("of_turns", [False, True])
def test_a_sample_is_text_in_one_line(of_turns):
    terminal, _, written = view(live=True)
    made = group((1.0, HOSTILE * 40), problem=HOSTILE)
    if of_turns:
        made = episode(HOSTILE, Turn(HOSTILE, HOSTILE * 9), Turn(HOSTILE))
    terminal.sample([made])
    (line,) = written().splitlines()
    assert line.isprintable() and len(line) < 700 and "[bold]2[/bold]" in line


def test_samples_come_with_the_first_step_and_then_now_and_then():
    terminal, clock, written = view(live=False)
    for minutes in range(6):
        clock.now = 60.0 * minutes
        terminal.sample([group((1.0, f"minute {minutes}"))])
    assert re.findall(r"minute (\d)\n", written()) == ["0", "2", "4"]


def test_a_score_that_stays_zero_is_said_twice():
    terminal, _, written = view(live=False)
    for step in range(1, 41):
        terminal.step({"rollout/score": 0.0, "timing/step_s": 1.0}, step, 40)
    said = re.findall("no completion was graded as right(?:, in (\\d+) steps)?", written())
    assert said == ["3", "30"]


def test_where_nearly_all_is_cut_off_nothing_else_is_advised():
    for cut, is_alone in ((1.0, True), (0.5, False)):
        terminal, _, written = view(live=False)
        for step in (1, 2, 3):
            row = {"rollout/score": 0.0, "rollout/truncated": cut, "timing/step_s": 1.0}
            terminal.step(row, step, 9)
        assert "raise --max_new_tokens." in written()
        assert ("Work out two or three" not in written()) == is_alone


def test_what_was_warned_of_before_the_first_step_is_said_again_in_place_of_advice():
    terminal, _, written = view(live=False)
    terminal.header(["a run", "warning: 9 of 9 answers are sentences: accuracy gives 0 to them"])
    for step in (1, 2, 3):
        terminal.step({"rollout/score": 0.0, "timing/step_s": 1.0}, step, 9)
    assert "in 3 steps. As said before the first step: 9 of 9 answers are" in written()
    assert "Work out two or three" not in written()


def test_a_step_says_what_failed_and_had_no_signal():
    counts = {"reward/failed": 2, "reward/zero_signal_groups": 3, "rollout/groups": 20}
    row = {"reward/mean": 0.5, **counts}
    assert "rewards failed 2, groups without signal 3/20" in step_line(row, 1, 9)
    assert "failed" not in step_line({**row, "reward/failed": 0}, 1, 9)


def test_what_lasts_is_said_again_every_minute_where_nothing_is_drawn():
    terminal, clock, written = view(live=False)
    terminal.stage("loading actor 0")
    for clock.now in (59.0, 61.0, 122.0):
        terminal.tick()
    assert re.findall("loading actor 0(.*)\n", written()) == ["", ": 1:01", ": 2:02"]


def test_remaining_time_by_hand():
    terminal, clock, _ = view(live=False)
    assert terminal.to_end() is None
    for step, clock.now in ((3, 8.0), (4, 18.0)):  # of a run that went on after step 2
        terminal.step({"timing/step_s": 8.0}, step, 12)
    assert terminal.to_end() == 8 * 9
    terminal.evaluation(4, {"timing/eval_s": 7.0})
    clock.now += 7
    assert terminal.to_end() == 8 * 9 - 7


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


def play(terminal: Terminal, clock: SimpleNamespace) -> None:
    """A run of two steps."""
    with terminal:
        terminal.header(["grpo on gsm8k\x1b[2J", "1 actor"])
        terminal.stage("starting Ray")
        clock.now += 3
        terminal.evaluation(0, EVAL)
        terminal.progress("generation", 0, 64, 0)
        clock.now += 61
        terminal.progress("generation", 16, 64, 6100)
        terminal.tick()
        terminal.progress("update", 0, 64, 0)
        terminal.step(STEP, 1, 2)
        terminal.step({"reward/mean": 0.5, "timing/step_s": 8.0}, 2, 2)
        terminal.evaluation(2, AFTER)
        terminal.finish(SUMMARY)


def test_plain_output_is_these_lines():
    terminal, clock, written = view(live=False)
    play(terminal, clock)
    assert written().splitlines() == [
        "grpo on gsm8k?[2J",
        "  1 actor",
        "starting Ray",
        "evaluation after step 0 on gsm8k: pass@1 0.500, best of n 0.900, 20.0 s",
        "generation: 16/64  100 tokens/s",
        "step 1/2: reward 0.341, score 0.250, length 92, seconds 8.2, gap 0.0013, tokens/s 3,105, "
        "end in 8 s",
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


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (0, 1, "pass@1: 0.500 -> 0.875  +0.375  gsm8k, after step 0 and 1"),
        (1, 2, "pass@1: 0.500 -> 0.875  +0.375  gsm8k, after step 1 and 2"),
        (0, 0, "pass@1: 0.500  gsm8k, after step 0"),
        (2, 2, "pass@1: 0.500  gsm8k"),
    ],
)
def test_an_evaluation_of_an_earlier_step_is_shown_with_it(first, last, said):
    both = {"step": first, **EVAL}, {"step": last, **(EVAL if first == last else AFTER)}
    lines = summary_lines(SUMMARY | dict(zip(("first_eval", "last_eval"), both, strict=True)), ())
    assert f"{lines[1][0]}: {lines[1][1]}" == said


def test_a_run_that_learnt_nothing_ends_with_warnings_instead_of_commands():
    terminal, _, written = view(live=False)
    rows = [{"step": i, "rollout/score": 0.0, "reward/failed": 1} for i in range(3)]
    signs, terminal.folder = found(RunHistory(rows)) * 3, "runs/x"
    terminal.finish(SUMMARY, Verdict(BROKEN, "Broken: a reason", is_warned=True), signs)
    labels = [line.partition(": ")[0] for line in written().splitlines()]
    known = ["finished", "verdict", *["warning"] * 3, "pass@1", "best of n", "adapter"]
    assert labels == [*known, "report"]  # the warnings say what to do
    assert (
        "warning: Almost no completion was graded as right. No completion was graded" in written()
    )
    assert "`unslothrl score runs/x/rollouts/step_000001.jsonl --reward acc" in written()
    for kind, shown_signs in ((BROKEN, ()), (HACKED, signs)):
        terminal, _, written = view(live=False)
        terminal.finish(SUMMARY, Verdict(kind, "a reason"), shown_signs)
        assert f"\ninstead: {'Work out' if kind == BROKEN else 'Read'}" in written()


def test_what_was_cut_off_comes_first_where_nothing_was_right():
    terminal, _, written = view(live=False)
    row = {"timing/step_s": 1.0, "rollout/score": 0.0}
    for step, cut in enumerate((0.19, 0.16, 0.0), 1):  # what is rewarded becomes short
        terminal.step({**row, "rollout/truncated": cut}, step, 9)
    assert "in 3 steps. Up to 19% of a step's are cut off: raise --max_new_tokens. Wo" in written()


def test_failure_before_the_first_step_is_shown():
    terminal, _, written = view(live=False)
    terminal.finish({"status": "failed", "steps": 0, "seconds": 0.0, "first_eval": None})
    terminal.failed("actor-0 died: out of memory")
    assert written() == "failed: 0 steps in 0 s\nfailed: actor-0 died: out of memory\n"


def shown(terminal: Terminal) -> list[str]:
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
        "   reward ▁█  0.341 -> 0.882",
        "     3/12 generation 16/64  3,100 tokens/s  " + "━" * 8 + "─" * 22,
        "          2 s so far, end in 39 s",
    ]


@pytest.mark.parametrize("width", [12, 40, 80, 200])
def test_no_line_of_a_live_view_reaches_the_last_column(width):
    terminal, clock, written = view(live=True, width=width)
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
    assert f"use it: {SUMMARY['command']}\n" in last and "-> 0.875" in last
    terminal, _, written = view(live=True)
    with pytest.raises(KeyboardInterrupt), terminal:
        terminal.header(["a run"])
        terminal.progress("generation", 1, 2, 3)
        raise KeyboardInterrupt
    assert "\x1b[?25h" in written() and terminal.live is None


def test_a_pipe_and_a_notebook_get_plain_lines(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    for name in ("JPY_PARENT_PID", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    assert Terminal(console=Console(file=screen)).live_area
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not Terminal(console=Console(file=io.StringIO())).live_area
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    assert not Terminal(console=Console(file=screen)).live_area


def test_a_resumed_run_remembers_its_first_reward_and_that_some_were_right():
    terminal, _, written = view(live=False)
    terminal.resumed([{"step": 0}, {"step": 1, "reward/mean": 0.25, "rollout/score": 0.5}])
    for step in range(2, 8):
        terminal.step({"reward/mean": 0.75, "rollout/score": 0.0, "timing/step_s": 1.0}, step, 7)
    terminal.finish({"status": "finished", "steps": 7, "seconds": 60.0, "eval_seconds": 100.0})
    assert "reward: 0.250 -> 0.750  +0.500" in written() and "ever right" not in written()
    assert "finished: 7 steps in 1:00, and 1:40 of evaluation" in written()


def test_the_start_names_rewards_with_weights_and_the_sizes_of_the_splits():
    config = Config(reward=("boxed", "format=0.5"), number_of_actors=1, batch_size=6)
    data = Data(FiniteTasks(["task"] * 45, 0), {"held_out": ["task"] * 5}, ("a note",))
    lines = header(config, data, 30, ["changed"])
    assert "reward: 1 x boxed + 0.5 x format" in lines
    assert "data: 45 problems to train on, 5 to evaluate on (held_out)" in lines
    assert "30 steps: 6 prompts each, 16 completions a prompt of at most 1200 tokens" in lines
    assert lines[1].startswith("1 actor (") and lines[-1] == "a note" and "changed" in lines
    endless = Data(EndlessTasks.__new__(EndlessTasks), {"test": [], "hard": ["task"]})
    assert facts(Config(), endless) == [
        "reward: 1 x accuracy + 0.1 x format + 0.2 x tags",
        "data: problems without end to train on, 0 to evaluate on (test), 1 to evaluate on (hard)",
    ]


def test_what_fills_a_card_says_what_to_lower(tmp_path):
    folder = RunFolder.create(tmp_path, "x", "")
    error = type("OutOfMemoryError", (RuntimeError,), {})  # as torch's, by its name
    said = str(unexpected(error("CUDA out of memory. Tried to allocate"), folder, "max_new_tokens"))
    assert "lower --train_batch_size" in said and "error.txt" in said

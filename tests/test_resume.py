"""Runs that are stopped at some instant and resumed, beside one that nobody stopped: real base,
real engine, real run folders."""

import functools
import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from few_cases import few
from killed import killed_in
from runs_compared import differences, rows, signal_in

from unslothrl.checkpoints.store import Checkpoints
from unslothrl.commands import cli
from unslothrl.learners.learner import Learner
from unslothrl.system import stopping
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.training import saving
from unslothrl.training.group_source import Evaluation
from unslothrl.training.rollouts import RolloutStream
from unslothrl.training.trainer import Trainer

pytestmark = pytest.mark.real

STEPS = 4
FLAGS = (
    "--learner grpo --cluster local --engine transformers --number_of_actors 0 --batch_size 4 "
    "--num_candidates 4 --topk 4 --max_new_tokens 32 --lr 1e-3 --eval_every 2 --eval_problems 4 "
    f"--eval_candidates 2 --save_every 2 --max_steps {STEPS} --lora_dropout 0.1 "
    "--updates_per_rollout 2 --train_batch_size 8"
).split()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a run that nobody stops."""
    runs = tmp_path_factory.mktemp("whole")
    assert cli.main([*FLAGS, "--output_dir", str(runs), "--run_name", "x"]) == 0
    return runs / "x"


def stop_in(
    patch, runs: Path, owner: type, name: str, call: int, after: bool = False, *more: str
) -> tuple[Path, int]:
    """Runs until a call of a method. -> its folder and exit code"""
    with patch.context() as inner:
        signal_in(inner, owner, name, call, signal.SIGTERM, after)
        return runs / "x", cli.main([*FLAGS, "--output_dir", f"{runs}", "--run_name", "x", *more])


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    return functools.partial(stop_in, monkeypatch, tmp_path / "runs")


INSTANTS = {
    "the first evaluation": (Evaluation, "run", 1, False, 0),
    "the first draw": (RolloutStream, "send", 2, False, 0),
    "an update": (Learner, "step", 3, False, 1),
    "after one of two updates": (Learner, "step", 3, True, 1),
    "publishing": (Trainer, "publish", 3, False, 1),
    "after publishing": (Trainer, "publish", 3, True, 1),
    "an evaluation": (Evaluation, "run", 2, False, 2),
    "after an evaluation": (Evaluation, "run", 2, True, 2),
    "logging": (RunFolder, "log", 3, False, 2),
    "the last evaluation": (Evaluation, "run", 3, False, 4),
}


def test_what_the_terminal_says_of_a_run_is_kept(tmp_path, monkeypatch):
    step = Trainer.step

    def noting(trainer, *given):
        trainer.view.note(f"noted before step {trainer.state.step + 1}")
        return step(trainer, *given)

    monkeypatch.setattr(Trainer, "step", noting)
    of_two = ["--max_steps", "2", "--output_dir", str(tmp_path), "--run_name", "x"]
    assert cli.main([*FLAGS, *of_two]) == 0
    lines = (tmp_path / "x" / "notes.jsonl").read_text().splitlines()
    kept = [(row["step"], row["note"]) for row in map(json.loads, lines)]
    assert kept == [(0, "noted before step 1"), (1, "noted before step 2")]


@pytest.mark.slow
@pytest.mark.parametrize("instant", INSTANTS)
def test_a_run_that_is_stopped_anywhere_ends_as_a_whole_one(instant, stopped, whole, capfd):
    """At most the step in flight is done again; what is resumed is the same to the last bit."""
    owner, name, call, after, steps = INSTANTS[instant]
    folder, code = stopped(owner, name, call, after)
    assert code == 128 + signal.SIGTERM
    assert Checkpoints(folder).newest(pytest.fail).state.step == steps
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "interrupted" and "repeated" not in summary["goes_on"]
    assert (folder / "report.html").exists()
    capfd.readouterr()
    assert cli.main(["--resume", str(folder)]) == 0
    assert differences(folder, whole) == []
    assert [each.step for each in origin.read(folder).resumes] == [steps]


@pytest.mark.slow
def test_before_the_first_step_a_folder_resumes_from_its_start(stopped, whole):
    folder, code = stopped(Trainer, "__init__", 1)
    assert code == 143 and not Checkpoints(folder).steps()
    assert cli.main(["--resume", str(folder)]) == 0
    assert differences(folder, whole) == []


@pytest.fixture(scope="module")
def third(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return stop_in(patch, tmp_path_factory.mktemp("third"), Trainer, "assign_credit", 3)[0]


@pytest.fixture
def half(third, tmp_path) -> Path:
    """A copy of the folder of a run that was stopped in its third step."""
    return Path(shutil.copytree(third, tmp_path / "runs" / "x"))


@pytest.mark.slow
def test_a_moved_folder_resumes_from_any_directory(half, whole, tmp_path, monkeypatch):
    moved = tmp_path / "elsewhere" / "k 9é"
    moved.parent.mkdir()
    half.rename(moved)
    monkeypatch.chdir(moved.parent)
    assert cli.main(["--resume", "k 9é", "--eval_candidates", "2"]) == 0
    assert differences(moved, whole) == []


def test_a_damaged_checkpoint_is_said_and_the_one_before_it_used(half, whole, capfd):
    newest = half / "checkpoints" / "step_000002" / "learner.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with (half / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "rew')
    assert cli.main(["--resume", str(half)]) == 0
    assert "checkpoint step_000002 is damaged (learner.safetensors" in capfd.readouterr().out
    assert differences(half, whole) == []


def test_where_none_is_whole_that_is_said(half, capfd):
    for path in half.glob("checkpoints/*/progress.json"):
        path.write_bytes(path.read_bytes()[:-9])
    assert cli.main(["--resume", str(half)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "checkpoint step_000002 is damaged" in line


def test_what_changes_is_said_recorded_and_shown(half, capfd):
    before = (half / "config.toml").read_text()
    for flag in ("--seed 1", "--max_lora_rank 4", "--learner ppo", "--lora_alpha 3"):
        assert cli.main(["--resume", str(half), *flag.split()]) == 2
        assert f"{flag.split()[0][2:]} " in capfd.readouterr().err
    assert (half / "config.toml").read_text() == before
    assert cli.main(["--resume", str(half), "--lr", "1e-5"]) == 0
    assert "lr 0.001 -> 1e-05: changed in this resume" in capfd.readouterr().out
    (resume,) = origin.read(half).resumes
    assert [*resume.changes] == ["lr 0.001 -> 1e-05"]
    assert "lr 0.001 -&gt; 1e-05" in (half / "report.html").read_text()
    assert [row["step"] for row in rows(half / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_a_file_of_the_users_that_has_changed_is_said(half, tmp_path, capfd):
    reward = tmp_path / "mine.py"
    reward.write_text("def reward(completion): return 1.0\n")
    config = half / "config.toml"
    config.write_text(config.read_text().replace('"accuracy', f'"{reward}:reward", "accuracy', 1))
    origin.write(half, replace(origin.read(half), code={str(reward): "another"}))
    assert cli.main(["--resume", str(half)]) == 0
    assert f"{reward} itself: changed in this resume" in capfd.readouterr().out
    assert origin.read(half).code == {str(reward): origin.hash_of(reward)}
    notes = (half / "notes.jsonl").read_text()
    assert "mine.py itself: changed in this resume" in notes


def test_an_objective_whose_file_was_moved_is_named_again(half, tmp_path, capfd):
    config = half / "config.toml"
    gone = config.read_text().replace('learner = "grpo"', f'learner = "{tmp_path}/gone.py"')
    config.write_text(gone)
    moved = tmp_path / "moved.py"
    moved.write_text(
        "from unslothrl.algorithms.objective import Objective\nOBJECTIVE = Objective()\n"
    )
    code = {f"{tmp_path}/gone.py": origin.hash_of(moved)}
    origin.write(half, replace(origin.read(half), code=code))
    assert cli.main(["--resume", str(half)]) == 2
    assert "gone.py: no such file" in capfd.readouterr().err
    other = tmp_path / "other.py"
    other.write_text(moved.read_text() + "# not the same\n")
    for learner in ("grpo", str(other)):
        assert cli.main(["--resume", str(half), "--learner", learner]) == 2
        assert "gone.py: no such file" in capfd.readouterr().err
    assert cli.main(["--resume", str(half), "--learner", str(moved)]) == 0
    assert [row["step"] for row in rows(half / "metrics.jsonl")] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_other_problems_are_refused_and_moved_ones_are_not(stopped, tmp_path, capfd):
    known = [{"problem": f"What is {i} + {2 * i}?", "answer": str(3 * i)} for i in range(101, 131)]
    lines = [json.dumps(row) + "\n" for row in known]
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(lines))
    own = ("--dataset", str(problems), "--system_prompt", "")
    half, _ = stopped(Trainer, "assign_credit", 3, False, *own)
    capfd.readouterr()
    for number, changed in enumerate([lines[:20], [*lines[:-1], lines[-1].replace("130", "131")]]):
        folder = tmp_path / f"changed{number}"
        folder.mkdir()
        (folder / problems.name).write_text("".join(changed))
        assert cli.main(["--resume", str(half), "--dataset", str(folder / problems.name)]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert "is not what the run was trained on" in line and problems.name in line
    moved = tmp_path / "moved" / problems.name
    moved.parent.mkdir()
    shutil.copy(problems, moved)
    assert cli.main(["--resume", str(half), "--dataset", str(moved)]) == 0
    assert [row["step"] for row in rows(half / "metrics.jsonl")] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_auto_is_the_newest_run_of_these_options(tmp_path, whole, capfd, monkeypatch):
    auto = [*FLAGS, "--output_dir", str(tmp_path), "--resume", "auto"]
    real = Learner.step
    monkeypatch.setattr(Learner, "step", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert cli.main(auto) == 143
    said = f"resume auto: no run with these options in {tmp_path} yet: a new one"
    assert said in capfd.readouterr().out
    monkeypatch.setattr(Learner, "step", real)
    (folder,) = tmp_path.iterdir()
    assert cli.main(auto) == 0
    assert differences(folder, whole) == []
    capfd.readouterr()
    started = time.monotonic()
    assert cli.main(auto) == 0
    assert "this run has finished" in capfd.readouterr().out and time.monotonic() - started < 2
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    assert cli.main(["--resume", str(moved), "--lr", "1"]) == 0
    printed = capfd.readouterr().out
    assert str(folder) not in printed and f"adapter: {moved}/" in printed
    assert "without effect, as no step is left: lr" in printed
    shutil.rmtree(moved)
    assert cli.main([*auto, "--max_steps", "5"]) == 0  # as that run has said
    assert [row["step"] for row in rows(folder / "metrics.jsonl")][-1] == 5
    assert "\nmax_steps = 5\n" in (folder / "config.toml").read_text()
    assert len(list(tmp_path.iterdir())) == 1
    assert cli.main([*auto, "--lr", "1e-5", "--max_steps", "1"]) == 0
    assert len(list(tmp_path.iterdir())) == 2
    capfd.readouterr()
    assert cli.main([*auto, "--run_name", folder.name, "--max_steps", "5"]) == 0
    assert "has no effect" not in capfd.readouterr().out


@pytest.mark.slow
def test_the_best_evaluation_has_a_checkpoint_whenever_it_comes(tmp_path, monkeypatch):
    """Also where none is due after its step."""
    monkeypatch.setattr(saving, "best", lambda evals: evals[-1 if evals[-1]["step"] == 2 else 0])
    flags = [*FLAGS, "--checkpoint_every", "100", "--eval_every", "1", "--eval_problems", "2"]
    assert cli.main([*flags, "--output_dir", str(tmp_path), "--run_name", "x"]) == 0
    kept = Checkpoints(tmp_path / "x")
    assert (kept.folder / "best").read_text().strip() == "step_000002"
    assert kept.steps() == [2, 4] and kept.newest(pytest.fail).state.step == 4


@pytest.mark.parametrize("phase", few(["rename", "flush", "latest", "publish"]))
def test_a_killed_run_ends_as_a_whole_one(phase, tmp_path, whole):
    """-9 in the second step, and again on resuming it; bench/survival.py does more of it."""
    where = ["--output_dir", str(tmp_path), "--run_name", "x"]
    killed_in(phase, 3, ["train", *FLAGS, "--checkpoint_every", "1", *where])
    killed_in(phase, 1, ["train", "--resume", str(tmp_path / "x")])
    assert cli.main(["--resume", str(tmp_path / "x")]) == 0
    assert differences(tmp_path / "x", whole) == []


def test_stopping_is_begun_anew_with_each_run():
    stopping.begin()
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    try:
        stopping.listen()
        with pytest.raises(stopping.Stopped):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

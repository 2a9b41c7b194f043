"""Stages that are killed or stopped go on as if nothing had happened."""

import json
import pkgutil
import random
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers
from few_cases import few
from killed import killed_in
from runs_compared import exact, rows, signal_in

from unslothrl.commands import cli
from unslothrl.config.offline_options import TABLES
from unslothrl.offline import tables
from unslothrl.offline.run import StageRun
from unslothrl.weights import base_model

pytestmark = pytest.mark.real

STEPS = 6
SMALL = "--model embedded --dataset rows.jsonl "
SMALL += "--batch_size 8 --eval_problems 12 --eval_every 2 --checkpoint_every 1"
KINDS = {
    "sft": "sft",
    "sft, packed": "sft --packing --max_length 256 --episodes 2",
    "sft with dropout": "sft --lora_dropout 0.1",
    "dpo": "dpo",
    "dpo beside an adapter": "dpo --reference adapter --lora_dropout 0.1",
    "rm": "rm",
}


@pytest.fixture(autouse=True)
def signals(tmp_path, monkeypatch):
    """As before: a run listens to them. And rows, in the folder where the commands are given."""
    monkeypatch.chdir(tmp_path)
    pairs = tables.embedded_pairs("train", 0, 80)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    before = {number: signal.getsignal(number) for number in (2, 15, 1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def arguments(kind: str, name: str, steps: int = STEPS, *more: str) -> list[str]:
    return [*f"{KINDS[kind]} {SMALL} --max_steps {steps} --run_name {name}".split(), *more]


def tensors_of(adapter: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in adapter.glob("*.safetensors")}


def same(found: Path, whole: Path, steps: int = STEPS) -> None:
    ours, theirs = ([exact(row) for row in rows(each / "metrics.jsonl")] for each in (found, whole))
    assert ours == theirs and [row["step"] for row in ours] == list(range(steps + 1))
    for folder in (whole / "adapters").iterdir():
        assert tensors_of(found / "adapters" / folder.name) == tensors_of(folder) != {}
    ours, theirs = (json.loads((each / "summary.json").read_text()) for each in (found, whole))
    assert (ours["status"], ours["steps"]) == (theirs["status"], theirs["steps"])
    for name in ("first_eval", "best_eval", "last_eval"):
        assert exact(ours[name]) == exact(theirs[name])
    assert Path(ours["best_adapter"]).name == Path(theirs["best_adapter"]).name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_stage_that_is_resumed_is_the_uninterrupted_one(kind):
    assert cli.main(arguments(kind, "whole")) == 0
    draw = random.Random(kind)
    micro_steps = 2 * STEPS  # of 4 rows each, but for packed ones
    killed_in("stage's step", draw.randint(3, micro_steps - 2), arguments(kind, "killed"))
    phases = ("stage's checkpoint", "rename", "latest", "stage's log", "stage's adapter")
    again = KINDS[kind].split()[0]
    killed_in(draw.choice(phases), 2, [again, "--resume", "runs/killed"])
    assert cli.main([again, "--resume", "runs/killed"]) == 0
    same(Path("runs/killed"), Path("runs/whole"))


STOPS = [  # of which command, where, in which call of it, the signal, steps that are done then
    ("sft", "unslothrl.offline.tables.load", 1, signal.SIGINT, None),
    ("rm", "unslothrl.offline.models.reward_model", 1, signal.SIGINT, 0),
    ("dpo", "unslothrl.offline.trainers.StageTrainer.prediction_step", 2, signal.SIGINT, 0),
    ("sft", "transformers.Trainer.training_step", 5, signal.SIGTERM, 3),
    ("sft", "unslothrl.offline.trainers.StageTrainer.prediction_step", 3, signal.SIGTERM, 2),
    ("rm", "transformers.Trainer.training_step", 3, signal.SIGHUP, 2),
    ("rm", "transformers.Trainer.training_step", 2 * STEPS, signal.SIGTERM, STEPS),
]


@pytest.mark.parametrize(
    ("command", "place", "number", "sent", "steps"),
    few(STOPS, among=[STOPS[3]]),  # while it trains
)
def test_a_stopped_stage_says_how_to_go_on(command, place, number, sent, steps, monkeypatch, capfd):
    """What is loading is left at once, a step is finished; the command that is printed goes on."""
    owner, _, name = place.rpartition(".")
    signal_in(monkeypatch, pkgutil.resolve_name(owner), name, number, sent)
    assert cli.main(arguments(command, "stopped")) == 128 + sent
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    run = Path("runs/stopped")
    if steps is None:  # before its folder was made
        assert not run.exists() and "before anything was begun" in out
        return
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("interrupted", steps)
    assert (run / "report.html").exists()
    assert (summary["command"] is None) == (not steps)  # an adapter was saved, or not
    assert (run / "checkpoints" / f"step_{steps:06d}").is_dir() == bool(steps)
    assert re.search(f"^resume: .* {command} --resume runs/stopped$", out, re.MULTILINE)
    assert cli.main([command, "--resume", "runs/stopped"]) == 0
    found = rows(run / "metrics.jsonl")
    assert [row["step"] for row in found] == list(range(STEPS + 1))
    evaluated = [row["step"] for row in found if any(re.match("eval/.*/loss$", n) for n in row)]
    assert evaluated == list(range(0, STEPS + 1, 2))
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_stage_that_is_stopped_before_an_evaluation_is_the_uninterrupted_one(times, monkeypatch):
    assert cli.main(arguments("sft with dropout", "whole", 3)) == 0
    words = arguments("sft with dropout", "stopped", 3)
    for number, name in [(4, "training_step"), (1, "evaluate")][:times]:
        with monkeypatch.context() as patch:
            signal_in(patch, transformers.Trainer, name, number, signal.SIGTERM)
            assert cli.main(words) == 128 + signal.SIGTERM
        words = ["sft", "--resume", "runs/stopped"]
    assert cli.main(words) == 0
    best = [Path("runs", name, "checkpoints/best").read_text() for name in ("stopped", "whole")]
    assert best[0] == best[1]
    same(Path("runs/stopped"), Path("runs/whole"), 3)


@pytest.mark.parametrize(
    ("adapters", "losses", "named"),
    [
        ([], [2.0], None),
        ([2, 4], [2.0, 1.0, 0.5], "runs/x"),
        ([2, 4], [2.0, 0.5, 1.0], "runs/x/adapters/v000002"),
        ([4], [2.0, 0.5, 1.0], "runs/x"),  # the best was deleted
    ],
)
def test_the_best_adapter_is_what_is_to_be_used(adapters, losses, named):
    for step in adapters:
        Path(f"runs/x/adapters/v{step:06d}").mkdir(parents=True)
    run = object.__new__(StageRun)
    run.folder = SimpleNamespace(path=Path("runs/x"))
    run.options = TABLES["sft"].config()
    run.tokenizer = SimpleNamespace(chat_template="there is one")
    run.tables = SimpleNamespace(evaluation_name="held_out")
    run.rows = lambda: [{"step": 2 * n, run.loss_key: loss} for n, loss in enumerate(losses)]
    command = run.commands(None)["command"]
    assert command is None if named is None else command.endswith(f"chat --adapter {named}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rm", "sft", "dpo beside an adapter"])
def test_a_stage_that_was_killed_after_its_last_step_only_ends(kind):
    """It does not take a step more, and what it saves is what was trained."""
    assert cli.main(arguments(kind, "first", 2)) == 0
    run, adapter = Path("runs/first"), Path("runs/first/adapters/v000002")
    before = (run / "metrics.jsonl").read_bytes(), tensors_of(adapter)
    shutil.rmtree(adapter)
    (run / "summary.json").unlink()
    assert cli.main([KINDS[kind].split()[0], "--resume", "runs/first"]) == 0
    assert ((run / "metrics.jsonl").read_bytes(), tensors_of(adapter)) == before and before[1]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)


@pytest.mark.slow
def test_a_reference_stays_a_copy_however_long_the_run_becomes(capsys):
    """A run that reads all pairs caches the reference, but this one began as a short one."""
    constant = "--lr_schedule", "constant"
    assert cli.main(arguments("dpo", "short", 2, *constant)) == 0
    assert "reference: a copy of the adapter" in capsys.readouterr().out
    assert cli.main(["dpo", "--resume", "runs/short", "--max_steps", "9"]) == 0
    assert "reference:" not in capsys.readouterr().out
    assert cli.main(arguments("dpo", "whole", 9, *constant, "--reference", "adapter")) == 0
    short, whole = (Path("runs", name, "adapters/v000009") for name in ("short", "whole"))
    assert tensors_of(short) == tensors_of(whole) != {}


def test_a_stage_goes_on_with_the_time_at_which_it_began():
    """Templates such as those of Llama 3.2 and SmolLM3 write the date into every conversation."""
    shutil.copytree(base_model.prepare("embedded"), "dated")
    template = Path("dated/chat_template.jinja")
    template.write_text("{{ strftime_now('%c %f') }}" + template.read_text())
    assert cli.main(arguments("sft", "dated", 1, "--model", "./dated")) == 0
    assert cli.main(["sft", "--resume", "runs/dated", "--max_steps", "2"]) == 0
    assert [row["step"] for row in rows(Path("runs/dated/metrics.jsonl"))] == [0, 1, 2]

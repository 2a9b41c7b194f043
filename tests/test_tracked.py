"""What feeds the trackers, over small ones of the test's own: the packages are in
tests/test_trackers.py."""

import importlib.util
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
from fakes import group

from unslothrl.commands import cli
from unslothrl.errors import UserError
from unslothrl.tracking import trackers
from unslothrl.tracking.trackers import Trackers, sample_rows


class Kept:
    def __init__(self, run):
        self.run, self.told = run, []

    def log(self, step, metrics):
        self.told.append(("log", step, dict(metrics)))

    def samples(self, step, rows):
        self.told.append(("samples", step, [row["task"] for row in rows]))

    def close(self, status):
        self.told.append(("close", status))


class Started:
    """Trackers of a run, with what they were told and the lines for the user."""

    def __init__(self, folder: Path, **kinds):
        self.notes: list[str] = []
        self.made: dict[str, Kept] = {}
        self.kinds = kinds
        self.trackers = Trackers(tuple(kinds), folder, {"lr": 0.1}, self.notes.append)

    def start(self, resumed_at: int | None = None) -> "Started":
        with patch.object(trackers, "load", self.load):
            self.trackers.start(resumed_at)
        return self

    def load(self, name: str) -> SimpleNamespace:
        kind = self.kinds[name]
        return SimpleNamespace(start=lambda run: self.made.setdefault(name, kind(run)))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "first").mkdir()
    return tmp_path / "first"


def test_a_tracker_is_told_everything_in_order(folder):
    run = Started(folder, one=Kept).start()
    run.trackers.samples(0, {"held_out": [group("a", [1.0]), group("b", [0.0])]})
    run.trackers.log(0, {"step": 0, "eval/held_out/pass@1": 0.5, "train/loss": None})
    run.trackers.log(1, {"step": 1, "reward/mean": 1.0, "train/loss": float("nan"), "x": "text"})
    run.trackers.close("finished")
    assert run.made["one"].told == [
        ("samples", 0, ["a", "b"]),
        ("log", 0, {"eval/held_out/pass@1": 0.5}),
        ("log", 1, {"reward/mean": 1.0}),
        ("close", "finished"),
    ]
    assert run.notes == [] and run.made["one"].run.config == {"lr": 0.1}
    assert (run.made["one"].run.name, run.made["one"].run.resumed_at) == ("first", None)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (lambda run: Mock(log=Mock(side_effect=OSError("full"))), "OSError: full"),
        (Mock(side_effect=SystemExit(1)), "SystemExit: 1"),
    ],
)
def test_one_that_fails_costs_a_note_and_no_other_tracker(folder, kind, why):
    run = Started(folder, bad=kind, good=Kept).start()
    for step in range(3):
        run.trackers.log(step, {"reward/mean": 1.0})
    run.trackers.close("finished")
    (note,) = run.notes
    assert re.fullmatch(rf"track bad: {why}: nothing more is logged there", note)
    assert [told[0] for told in run.made["good"].told] == ["log", "log", "log", "close"]


def test_one_that_hangs_is_left_behind_and_the_others_are_closed(folder):
    never = threading.Event()
    hangs = Mock(log=lambda step, metrics: never.wait(60))
    run = Started(folder, hangs=lambda run: hangs, good=Kept).start()
    run.trackers.log(1, {"reward/mean": 1.0})
    run.trackers.close("finished", within_s=0.2)
    never.set()
    assert len(run.notes) == 1 and run.notes[0].startswith("track hangs: it has not finished")
    assert run.made["good"].told[-1] == ("close", "finished")


def test_a_resumed_run_has_the_same_id_in_each_tracker(folder):
    first = Started(folder, one=Kept, two=Kept).start()
    first.trackers.close("interrupted")
    ids = {name: tracker.run.id for name, tracker in first.made.items()}
    assert json.loads((folder / "trackers.json").read_text()) == ids
    assert ids["one"] != ids["two"]
    again = Started(folder, one=Kept, three=Kept).start(4)
    again.trackers.close("finished")
    assert again.made["one"].run.id == ids["one"] and again.made["one"].run.resumed_at == 4
    assert json.loads((folder / "trackers.json").read_text()).keys() == {"one", "two", "three"}


def test_samples_are_few(folder):
    drawn = {"a": [group(str(i), [1.0, 0.0]) for i in range(9)], "b": [group("c", [1.0])]}
    rows = sample_rows(drawn)
    assert [row["task"] for row in rows] == ["0", "1", "2", "3", "c"]
    assert rows[0].keys() >= {"set", "prompt", "answer", "completion", "score", "finish_reason"}


def test_a_package_that_is_missing_is_one_line_before_anything_loads(
    monkeypatch, tmp_path, capsys, here
):
    find = importlib.util.find_spec

    def missing(name, *more):
        return None if name in ("wandb", "tensorboard") else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with pytest.raises(UserError, match=r"track wandb: the package wandb is not installed: run "):
        trackers.check(["wandb"])
    assert cli.main(["--learner", "grpo", "--track", "tensorboard", "--max_steps", "1"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "-m pip install tensorboard" in err
    assert list(tmp_path.iterdir()) == []

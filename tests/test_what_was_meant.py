"""What users write in another form than ours, or in the wrong place: read, or refused."""

import os
import threading

import pytest

from unslothrl.algorithms import objectives
from unslothrl.commands import eval as evaluating
from unslothrl.commands.adapters import Found
from unslothrl.commands.export import export
from unslothrl.config.toml_files import read_recipe
from unslothrl.data import formats, sources
from unslothrl.data.columns import UnusableRow
from unslothrl.environments import forms
from unslothrl.environments.tool_calls import InvalidEnvironment
from unslothrl.errors import UserError
from unslothrl.offline import examples
from unslothrl.rewards import choose, functions
from unslothrl.rewards.custom import signature_of
from unslothrl.tracking.run_folder import SUMMARY, RunFolder
from unslothrl.weights import base_model

DATACLASS = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Parsed:
    said: str | None

def reward(completion): return float(Parsed(completion).said == "7")
"""
OBJECTIVE = """
from beside_an_objective import centred
from unslothrl.algorithms.objective import Objective

OBJECTIVE = Objective(advantage=centred)
"""


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ("https://huggingface.co/owner/name/tree/main", "set --model owner/name"),
        ("model.gguf", "give its folder, or a hub id"),
        ("adapter", "set --adapter adapter"),
    ],
)
def test_a_base_that_is_none(model, fix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").touch()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=fix):
        base_model.find(model, weights=False)


@pytest.mark.parametrize("text", ["", " ", "https://huggingface.co/datasets/owner/name"])
def test_a_source_that_names_nothing_is_not_the_current_folder(text):
    with pytest.raises(UserError, match=r"must be NAME|set owner/name"):
        sources.parse(text)


def test_one_column_cannot_be_both_the_prompt_and_the_answer():
    row = {"problem": "1 + 2", "answer": "3"}
    with pytest.raises(UnusableRow, match="set another --answer_column"):
        formats.read(row, formats.Columns("problem", "problem"))


@pytest.mark.parametrize(
    ("row", "flags"),
    [
        ({"prompt": "1", "completion": "2"}, "set --chosen_column and --rejected_column"),
        ({"prompt": "1", "chosen": "2"}, "set --rejected_column"),
    ],
)
def test_both_columns_of_a_pair_are_named(row, flags):
    with pytest.raises(UnusableRow, match=flags):
        examples.pair(row)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("[optim]\nlr = 1e-5\n", r"has the section \[optim\]"),
        ('recipe = "other.toml"\n', "names another recipe, other.toml: copy its lines"),
    ],
)
def test_a_recipe_has_no_sections_and_builds_on_no_other(text, fix, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=fix):
        read_recipe(str(path))


def test_files_may_begin_with_the_mark_of_windows(tmp_path):
    recipe, reward = tmp_path / "mine.toml", tmp_path / "mine.py"
    recipe.write_bytes(b"\xef\xbb\xbfseed = 7\r\n")
    reward.write_bytes(b"\xef\xbb\xbfdef reward(completion, answer): return 1.0\r\n")
    assert read_recipe(str(recipe)) == {"seed": 7}
    assert signature_of(reward, "reward").second == "answer"


def test_a_lambda_is_a_reward(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("contains = lambda completion, answer: float(answer in completion)\n")
    assert signature_of(path, "contains").second == "answer"


def test_a_reward_file_may_define_dataclasses(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(DATACLASS)
    assert functions.load(f"{path}:reward")("7") == 1.0


def test_two_functions_of_one_name_are_not_one_given_twice(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.py").write_text("def reward(completion): return 1.0\n")
    one, other = (f"{tmp_path}/{name}.py:reward" for name in "ab")
    with pytest.raises(UserError, match="rename one"):
        choose((one, other))
    with pytest.raises(UserError, match="given twice"):
        choose((one, one))


def test_an_objective_imports_what_lies_beside_it(tmp_path):
    (tmp_path / "mine.py").write_text(OBJECTIVE)
    (tmp_path / "beside_an_objective.py").write_text("def centred(rewards): return rewards\n")
    assert objectives.load(str(tmp_path / "mine.py")).advantage.name == "centred"
    assert objectives.load(str(tmp_path / "mine.py")).advantage([[1.0, 0.0]]) == [[1.0, 0.0]]


def test_an_environment_given_as_an_object_names_its_class(tmp_path):
    path = tmp_path / "game.py"
    path.write_text("class Guess: pass\nenv = Guess()\n")
    setup = {"file": str(path), "name": "env", "options": {}, "tools": (), "max_calls": 0}
    with pytest.raises(InvalidEnvironment, match="name its class, Guess"):
        forms.load(setup)


def test_completions_go_into_a_pipe_that_is_there(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    evaluating.write_samples(pipe, {})
    reader.join()
    assert got == [b""] and pipe.is_fifo()


def test_completions_are_not_written_over_a_file(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UserError, match="exists already"):
        evaluating.written_to(Found(tmp_path, None), str(path))


def test_an_export_is_a_folder(tmp_path):
    with pytest.raises(UserError, match="a folder: set --output model"):
        export("anything", "gguf", str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_a_finished_run_without_checkpoints_is_not_begun_again(status, tmp_path):
    folder = RunFolder.create(str(tmp_path), "a", "", lambda path: None)
    (folder.path / SUMMARY).write_text(f'{{"status": "{status}"}}')
    if status == "finished":
        with pytest.raises(UserError, match="start a new run with --adapter"):
            folder.refuse_restart()
    else:
        folder.refuse_restart()  # it has done a few steps that can be done again
    folder.close()

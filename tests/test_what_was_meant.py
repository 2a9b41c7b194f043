"""What users write in another form than ours, or in the wrong place: read, or refused."""

import pytest

from unslothrl.algorithms import objectives
from unslothrl.config.toml_files import read_recipe
from unslothrl.data import sources
from unslothrl.errors import UserError
from unslothrl.rewards import choose, functions
from unslothrl.rewards.custom import signature_of
from unslothrl.runs.resume import EarlierRun
from unslothrl.tracking.run_folder import RunFolder
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
        ("model.gguf", "give a folder of 16-bit safetensors, or a hub id"),
        ("adapter", "set --adapter adapter"),
    ],
)
def test_a_base_that_is_none(model, fix, tmp_path, here):
    (tmp_path / "model.gguf").touch()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=fix):
        base_model.find(model, weights=False)


@pytest.mark.parametrize("text", ["", " ", "https://huggingface.co/datasets/owner/name"])
def test_a_source_that_names_nothing_is_not_the_current_folder(text):
    with pytest.raises(UserError, match=r"NAME@SPLIT|set owner/name"):
        sources.parse(text)


def test_files_may_begin_with_the_mark_of_windows(tmp_path):
    recipe, reward = tmp_path / "mine.toml", tmp_path / "mine.py"
    recipe.write_bytes(b"\xef\xbb\xbfseed = 7\r\n")
    reward.write_bytes(b"\xef\xbb\xbfdef reward(completion, answer): return 1.0\r\n")
    assert read_recipe(str(recipe)) == {"seed": 7}
    assert signature_of(reward, "reward").second == "answer"


def test_a_reward_file_may_define_dataclasses(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(DATACLASS)
    assert functions.load(f"{path}:reward")("7") == 1.0


def test_two_functions_of_one_name_are_not_one_given_twice(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.py").write_text("def reward(completion): return 1.0\n")
    one, other = (f"{tmp_path}/{name}.py:reward" for name in "ab")
    for chosen, said in (((one, other), "rename one"), ((one, one), "given twice")):
        with pytest.raises(UserError, match=said):
            choose(chosen)


def test_an_objective_imports_what_lies_beside_it(tmp_path):
    (tmp_path / "mine.py").write_text(OBJECTIVE)
    (tmp_path / "beside_an_objective.py").write_text("def centred(rewards): return rewards\n")
    assert objectives.load(str(tmp_path / "mine.py")).advantage.function.__name__ == "centred"
    assert objectives.load(str(tmp_path / "mine.py")).advantage([[1.0, 0.0]]) == [[1.0, 0.0]]


def test_a_finished_run_without_checkpoints_is_not_begun_again(tmp_path):
    folder = RunFolder.create(str(tmp_path), "a", "")
    earlier = EarlierRun(folder, None, ("max_steps not set -> 9",), ())
    folder.write_summary({"status": "interrupted", "steps": 1, "seconds": 1.0})
    assert not earlier.has_finished()  # it has done a few steps that can be done again
    folder.write_summary({"status": "finished", "steps": 1, "seconds": 1.0})
    with pytest.raises(UserError, match="start a new run with --adapter"):
        earlier.has_finished()
    folder.close()

"""What docs/contributing.md says of a reward: one new file is all that a new `--reward` takes."""

import json
import os
import shutil
from pathlib import Path

import pytest
from python_process import python

ROOT = Path(__file__).parents[1]
ROWS = [{"problem": f"Say {i} words.", "words": i} for i in range(1, 9)]

# Options, data and scoring in a process that imports the copy.
RUN = """
import json, sys
from unslothrl.cluster.build import data_options, scorer_of
from unslothrl.data import tasks
from unslothrl.errors import UserError
from unslothrl.runs.resolve import resolve
from unslothrl.records import Completion
class Tokenizer:
    def apply_chat_template(self, turns, **_): return turns[-1]["content"]
    def __call__(self, texts, **_): return {"input_ids": [[1, 2, hash(text)] for text in texts]}
path, lacking = sys.argv[1:]
flags = {"model": "embedded", "reward": ("length=2",), "eval_dataset": (path,)}
config = resolve({**flags, "dataset": path}).config
assert "torch" not in sys.modules
drawn, _ = tasks.load(data_options(config), Tokenizer()).train.draw(0, 8)
scorer = scorer_of(config)
scored = scorer.score([(task, Completion.of_text("<answer>a b c</answer>")) for task in drawn])
scorer.close()
try:
    tasks.load(data_options(resolve({**flags, "dataset": lacking}).config), Tokenizer())
    refused = ""
except UserError as error:
    refused = str(error)
try:
    resolve({"reward": ("lenght",)})
except UserError as error:
    unknown = str(error)
print(json.dumps([[task.extra["words"] for task in drawn], scored.rewards["length"], refused,
                  unknown]))
"""


def documented_reward() -> str:
    """The Python of docs/contributing.md's first section."""
    text = (ROOT / "docs" / "contributing.md").read_text().split("## A reward in one file\n")[1]
    return text.split("```python\n")[1].split("```")[0]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.real
def test_a_new_file_is_a_new_reward_with_a_column_of_its_own(tmp_path):
    """In a copy of the package, as in a newcomer's checkout."""
    for folder in ("unslothrl", "recipes"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "unslothrl/rewards/builtin/length.py").write_text(documented_reward())
    rows = write(tmp_path / "rows.jsonl", ROWS)
    lacking = write(tmp_path / "lacking.jsonl", [{"problem": row["problem"]} for row in ROWS])
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = python("-c", RUN, rows, lacking, cwd=tmp_path, env=environ)
    words, rewards, refused, unknown = json.loads(done.stdout)
    assert sorted(words) == list(range(1, 9))
    assert rewards == [2.0 * (count == 3) for count in words]
    assert "row 1: column words is missing; the row has problem: the reward needs it" in refused
    assert "one of accuracy, boxed," in unknown and " length, " in unknown

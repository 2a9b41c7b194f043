"""What CONTRIBUTING.md says of a reward: one new file is all that a new `--reward` takes."""

import sys
from pathlib import Path

import pytest
from environment_files import rows_in, tokenizer

from unslothrl.cluster.build import data_options, scorer_of
from unslothrl.data import tasks
from unslothrl.errors import UserError
from unslothrl.records import Completion
from unslothrl.rewards import builtin
from unslothrl.runs.resolve import resolve


@pytest.mark.real
def test_a_new_file_is_a_new_reward_with_a_column_of_its_own(tmp_path, monkeypatch):
    """Of the package, which has a second folder here."""
    page = Path(__file__).parents[1] / "CONTRIBUTING.md"
    text = page.read_text().split("## A reward in one file\n")[1]
    (tmp_path / "length.py").write_text(text.split("```python\n")[1].split("```")[0])
    monkeypatch.setattr(builtin, "__path__", [*builtin.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "unslothrl.rewards.builtin.length", raising=False)
    builtin.names.cache_clear()
    try:
        rows = [{"problem": f"Say {i} words.", "words": i} for i in range(1, 9)]
        path = rows_in(tmp_path, rows)
        lacking = rows_in(tmp_path, [{"problem": "Say 3 words."}] * 8, "lacking.jsonl")
        flags = {"model": "embedded", "reward": ("length=2",), "eval_dataset": (path,)}
        config = resolve({**flags, "dataset": path}).config
        drawn, _ = tasks.load(data_options(config), tokenizer()).train.draw(0, 8)
        scorer = scorer_of(config)
        said = Completion.of_text("<answer>a b c</answer>")
        rewards = scorer.score([(task, said) for task in drawn]).rewards["length"]
        scorer.close()
        with pytest.raises(UserError, match="row 1: column words is missing; the row has problem"):
            tasks.load(data_options(resolve({**flags, "dataset": lacking}).config), tokenizer())
        with pytest.raises(UserError, match=r"one of accuracy, boxed,.* length, "):
            resolve({"reward": ("lenght",)})
    finally:
        builtin.names.cache_clear()
    words = [task.extra["words"] for task in drawn]
    assert sorted(words) == list(range(1, 9))
    assert list(rewards) == [2.0 * (count == 3) for count in words]

"""The model cards of SFT, DPO and reward models, and the stages an adapter has been through."""

import pytest
import yaml
from report_runs import make_stage

from unslothrl.config.offline_options import TABLES, DpoOptions
from unslothrl.tracking import card, origin
from unslothrl.tracking.report.history import RunHistory
from unslothrl.weights import adapter_use, starting_adapter
from unslothrl.weights.adapter_use import Use

OF_RL = ("trained by reinforcement", "reinforcement-learning", "reward by", "temperature",
         "tokens per completion", "| reward |")  # fmt: skip


@pytest.mark.parametrize("command", TABLES)
def test_a_card_is_of_its_stage(command, tmp_path):
    folder = make_stage(tmp_path / "mine", command, model="me/base", dataset="me/data", lr=0.5)
    stages = ("SFT on me/examples, run first", f"{command} on me/data, run mine")
    use = Use("me/base", "Be brief.", chat_template="{{ messages }}", stages=stages)
    text = card.card("mine v000002", use, "me/base", card.history(folder.path))
    head, _, body = text.removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(head) == {
        "library_name": "peft",
        "pipeline_tag": "text-classification" if command == "rm" else "text-generation",
        "base_model": "me/base",
        "datasets": ["me/data"],
        "tags": ["trl", "reward-trainer" if command == "rm" else command, "lora", "unslothrl"],
    }
    assert origin.METHODS[command].name in body and not any(word in body for word in OF_RL)
    assert "1. SFT on me/examples, run first\n2. " in body and "Be brief." in body
    assert f"`unslothrl {command} --recipe FILE.toml`" in body and "\nlr = 0.5\n" in body
    first, last = ("2.500", "1.600") if command == "sft" else ("0.700", "0.250")
    assert f"| held_out | loss | {first} | {last} (step 12) | {last} |" in body  # the least is best
    figure = "tokens right" if command == "sft" else "chosen over rejected"
    assert f"| {figure} | 0." in body
    assert ("score_head.safetensors" in body) == ("--reward rm:FOLDER" in body) == (command == "rm")


def test_a_run_of_rl_keeps_its_card(tmp_path):
    (tmp_path / "config.toml").write_text('learner = "grpo"\ndataset = "me/data"\nlr = 0.5\n')
    text = card.card("t", Use("me/base", ""), "me/base", card.history(tmp_path))
    assert "trained by reinforcement learning over" in text and "`unslothrl train --recipe" in text
    meta = yaml.safe_load(text.split("---\n")[1])
    assert meta["tags"] == ["reinforcement-learning", "lora", "unslothrl", "grpo"]


def test_an_adapter_knows_the_stages_before_it(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}")
    own = origin.described("sft", str(rows), "first")
    assert own == "SFT on rows.jsonl, run first"  # no path of this machine
    assert starting_adapter.stages(DpoOptions(), own) == (own,)
    start = tmp_path / "v000020"
    start.mkdir()
    options = DpoOptions(adapter=str(start))
    assert starting_adapter.stages(options, "DPO") == ("adapter v000020", "DPO")
    use = Use("embedded", "", stages=(own,))
    (start / adapter_use.USE_FILE).write_text(adapter_use.to_json(use))
    assert adapter_use.read(start) == use
    assert starting_adapter.stages(options, "DPO on x, run y") == (own, "DPO on x, run y")
    assert origin.described("train", "embedded", "z", "grpo") == "RL (grpo) on embedded, run z"


def test_names_of_stages_are_no_markup():
    use = Use("me/base", "", stages=("SFT on [a](b)", "<img src=x>"))
    lines = card.card("t", use, "me/base", RunHistory(())).splitlines()
    assert "1. SFT on \\[a\\](b)" in lines and "2. &lt;img src=x&gt;" in lines

"""The base `embedded-json` and its problems, as the package has them."""

import json

import pytest

from unslothrl.data import sources
from unslothrl.embedded import BASES, EMBEDDED_JSON, ROWS
from unslothrl.rewards import builtin
from unslothrl.weights import base_model


def rows(split: str) -> list[dict]:
    return [json.loads(line) for line in (ROWS / f"{split}.jsonl").read_text().splitlines()]


def test_the_source_is_the_packages_folder():
    splits = sources.load_splits(sources.parse(EMBEDDED_JSON))
    assert {name: len(found) for name, found in splits.items()} == {"train": 1200, "test": 200}
    assert sources.parse(EMBEDDED_JSON).label == EMBEDDED_JSON
    some = sources.load_splits(sources.parse(f"{EMBEDDED_JSON}@test[:5]"))
    assert {name: len(found) for name, found in some.items()} == {"test": 5}
    assert sources.absolute(EMBEDDED_JSON) == EMBEDDED_JSON  # not where this machine has it


def test_every_answer_is_right_by_its_reward_and_no_booking_is_in_both():
    reward = builtin.load("json")
    for split in ("train", "test"):
        for row in rows(split):
            assert reward.grade(row["answer"], row["answer"]) == 1
            booking = json.loads(row["answer"])
            assert list(booking) == ["name", "day", "time", "people"]
            assert booking["name"] in row["problem"] and str(booking["people"]) in row["problem"]
            assert booking["day"][:3].lower() in row["problem"].lower()
    answers = [{row["answer"] for row in rows(split)} for split in ("train", "test")]
    assert answers[0].isdisjoint(answers[1])


@pytest.mark.real
def test_the_base_is_small_and_its_tokenizer_writes_any_text():
    folder = base_model.find(EMBEDDED_JSON)
    assert folder == BASES[EMBEDDED_JSON]
    tokenizer = base_model.load_tokenizer(folder)
    for text in ('{"name": "Zoë", "time": "19:30"}', "日本 ½"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert base_model.stop_token_ids(folder) == [tokenizer.eos_token_id]
    embedded = [path for path in ROWS.parents[1].rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in embedded) < 5 * 2**20

"""The think-and-answer rewards against hand-made completions."""

import json
from pathlib import Path

import pytest

from unslothrl import rewards
from unslothrl.data.formats import gold_answer
from unslothrl.rewards import tags
from unslothrl.rewards.scorer import Completed, Scorer

GOOD = "<think>1+1=2</think>\n<answer>2</answer>"


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (GOOD, "2", 1.0),
        ("<answer> 2\n</answer>", "2", 1.0),
        ("<answer>3</answer> no: <answer>2</answer>", "2", 1.0),  # the last one counts
        ("<answer>2</answer> no: <answer>3</answer>", "2", 0.0),
        ("<answer>1,234</answer>", "1234", 1.0),
        ("<answer>1,2</answer>", "12", 0.0),
        ("<answer>12</answer>", "1,2", 0.0),
        ("2", "2", 0.0),  # no tags
        ("<answer>2", "2", 0.0),  # cut off: "2" may have become "25"
        ("2</answer>", "2", 0.0),
        ("", "2", 0.0),
    ],
)
def test_accuracy(completion, answer, expected):
    assert tags.accuracy(completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (GOOD, 0.1),
        ("\n" + GOOD, 0.1),
        ("<think>a\nb</think><answer>c\nd</answer>", 0.1),  # lines inside are fine
        ("well, " + GOOD, 0.0),
        ("<answer>2</answer><think>1+1</think>", 0.0),
        ("<think>1+1=2</think> so <answer>2</answer>", 0.0),
        ("<think><answer>2</answer>", 0.0),
    ],
)
def test_format(completion, expected):
    assert tags.think_answer_format(completion, "2") == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (GOOD, 0.2),
        (GOOD + "\n", 0.2),
        (GOOD + "x" * 30, 0.17),  # 0.2 - 30 * 0.001
        (GOOD + "x" * 5000, 0.0),  # bounded: 0.2 - 5 would be a punishment for being right
        ("<think></think>", 0.1),
        ("<think><think></think>", 0.05),  # a tag that stands twice does not count
        ("", 0.0),
    ],
)
def test_tag_count(completion, expected):
    assert tags.tag_count(completion, "2") == pytest.approx(expected)


def test_rewards_come_by_name_and_completion():
    found = Scorer(rewards.choose(())).score([Completed(GOOD, 9, "2"), Completed("2", 1, "2")])
    assert found.rewards == {
        "accuracy": [1.0, 0.0],
        "format": [0.1, 0.0],
        "tags": [pytest.approx(0.2), 0.0],
    }
    assert found.scores == [1.0, 0.0]


def test_hostile_text_is_only_text():
    for text in ("<answer>" * 10_000, "</think>" * 10_000, "\x00\ud800<answer>\x00</answer>"):
        Scorer(rewards.choose(())).score([Completed(text, 1, "2")])


GSM8K = Path(__file__).parents[2] / "shared" / "data" / "gsm8k" / "test.jsonl"


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not beside the checkout (../shared/data)")
def test_gold_answers_of_gsm8k_score_full_accuracy():
    rows = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    assert len(rows) == 1319
    right = sum(
        tags.accuracy(
            f"<think>so</think>\n<answer>{gold_answer(row['answer'])}</answer>",
            gold_answer(row["answer"]),
        )
        for row in rows
    )
    raw = sum(
        tags.accuracy(
            f"<answer>{row['answer'].split('####')[1]}</answer>", gold_answer(row["answer"])
        )
        for row in rows
    )
    assert (right, raw) == (1319, 1319)

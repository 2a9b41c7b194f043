"""Rewards that may stall or fail: real processes, killed at real deadlines."""

import json
from pathlib import Path

import psutil
import pytest

from unslothrl import rewards
from unslothrl.errors import UserError
from unslothrl.rewards import answers, checked, maths
from unslothrl.rewards.scorer import Completed, Scorer
from unslothrl.rewards.workers import Call, Workers

SAME = "unslothrl.rewards.maths:same"
ENDLESS = "10^{10^{10}}"  # sympy computes all its digits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{7}", "7"),
        (r"\boxed{\frac{1}{2}} and \boxed{ \sqrt{3} }", r"\sqrt{3}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),  # escaped braces do not count
        (r"\boxed{1} then \boxed{2", "1"),  # the last one that closes
        (r"\boxed{}", ""),
        (r"\boxed 7", None),
        ("7", None),
        ("\\boxed{" * 3000, None),
    ],
)
def test_boxed_answers(text, expected):
    assert answers.boxed(text) == expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        (r"\frac{1}{12}", r"\frac{11}{2}", False),
        ("1/12", "11/2", False),
        ("1,2", "12", False),
        ("1,234", "1234", True),
        ("0.5", r"\frac{1}{2}", True),
        (r"\frac{2}{4}", "1/2", True),
        ("x=5", "5", True),
        (r"50\%", "0.5", True),
        ("(1,2)", "(2,1)", False),
        (r"\text{Evelyn}", "Evelyn", True),
        ("", "0", False),
        ("9" * 2000, "1", False),
        ("\x00", "1", False),
        ("\ud800", "1", False),
        ("{{{", "1", False),
        ("9**9**9**9", "1", False),
    ],
)
def test_same_answers(answer, gold, expected):
    assert maths.same(answer, gold) is expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>a</think><answer>1/2</answer>", 1.0),
        ("\n<think>a</think> so <answer>0.50</answer>\n", 1.0),
        ("<think>a</think><answer>1/2</answer> done", 0.0),
        ("<answer>1/2</answer><think>a</think>", 0.0),
        ("<think>a</think><answer>1</answer><answer>1/2</answer>", 0.0),
        ("<think>a</think><answer>1/3</answer>", 0.0),
        ("1/2", 0.0),
    ],
)
def test_think_answer_tags(completion, expected):
    assert checked.think_answer_tags(completion, "0.5") == expected


def test_a_call_that_stalls_is_killed_and_the_others_go_on():
    calls = [Call(SAME, (ENDLESS, "1")), *[Call(SAME, ("1/2", f"{i}/2")) for i in range(20)]]
    with Workers(2, deadline_s=1.0) as workers:
        workers.call(calls[1:3])  # what is imported by now does not count
        before = {worker.process.pid for worker in (*workers.idle, workers.spare)}
        results = workers.call(calls)
        assert results[0].error == "took longer than 1 s" and 1 <= results[0].seconds < 2
        assert [result.value for result in results[1:]] == [i == 1 for i in range(20)]
        after = {worker.process.pid for worker in (*workers.idle, workers.spare)}
        assert len(before & after) == 2 and len(after) == 3
    assert not any(psutil.pid_exists(pid) for pid in before | after)


OWN = """
import asyncio, os, sys, time
def length(completion, answer):
    print("noise that must not reach the caller")
    return len(completion)
async def later(completion, answer):
    await asyncio.sleep(0)
    return 0.5
def broken(completion, answer):
    raise ValueError("no\\nanswer")
def text(completion, answer):
    return "good"
def ends(completion, answer):
    os._exit(3)
def leaves(completion, answer):
    sys.exit(0)
def hungry(completion, answer):
    return len(bytearray(8 << 30))
def stalls(completion, answer):
    time.sleep(1000)
def sometimes(completion, answer):
    return 1 / len(completion)
"""


@pytest.fixture
def own(tmp_path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def scored(path: Path, function: str, texts=("ab", "c"), **options):
    scorer = Scorer(rewards.choose((f"{path}:{function}",)), **options)
    try:
        return scorer.score([Completed(text, len(text), "7") for text in texts])
    finally:
        scorer.close()


def test_a_function_of_the_users_own(own):
    found = scored(own, "length")
    assert found.rewards == {"length": [2.0, 1.0]} and found.scores == [2.0, 1.0]
    assert scored(own, "later").rewards == {"later": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("broken", "ValueError: no\nanswer"),
        ("text", "returned 'good', which is not a number"),
        ("ends", "ended its process"),
        ("leaves", "SystemExit: 0"),
        ("hungry", "MemoryError"),
        ("stalls", "took longer than 0.5 s"),
        ("missing", "AttributeError"),
    ],
)
def test_a_reward_that_fails_counts_as_zero_and_is_told(function, reason, own):
    found = scored(own, function, deadline_s=0.5)
    assert found.rewards[function] == [0.0, 0.0]
    assert [one.text for one in found.failures] == ["ab", "c"]
    assert all(reason in one.reason for one in found.failures)


def test_one_that_fails_spoils_no_other(own):
    found = scored(own, "sometimes", texts=("ab", "", "c"))
    assert found.rewards["sometimes"] == [0.5, 0.0, 1.0]
    (failure,) = found.failures
    assert failure.text == "" and "ZeroDivisionError" in failure.reason


def test_weights_and_the_reported_score():
    chosen = rewards.choose(("boxed=2", "format=0.5"))
    scorer = Scorer(chosen)
    try:
        found = scorer.score([Completed(r"\boxed{1/2}", 9, "0.5"), Completed("x", 1, "0.5")])
    finally:
        scorer.close()
    assert found.rewards == {"boxed": [2.0, 0.0], "format": [0.0, 0.0]}
    assert found.scores == [1.0, 0.0]  # without its weight
    assert [one.name for one in rewards.choose(())] == ["accuracy", "format", "tags"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acuracy", "set --reward accuracy"),
        ("format=much", "set --reward format=0.5"),
        ("format=nan", "weight must be a number"),
        ("nowhere.py:f", "no such file"),
        (f"{__file__}:", "file.py:function"),
    ],
)
def test_a_reward_that_cannot_be_is_told_in_a_line(text, said):
    with pytest.raises(UserError, match=said):
        rewards.choose((text,))
    with pytest.raises(UserError, match="twice"):
        rewards.choose(("format", "format=0.1"))


DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.skipif(not DATA.exists(), reason="no data beside the checkout (../shared/data)")
@pytest.mark.parametrize("reward", ["boxed", "think_answer_tags"])
@pytest.mark.parametrize("name", ["gsm8k/train", "gsm8k/test", "math500/test"])
def test_gold_answers_score_one(name, reward):
    rows = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    golds = [row["answer"].rpartition("####")[2].strip() for row in rows]
    form = r"\boxed{%s}" if reward == "boxed" else "<think>so</think><answer>%s</answer>"
    scorer = Scorer(rewards.choose((reward,)))
    try:
        found = scorer.score([Completed(form % gold, 1, gold) for gold in golds])
    finally:
        scorer.close()
    assert found.scores == [1.0] * len(rows) and found.failures == []


def test_score_prints_a_row_each_and_a_summary(tmp_path, capfd):
    from unslothrl import cli

    path = tmp_path / "made.jsonl"
    rows = [
        {"problem": "a", "answer": "0.5", "completion": r"so \boxed{\frac{1}{2}}"},
        {"question": "b", "answer": "steps #### 12", "completion": r"\boxed{1,2}"},
        {"problem": "c", "answer": "1", "completion": "I do not know"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(["score", str(path), "--reward", "boxed", "--reward", "format=0.5"]) == 0
    out, err = capfd.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["score"] for row in found] == [1.0, 0.0, 0.0]
    assert [row["answer"] for row in found] == [r"\frac{1}{2}", "1,2", None]
    assert found[0]["rewards"] == {"boxed": 1.0, "format": 0.0} and found[0]["seconds"] > 0
    assert "3 completions, mean score 0.3333, 0 failed" in err and "a second" in err
    path.write_text(json.dumps({"problem": "a", "answer": "1"}) + "\n")
    assert cli.main(["score", str(path), "--reward", "boxed"]) == 2
    assert "row 1: column completion must be text" in capfd.readouterr().err
    assert cli.main(["score", str(path), "--reward", "bxed"]) == 2
    assert "set --reward accuracy" in capfd.readouterr().err

"""Rewards that may stall or fail: real processes, killed at real deadlines."""

import json
import re
import secrets
import tempfile
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from fakes import completed
from few_cases import few

from unslothrl import rewards
from unslothrl.data import formats
from unslothrl.errors import UserError
from unslothrl.rewards.builtin import maths
from unslothrl.rewards.processes import ProcessPool, RewardCall
from unslothrl.rewards.scorer import Scorer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{7}", "7"),
        (r"\boxed{\frac{1}{2}} and \boxed{ \sqrt{3} }", r"\sqrt{3}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),  # escaped braces do not count
        (r"\boxed{1} then \boxed{2", "1"),  # the last one that closes
        (r"\boxed 7", "7"),
        (r"\boxed7$.", "7"),
        (r"\boxed {7}", "7"),
        ("\\boxed\n{7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{\boxed7}", "7"),
        (r"\boxed{6} then \boxed 7", "7"),
        (r"\boxed7 then \boxed{6}", "6"),
        (r"\boxed 12", None),  # TeX's box would be 1
        (r"\boxed1.5", None),
        (r"\boxed", None),
        (r"\xboxed{7}", None),
        (r"\mbox{7}", None),
        ("\\boxed" * 100_000, None),
        ("\\boxed{" * 100_000, None),
        (r"\boxed{a} } } \boxed{b", "a"),
        (r"\\boxed{7}", "7"),
    ],
)
def test_boxed_answers(text, expected):
    assert formats.boxed(text) == expected


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        (r"\boxed{1} or \boxed{-2}", "1,-2", 1.0),
        (r"\boxed{1, -2}", "1,-2", 1.0),
        (r"\boxed{7} no: \boxed{1,-2}", "1,-2", 1.0),  # the last one alone
        (r"\boxed{1} \boxed{-2} \boxed{3}", "1,-2", 0.0),  # guesses
        (r"\boxed{1} \boxed{2}", "1", 0.0),
        (r"\boxed{1} \boxed{-2}", "(1,-2)", 0.0),  # an order is not said
    ],
)
def test_several_boxes_are_one_answer_where_the_gold_answer_is_a_list(completion, gold, expected):
    assert maths.boxed(completion, gold) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>a</think><answer>1/2</answer>", 1.0),
        ("\n<think>a</think> so <answer>0.50</answer>\n", 1.0),
        ("<think>a</think><answer>1/2</answer> done", 0.0),
        ("<answer>1/2</answer><think>a</think>", 0.0),
        ("<think>a</think><answer>1</answer><answer>1/2</answer>", 0.0),
        (r"<think>a</think><answer>$x = \boxed{1/2}$</answer>", 1.0),
        (r"<think>a</think><answer>The answer is $\boxed{\frac12}$.</answer>", 1.0),
        (r"<think>\boxed{1/2}</think><answer>x = $\boxed{1/3}$</answer>", 0.0),
        (r"<think>a</think><answer>$\boxed{1/2}$ or $\boxed{1/3}$</answer>", 0.0),
        (r"<think>a</think><answer>$\boxed{1/3}$ or $\boxed{1/2}$</answer>", 0.0),
    ],
)
def test_think_answer_tags(completion, expected):
    assert maths.think_answer_tags(completion, "0.5") == expected


@pytest.mark.real
def test_a_call_that_stalls_is_killed_and_the_others_go_on():
    calls = [RewardCall("time:sleep", (1000,))]
    calls += [RewardCall("answercheck:same", ("1/2", f"{i}/2")) for i in range(20)]
    with closing(ProcessPool(2, deadline_s=1.0)) as workers:
        workers.call(calls[1:3])  # what is imported by now does not count
        before = {psutil.Process(w.child.pid) for w in workers.processes}
        results = workers.call(calls)
        assert results[0].error == "took longer than 1 s" and 1 <= results[0].seconds < 2
        assert [result.value for result in results[1:]] == [i == 1 for i in range(20)]
        after = {psutil.Process(w.child.pid) for w in workers.processes}
        assert len(before & after) == 1 and len(after) == 2
    assert not any(process.is_running() for process in before | after)


OWN = """
import asyncio, mmap, os, time
from decimal import Decimal
from fractions import Fraction
import numpy as np
def named(text, gold, *, level, row, prompt="none", scale=3):
    assert gold == "7" and level == 5 and row == {"level": 5} and prompt == "P"
    return scale
def rest(completion, **columns):
    return len(columns) if set(columns) == {"answer", "prompt", "level"} else -1
def both(completion, answer):
    return {"reward": -2.5, "score": 1}
def batch(completions, answers, level):
    return [len(text) + len(answers) + level[0] for text in completions]
async def like_trl(completions, prompts, **columns):
    assert columns["level"] == [5] * len(prompts) and columns["answers"] == ["7"] * len(prompts)
    return [0.25 for _ in completions]
def numpys(completion):
    return np.float32(0.5)
def parts(completions):
    return [np.float32(1), Fraction(1, 4)]
def decimal(completion):
    return {"reward": Decimal("0.25"), "score": np.array(1)}
def batch_of_wrong_length(completions):
    return [1]
def batch_stalls(completions):
    time.sleep(1000)
async def waits(completion):
    await asyncio.sleep(0.5 if completion == "slow" else 0.2)
    return 1
async def hangs_once(completion):
    await asyncio.sleep(1000 if completion == "ab" else 0)
    return 1
async def hangs_in_a_thread(completion):
    await asyncio.to_thread(time.sleep, 1000 if completion.startswith("ab") else 0)
    return 1
loops = []
async def one_loop(completion):
    loops.append(asyncio.get_running_loop())
    return float(all(each is loops[0] for each in loops))

def length(completion, answer):
    print("noise that must not reach the caller")
    return len(completion)
def ends(completion, answer):
    os._exit(3)
def hungry(completion, answer):
    return len(mmap.mmap(-1, 8 << 30))
"""


@pytest.fixture
def own(tmp_path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def scored(path: Path, *functions: str, texts=("ab", "c"), **options):
    chosen, row = rewards.choose(tuple(f"{path}:{each}" for each in functions)), {"level": 5}
    with closing(Scorer(chosen, **options)) as scorer:
        return scorer.score([completed(text, len(text), "7", row, "P") for text in texts])


@pytest.mark.real
def test_what_a_function_of_the_users_own_may_take(own):
    expected = {
        "both": [-2.5, -2.5],
        "length": [2.0, 1.0],
        "named": [3.0, 3.0],
        "rest": [3.0, 3.0],
        "batch": [9.0, 8.0],  # length + 2 answers + level
        "like_trl": [0.25, 0.25],
        "numpys": [0.5, 0.5],
        "parts": [1.0, 0.25],
        "decimal": [0.25, 0.25],
    }
    found = scored(own, *expected)
    assert (found.rewards, found.scores, found.failures) == (expected, [1.0, 1.0], [])


@pytest.mark.real
def test_async_functions_run_at_the_same_time_and_one_that_hangs_spoils_no_other(own):
    found = scored(own, "waits", texts=["x"] * 60, deadline_s=5)  # 12 s one after the other
    assert found.rewards["waits"] == [1.0] * 60 and sum(found.seconds) < 6
    found = scored(own, "hangs_once", texts=["ab", "c", "d"], deadline_s=0.5)
    assert found.rewards["hangs_once"] == [0.0, 1.0, 1.0]
    assert [one.reason for one in found.failures] == ["took longer than 0.5 s"]


@pytest.mark.real
def test_async_calls_share_a_loop_and_no_thread_that_hangs(own):
    """As a judge's client has it: made once for the file, some of them in threads."""
    chosen = rewards.choose((f"{own}:hangs_in_a_thread", f"{own}:one_loop"))
    late = [f"ab{i}" for i in range(40)]  # more than there are threads
    with closing(Scorer(chosen, deadline_s=0.5)) as scorer:
        scorer.custom_processes.count = 1
        before = scorer.score([completed(text) for text in ("c", *late)])
        after = scorer.score([completed(text) for text in ("c", "d")])
    assert before.rewards["hangs_in_a_thread"] == [1.0, *[0.0] * 40]
    assert {one.reason for one in before.failures} == {"took longer than 0.5 s"}
    assert after.rewards == {"hangs_in_a_thread": [1.0, 1.0], "one_loop": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def g(completion): pass", "has no attribute 'f'"),
        ("def f(", "it is not Python"),
        ("import no_such_package\ndef f(completion): return 1", "No module named"),
    ],
)
def test_a_file_without_such_a_function_is_told_before_a_run(text, said, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    with (
        pytest.raises(UserError, match=said),
        closing(Scorer(rewards.choose((f"{tmp_path / 'mine.py'}:f",)))) as scorer,
    ):
        scorer.check()


@pytest.mark.real
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("batch_of_wrong_length", "returned no list of 2: [1]"),
        ("batch_stalls", "took longer than 6 s"),
        ("ends", "ended its process"),
    ],
)
def test_a_reward_that_fails_counts_as_zero_and_is_told(function, reason, own):
    found = scored(own, function, deadline_s=0.5)
    assert found.rewards[function] == [0.0, 0.0]
    assert [one.text for one in found.failures] == ["ab", "c"]
    assert all(reason in one.reason for one in found.failures)


@pytest.mark.real
def test_memory_is_limited_but_for_functions_of_the_users_own(own):
    with closing(ProcessPool(1)) as workers:
        (result,) = workers.call([RewardCall(f"{own}:hungry", ("", ""))])
    assert result.error is not None and "Cannot allocate memory" in result.error
    assert scored(own, "hungry").rewards["hungry"] == [8 << 30] * 2  # it may load a model


def test_weights_and_the_reported_score():
    with closing(Scorer(rewards.choose(("boxed=2", "format=0.5")))) as scorer:
        found = scorer.score([completed(r"\boxed{1/2}", 9, "0.5"), completed("x", 1, "0.5")])
    assert found.rewards == {"boxed": [2.0, 0.0], "format": [0.0, 0.0]}
    assert found.scores == [1.0, 0.0]  # without its weight


def test_a_reward_that_cannot_be_is_told():
    for chosen, said in (
        (("format=nan",), "=WEIGHT"),
        (("nowhere.py:f",), "no such file"),
        (("format", "format=0.1"), "twice"),
    ):
        with pytest.raises(UserError, match=said):
            rewards.choose(chosen)


DATA = Path(__file__).parents[2] / "shared" / "data"


def perturbed(answer: str) -> str:
    """Another answer: its last digit one more; without one its first letter the next; else + 1."""
    digits = [i for i, character in enumerate(answer) if character in "0123456789"]
    if digits:
        at, new = digits[-1], str((int(answer[digits[-1]]) + 1) % 10)
    else:
        plain = re.sub(r"\\[a-zA-Z]+", lambda command: " " * len(command[0]), answer)
        at = next((i for i, character in enumerate(plain) if character.isalpha()), None)
        if at is None:  # \\pi
            return answer + "+1"
        new = chr(ord(answer[at]) + 1)
    return answer[:at] + new + answer[at + 1 :]


@pytest.mark.real
@pytest.mark.skipif(not DATA.exists(), reason="no data beside the checkout (../shared/data)")
@pytest.mark.parametrize("reward", ["boxed", "think_answer_tags"])
@pytest.mark.parametrize("name", few(["math500/test", "gsm8k/train", "gsm8k/test"]))
def test_gold_answers_score_one(name, reward):
    rows = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    golds = [formats.read(row).answer for row in rows]
    form = r"\boxed{%s}" if reward == "boxed" else "<think>so</think><answer>%s</answer>"
    with closing(Scorer(rewards.choose((reward,)))) as scorer:
        found = scorer.score([completed(form % gold, 1, gold) for gold in golds])
        wrong = scorer.score([completed(form % perturbed(gold), 1, gold) for gold in golds])
    assert found.scores == [1.0] * len(rows) and found.failures == wrong.failures == []
    assert {gold for gold, score in zip(golds, wrong.scores, strict=True) if score} == set()


TOUCHED = Path(tempfile.gettempdir()) / f"unslothrl-hostile-{secrets.token_hex(8)}"

HOSTILE_TEXT = {
    "unbalanced": "{" * 5000 + "\\frac{1}{",
    "a megabyte": "9" * (1 << 20),
    "a megabyte of boxes": "\\boxed{" * 150_000 + "7" + "}" * 150_000,
    "a megabyte of tags": "<answer>" * 130_000,
    "power tower": "9**9**9**9",
    "factorials": "((((9!)!)!)!)!",
    "nested fractions": "\\frac{1}{" * 200 + "2" + "}" * 200,
    "nested roots": "\\sqrt{" * 240 + "2" + "}" * 240,
    "a long sum": "+".join(["x"] * 490),
    "null bytes": "\x00" * 100,
    "a null byte": "7\x00",
    "half a surrogate": "\ud8007",
    "a big integral": "\\int_0^1 " * 90 + "x",
    "code": f"__import__('os').system('touch {TOUCHED}')",
}


@pytest.mark.real
@pytest.mark.parametrize(
    "reward", few(["boxed", "think_answer_tags", "accuracy", "countdown", "search"], 2)
)
def test_hostile_text_neither_crashes_nor_outlasts_its_deadline(reward):
    form = r"\boxed{%s}" if reward == "boxed" else "<think>so</think><answer>%s</answer>"
    extra = {"numbers": [7], "target": 7}
    right = completed(form % "7", 1, "7", extra)
    made = [completed(form % text, 1, "7", extra) for text in HOSTILE_TEXT.values()]
    with closing(Scorer(rewards.choose((reward,)), deadline_s=2.0)) as scorer:
        assert scorer.score([right]).scores == [1.0]  # warm
        found = scorer.score([one for each in made for one in (each, right)])
        assert scorer.score([right]).scores == [1.0]
    assert found.scores[1::2] == [1.0] * len(made)  # those between them
    wrong = dict(zip(HOSTILE_TEXT, found.scores[::2], strict=True))
    assert {name for name, score in wrong.items() if score} <= {"a megabyte of boxes"}
    assert all(one.reason == "took longer than 2 s" for one in found.failures), found.failures
    assert max(found.seconds[::2]) < 2.0 + 1.0, found.seconds
    assert not TOUCHED.exists()


@pytest.mark.real
def test_score_prints_a_row_each_and_a_summary(tmp_path, capfd):
    from unslothrl.commands import cli

    path = tmp_path / "made.jsonl"
    rows = [
        {"problem": "a", "answer": "0.5", "completion": r"so \boxed{\frac{1}{2}}"},
        {"question": "b", "answer": "steps #### 12", "completion": r"\boxed{1,2}"},
        {"problem": "c", "answer": "1", "completion": "I do not know"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(["score", str(path), "--reward", "boxed=0", "--reward", "format=0.5"]) == 0
    out, err = capfd.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["score"] for row in found] == [1.0, 0.0, 0.0]
    assert [row["answer"] for row in found] == [r"\frac{1}{2}", "1,2", None]
    assert [row["expected"] for row in found] == ["0.5", "12", "1"]
    assert found[0]["rewards"] == {"boxed": 1.0, "format": 0.0} and found[0]["seconds"] > 0
    assert "3 completions, mean score 0.3333, 0 failed" in err
    assert err.rstrip().endswith("; boxed 0.3333, format 0.0000")
    path.write_text(json.dumps({"problem": "a", "answer": "1"}) + "\n")
    for reward, said in (("boxed", "row 1: column completion"), ("bxed", "set --reward boxed")):
        assert cli.main(["score", str(path), "--reward", reward]) == 2
        assert said in capfd.readouterr().err

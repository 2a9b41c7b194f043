"""Functions of the user's own as they are written: for TRL, with NumPy, with models to load, with
mistakes."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import completed
from few_cases import few
from test_scoring import scored

from unslothrl import rewards
from unslothrl.rewards import custom
from unslothrl.rewards.scorer import Scorer

pytestmark = pytest.mark.real

TRL = """
import re
from decimal import Decimal
from fractions import Fraction
import numpy as np

def correctness(prompts, completions, answer, **kwargs) -> list[float]:  # of Unsloth's notebooks
    responses = [completion[0]["content"] for completion in completions]
    question = prompts[0][-1]["content"]
    assert question == "P" and kwargs["level"] == [5] * len(completions)
    return [2.0 if response.endswith(a) else 0.0 for response, a in zip(responses, answer)]

def each_message(completions, **kwargs):
    return [sum(len(m.get("content", "")) for m in messages) for messages in completions]

def text_of(message):
    return message["content"]

def by_a_helper(completions, **kwargs):
    return [len(text_of(c[0])) for c in completions]

def annotated(completions: list[list[dict[str, str]]], ground_truth, **kwargs):
    return [len("".join(m[key] for m in c for key in m if key != "role")) for c in completions]

def text(completions, **kwargs):
    return [1.0 if re.match("a", c) else 0.5 for c in completions]

def of_rows(completions, rows):
    return [len(c) + row.get("content", 0) + rows[0].get("content", 0) for c, row in
            zip(completions, rows)]

def text_with_a_key(completions: list[str], **kwargs):
    found = {"content": 1}
    return [len(c) * found["content"] for c in completions]

def either(completions, solution, **kwargs):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(len(t)) for t, s in zip(texts, solution) if s == "7"]

def by_keyword(*, completions, **kwargs):
    return [len(kwargs["answer"]) + len(c) for c in completions]

def scalar(completion): return np.float32(0.5)
def boolean(completion): return np.bool_(True)
def whole(completion): return np.int64(3)
def array(completions): return np.arange(len(completions), dtype=np.float16)
def parts(completions): return [np.float32(1), Fraction(1, 4)]
def decimal(completion): return {"reward": Decimal("0.25"), "score": np.array(1)}
async def later(completion): return np.float32(0.5)
"""


@pytest.fixture
def trl(tmp_path):
    (tmp_path / "trl.py").write_text(TRL)
    return tmp_path / "trl.py"


@pytest.mark.parametrize(
    ("function", "expected"),
    few(
        [
            ("correctness", [0.0, 2.0]),
            ("by_a_helper", [2.0, 3.0]),
            ("text", [1.0, 0.5]),
            ("of_rows", [2.0, 3.0]),
            ("text_with_a_key", [2.0, 3.0]),
            ("either", [2.0, 3.0]),
            ("by_keyword", [4.0, 5.0]),
            ("scalar", [0.5, 0.5]),
            ("boolean", [1.0, 1.0]),
            ("whole", [3.0, 3.0]),
            ("array", [0.0, 1.0]),
            ("parts", [1.0, 0.25]),
            ("decimal", [0.25, 0.25]),
            ("later", [0.5, 0.5]),
        ],
        4,
    ),
)
def test_functions_written_for_trl_and_numpy(function, expected, trl):
    found = scored(trl, function, texts=("ab", "is7"))
    assert (found.rewards[function], found.failures) == (expected, [])


@pytest.mark.parametrize("function", few(["each_message", "annotated", "by_a_helper"]))
def test_functions_that_go_through_messages_get_those_of_conversational_data(function, trl):
    said = [{"role": "user", "content": "P"}]
    pairs = [completed(text, len(text), "7") for text in ("ab", "is7")]
    pairs = [(replace(task, messages=(("user", "P"),), read={"prompt": said}), done)
             for task, done in pairs]  # fmt: skip
    scorer = Scorer(rewards.choose((f"{trl}:{function}",)))
    try:
        found = scorer.score(pairs)
    finally:
        scorer.close()
    assert (found.rewards[function], found.failures) == ([2.0, 3.0], [])


def test_the_documented_function_for_trl_runs(tmp_path):
    docs = Path(__file__).parents[1] / "docs" / "rewards.md"
    (tmp_path / "mine.py").write_text(docs.read_text().split("```python\n")[2].split("```")[0])
    found = scored(tmp_path / "mine.py", "correctness", texts=("so 7", "no"))
    assert (found.rewards["correctness"], found.failures) == ([2.0, 0.0], [])


def test_a_scalar_of_torch_is_a_number(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import torch\ndef f(completions): return torch.tensor([0.5, 1.0]).bfloat16()")
    found = scored(path, "f", deadline_s=30)
    assert (found.rewards["f"], found.failures) == ([0.5, 1.0], [])


def test_messages_are_passed_where_the_data_have_them(trl):
    turns = (("system", "Be brief."), ("user", "What?"))
    rows = {"prompt": [{"role": role, "content": text} for role, text in turns]}
    task, done = completed("7", 1, "7")
    task = replace(task, problem="What?", prompt="<user>What?</user>", messages=turns)
    plain = replace(task, read={"prompt": "What?"}), done
    told = replace(task, read=rows), done
    signature = custom.signature_of(trl, "correctness")
    named = signature.named_for_all([told])
    assert named["prompts"] == [rows["prompt"]]
    assert named["completions"] == [[{"role": "assistant", "content": "7"}]]
    named = signature.named_for_all([plain])
    assert (named["prompts"], named["completions"]) == (["What?"], ["7"])
    own = custom.Signature(("answers",), None, True, False, False)
    assert own.named_for_all([told])["completions"] == ["7"]


LOADS = """
import asyncio, time
model = None
def load():
    global model
    if model is None:
        time.sleep({load})
        model = len
def loads(completion):
    load()
    return model(completion)
def loads_for_all(completions):
    load()
    return [model(text) for text in completions]
async def loads_later(completion):
    load()
    await asyncio.sleep(0)
    return model(completion)
def sometimes_stalls(completion):
    if completion == "stalls": time.sleep(1000)
    load()
    return 1
"""


@pytest.mark.parametrize("function", few(["loads", "loads_for_all", "loads_later"]))
def test_a_function_that_loads_a_model_when_it_is_first_called_has_time_for_it(function, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(LOADS.replace("{load}", "0.8"))
    found = scored(path, function, texts=["a", "bc", "", "d"], deadline_s=0.5)
    assert (found.rewards[function], found.failures) == ([1.0, 2.0, 0.0, 1.0], [])


def test_what_a_first_call_took_is_allowed_to_the_processes_after_it(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(LOADS.replace("{load}", "0.8"))
    texts = ["a", "b", "stalls", "stalls", "c", "d", "stalls", "e"]
    found = scored(path, "sometimes_stalls", texts=texts, deadline_s=0.5)
    assert found.scores == [float(text != "stalls") for text in texts]
    assert {one.text for one in found.failures} == {"stalls"}


def test_one_that_never_answers_is_not_called_for_ever(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import time\ndef f(completion): time.sleep(1000)")
    started = time.monotonic()
    found = scored(path, "f", texts=["a"] * 200, deadline_s=0.1)
    assert time.monotonic() - started < 10  # 0.1 s for each of 200, and a new process each
    assert len(found.failures) == 200 and all(one.was_late for one in found.failures)


MISTAKES = """
def helper(text):
    return 1 / len(text)

def divides(completion):
    return helper(completion)

def batch(completions):
    return [completion["text"] for completion in completions]

async def later(completion):
    return None + 1

def a_set(completion):
    return {1, 2}

def huge(completion):
    return 10 ** 5000

class Mute(Exception):
    def __str__(self):
        raise RuntimeError

def mute(completion):
    raise Mute

def text(completion):
    return "x" * 50_000_000  # which would take half a minute to arrive
"""


@pytest.mark.parametrize(
    ("function", "reason"),
    few([
        ("divides", "ZeroDivisionError: division by zero (mine.py, line 3)"),
        ("batch", "TypeError: string indices must be integers, not 'str' (mine.py, line 9)"),
        ("later", "TypeError: unsupported operand type(s) for +: 'NoneType' and 'int' "
                  "(mine.py, line 12)"),
        ("a_set", "TypeError: returned no number, but set"),
        ("huge", "OverflowError: int too large to convert to float"),
        ("mute", "Mute: its text cannot be had (mine.py, line 25)"),
        ("text", f"returned no number: '{59 * 'x'}"),
    ], 2),
)  # fmt: skip
def test_an_error_says_where_it_is(function, reason, tmp_path):
    (tmp_path / "mine.py").write_text(MISTAKES)
    found = scored(tmp_path / "mine.py", function, texts=[""])
    assert [one.reason for one in found.failures] == [reason]
    assert not found.failures[0].was_late


def test_an_error_of_a_file_says_where_it_is(tmp_path):
    (tmp_path / "mine.py").write_text("def f(completion): return 1\n\nx = 1 / 0\n")
    scorer = Scorer(rewards.choose((f"{tmp_path}/mine.py:f",)))
    try:
        with pytest.raises(rewards.UserError, match=r"by zero \(mine.py, line 3\): fix it$"):
            scorer.check()
        assert scorer.score([completed("", 0, "")]).failures[0].reason.endswith("line 3)")
    finally:
        scorer.close()

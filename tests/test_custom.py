"""Functions of the user's own as they are written: for TRL, with NumPy, with models to load, with
mistakes."""

import json
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import completed
from few_cases import few
from test_scoring import scored

from unslothrl import rewards
from unslothrl.commands import cli
from unslothrl.rewards import custom
from unslothrl.rewards.scorer import Scorer

pytestmark = pytest.mark.real


def scored_by(source: str, function: str, texts=("ab", "c"), **options):
    """What a function of a file mine.py gives."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mine.py").write_text(source)
        return scored(Path(folder) / "mine.py", function, texts=texts, **options)


def test_the_documented_function_for_trl_runs():
    docs = Path(__file__).parents[1] / "docs" / "rewards.md"
    source = docs.read_text().split("```python\n")[4].split("```")[0]
    found = scored_by(source, "correctness", ("so 7", "no"))
    assert (found.rewards["correctness"], found.failures) == ([2.0, 0.0], [])


def test_messages_are_passed_where_the_data_have_them(tmp_path):
    path = tmp_path / "trl.py"
    path.write_text("def f(prompts, completions, **kwargs): return completions[0][0]['content']")
    turns = (("system", "Be brief."), ("user", "What?"))
    rows = {"prompt": [{"role": role, "content": text} for role, text in turns]}
    task, done = completed("7", 1, "7")
    task = replace(task, problem="What?", prompt="<user>What?</user>", messages=turns)
    told = replace(task, read=rows), done
    signature, plain = custom.signature_of(path, "f"), replace(task, read={"prompt": "What?"})
    named = signature.named_for_all([told])
    assert named["prompts"] == [rows["prompt"]]
    assert named["completions"] == [[{"role": "assistant", "content": "7"}]]
    named = signature.named_for_all([(plain, done)])
    assert (named["prompts"], named["completions"]) == (["What?"], ["7"])
    own = custom.Signature(("answers",), None, True, False, False)
    assert own.named_for_all([told])["completions"] == ["7"]


ASKED = """
def first(completion, question, answer):
    return float((question, answer) == ("1 + 1?", "2"))
def last(completion, answer, question):
    return float((question, answer) == ("1 + 1?", "2"))
def alone(completion, Problem):
    return float(Problem == "1 + 1?")
"""


@pytest.mark.parametrize(
    ("function", "row"),
    [
        ("first", {"question": "1 + 1?", "answer": "two #### 2"}),
        ("last", {"question": "1 + 1?", "answer": "two #### 2"}),
        ("alone", {"Problem": "1 + 1?"}),  # without an answer
    ],
)
def test_a_parameter_named_like_the_prompts_column_gets_the_prompt(function, row, tmp_path, capfd):
    (tmp_path / "mine.py").write_text(ASKED)
    (tmp_path / "made.jsonl").write_text(json.dumps({**row, "completion": "x"}) + "\n")
    reward = f"{tmp_path}/mine.py:{function}"
    assert cli.main(["score", str(tmp_path / "made.jsonl"), "--reward", reward]) == 0
    assert json.loads(capfd.readouterr().out)["rewards"] == {function: 1.0}


LOADS = """
import time
model = None
def load():
    global model
    if model is None:
        time.sleep(0.8)
        model = len
def loads(completion):
    load()
    return model(completion)
def loads_for_all(completions):
    load()
    return [model(text) for text in completions]

def sometimes_stalls(completion):
    if completion == "stalls": time.sleep(1000)
    load()
    return 1
"""


@pytest.mark.parametrize("function", few(["loads", "loads_for_all"]))
def test_a_function_that_loads_a_model_when_it_is_first_called_has_time_for_it(function):
    found = scored_by(LOADS, function, ["a", "bc", "", "d"], deadline_s=0.5)
    assert (found.rewards[function], found.failures) == ([1.0, 2.0, 0.0, 1.0], [])


def test_what_a_first_call_took_is_allowed_to_the_processes_after_it():
    texts = ["a", "b", "stalls", "stalls", "c", "d", "stalls", "e"]
    found = scored_by(LOADS, "sometimes_stalls", texts, deadline_s=0.5)
    assert found.scores == [float(text != "stalls") for text in texts]
    assert {one.text for one in found.failures} == {"stalls"}


def test_one_that_never_answers_is_not_called_for_ever():
    started = time.monotonic()
    source = "import time\ndef f(completion): time.sleep(1000)"
    found = scored_by(source, "f", ["a"] * 200, deadline_s=0.1)
    assert time.monotonic() - started < 10  # 0.1 s for each of 200, and a new process each
    assert len(found.failures) == 200 and all(one.was_late for one in found.failures)


MISTAKES = """
def helper(text):
    return 1 / len(text)

def divides(completion):
    return helper(completion)

def batch(completions):
    return [completion["text"] for completion in completions]

def a_set(completion):
    return {1, 2}

def text(completion):
    return "x" * 50_000_000  # which would take half a minute to arrive
"""


@pytest.mark.parametrize(
    ("function", "reason"),
    few([
        ("divides", "ZeroDivisionError: division by zero (mine.py, line 3)"),
        ("batch", "TypeError: string indices must be integers, not 'str' (mine.py, line 9)"),
        ("a_set", "TypeError: returned no number, but set"),
        ("text", f"returned no number: '{59 * 'x'}"),
    ], 2),
)  # fmt: skip
def test_an_error_says_where_it_is(function, reason):
    found = scored_by(MISTAKES, function, [""])
    assert [one.reason for one in found.failures] == [reason]
    assert not found.failures[0].was_late


def test_an_error_of_a_file_says_where_it_is(tmp_path):
    (tmp_path / "mine.py").write_text("def f(completion): return 1\n\nx = 1 / 0\n")
    with closing(Scorer(rewards.choose((f"{tmp_path}/mine.py:f",)))) as scorer:
        with pytest.raises(rewards.UserError, match=r"by zero \(mine.py, line 3\): fix it$"):
            scorer.check()
        assert scorer.score([completed("", 0, "")]).failures[0].reason.endswith("line 3)")


LEFT_BEHIND = """
import asyncio
import json
import signal
def alarm(completion):
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    signal.alarm(100)
    return 1.0 if left == 0 else 0.0
def patch(completion):
    json.dumps = lambda value: '[0.0, null]'
    return 1.0
async def ends(completion):
    if completion == "cancelled": raise asyncio.CancelledError
    if completion == "exits": raise SystemExit(3)
    return 1.0
"""


@pytest.mark.parametrize(
    ("function", "texts", "rewards"),
    [
        ("ends", ["a", "cancelled", "exits", "b"], [1.0, 0.0, 0.0, 1.0]),
        ("alarm", ["a", "b", "c"], [1.0, 1.0, 1.0]),
        ("patch", ["a", "b", "c"], [1.0, 1.0, 1.0]),
    ],
)
def test_what_one_call_does_is_not_anothers(function, texts, rewards):
    found = scored_by(LEFT_BEHIND, function, texts)
    assert found.rewards[function] == rewards
    assert len(found.failures) == rewards.count(0.0)


@pytest.mark.parametrize(
    "parameters", ["answer, completion", "data_source, solution_str, ground_truth"]
)
def test_a_completion_that_is_not_first_is_refused(parameters, tmp_path):
    (tmp_path / "mine.py").write_text(f"def f({parameters}): return 1.0")
    with pytest.raises(rewards.UserError, match="the first parameter of f is what gets the"):
        custom.signature_of(tmp_path / "mine.py", "f")

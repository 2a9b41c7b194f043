"""Tests in Python: programs that solve them pass, programs that forge do not."""

import json
from contextlib import closing

import pytest
from asserted import EQUAL, FORGED, FORGING, JUDGING, ROWS, SOLVES, checked, listed
from environment_files import rows_in
from fakes import completed
from few_cases import few

from unslothrl import rewards, sandbox
from unslothrl.commands import cli
from unslothrl.data import formats
from unslothrl.data.formats import UnusableRow
from unslothrl.rewards.builtin import code
from unslothrl.rewards.scorer import Scorer
from unslothrl.sandbox.levels import LEVELS
from unslothrl.sandbox.runner import run_tests

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def scorer():
    with closing(Scorer(rewards.choose(("code",)), deadline_s=1.5)) as made:
        yield made


def block(text):
    return f"```python\n{text}\n```"


def scores(scorer, row, programs):
    found = scorer.score([completed(block(text), 1, "", code.read(row)) for text in programs])
    assert found.failures == []
    return found.scores


@pytest.mark.parametrize("name", few(ROWS, 4))
def test_programs_that_solve_pass_and_others_do_not(name, scorer):
    row, solving, failing = ROWS[name]
    made = dict.fromkeys(solving, 1.0) | dict.fromkeys(failing, 0.0)
    assert dict(zip(made, scores(scorer, row, made), strict=True)) == made


@pytest.mark.parametrize(("row", "solves", "forging"), [(FORGED, SOLVES, FORGING), JUDGING])
def test_no_program_forges_its_success_or_is_judged_by_its_result(row, solves, forging, scorer):
    found = scores(scorer, row, [solves, *forging.values()])
    assert [n for n, score in zip(["solves", *forging], found, strict=True) if score] == ["solves"]


SEQUENCE = """
class Own:
    __len__ = lambda self: {length}
    __getitem__ = lambda self, at: Own()
    __iter__ = lambda self: iter(())
    __array__ = lambda self, *a, **k: __import__("numpy").full((), {value})
    __float__ = lambda self: {value}
def double(x): return {result}
"""


@pytest.mark.parametrize(
    "test",
    few(
        [
            "np.testing.assert_allclose(candidate(3), 6.0)",
            "np.testing.assert_array_equal(candidate(3), [6.0])",
            "assert np.allclose(candidate(3), 6.0)",
            "assert np.all(np.asarray(candidate(3)) == 6.0)",
        ],
        2,
    ),
)
def test_an_object_of_a_programs_own_is_no_array(test):
    row = checked("double(x)", f"import numpy as np\n{test}")
    forging = [
        SEQUENCE.format(length=length, value=value, result=result)
        for length, value, result in ((0, "7.0", "Own()"), (1, "6.0", "Own()"), (0, "7.0", "Own"))
    ]
    solves = "import numpy as np\ndef double(x): return np.asarray([2.0 * x])"
    code_reward = rewards.choose(("code",))
    with closing(Scorer(code_reward, deadline_s=10)) as patient:  # it imports NumPy twice
        assert scores(patient, row, [*forging, solves]) == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_judges_alike(level):
    if level != "none" and sandbox.available(level) is not None:
        pytest.skip(f"{level} does not work here")
    tests = code.read(FORGED)["tests"]
    limits = sandbox.Limits(cpu_s=2, wall_s=4)
    for text, is_right in (
        (SOLVES, True),
        (EQUAL + "def double(x): return Equal()", False),
        ("import os\nos._exit(0)", False),
    ):
        outcome = run_tests(text, tests, limits, level)
        assert (outcome.stopped is None and outcome.result is True) is is_right, text


def test_what_the_program_sees_has_no_tests(scorer):
    """Its own arguments, and the row's code; each program reports by what it returns."""
    row = checked("secret(x)", 'assert "the expected text" == "the expected text"\n'
                               "assert candidate(1) is True")  # fmt: skip
    finds = """
import gc
def secret(x):
    wanted = " ".join(["the", "expected", "text"])
    return not any(wanted in repr(each)[:99999] for each in gc.get_objects()
                   if isinstance(each, (bytes, tuple, list, dict)))
"""
    assert scores(scorer, row, [finds, "def secret(x): return False"]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"test": "def check(candidate):\n    pass", "entry_point": "f"}, "asserts nothing"),
        ({"test": "def check(candidate):\n    assert candidate(1)"}, "no column entry_point"),
        ({"test": "def check(candidate:\n assert 1", "entry_point": "f"}, "is not Python"),
        ({"test": "def helper():\n    assert f(1)"}, "runs no test"),
        ({"test_list": ["assert f(1) == 1", "x = 1"]}, "no tests, in no column of"),
    ],
)
def test_tests_that_test_nothing_are_an_error_of_the_data(row, said):
    with pytest.raises(UnusableRow, match=said):
        code.read({"problem": "p", **row})


def test_a_program_cannot_end_what_the_tests_go_through(scorer):
    """map() takes a StopIteration of its function for its end."""
    row = checked("double(x)", "assert all(map(lambda x: candidate(x) == 2 * x, [1, 2]))")
    assert scores(scorer, row, ["def double(x): raise StopIteration", SOLVES]) == [0.0, 1.0]
    attribute = (
        "class Stops:\n    @property\n    def value(self): raise StopIteration\n"
        "def double(x): return Stops()"
    )
    by_attribute = checked("double(x)", "assert all(map(lambda x: candidate(x).value == 2, [1]))")
    assert scores(scorer, by_attribute, [attribute]) == [0.0]
    expected = checked("double(x)", """
try:
    candidate(1)
    assert False
except StopIteration:
    pass
assert list(candidate([1])) == [1]
""")  # fmt: skip
    stops = "def double(x):\n    if x == 1: raise StopIteration\n    return iter(x)"
    assert scores(scorer, expected, [stops, SOLVES]) == [1.0, 0.0]
    assert scores(scorer, checked("double(x)", "assert 1 == 1"), [SOLVES]) == [0.0]  # not called


def test_the_model_is_asked_for_a_function_with_its_name():
    reader = rewards.reader_of(rewards.choose(("code",)), formats.Columns())
    record = reader.record({**FORGED})
    assert "def double(x):" in record.problem
    assert "test" not in record.extra and record.extra["tests"]["has_check"]
    mbpp = reader.record(listed("assert area(2) == 4", "assert area(3) == 9"))
    assert mbpp.problem.endswith("assert area(2) == 4") and "area(3)" not in mbpp.problem
    again = reader.record({"prompt": mbpp.problem, "test_list": ["assert area(2) == 4"]})
    assert again.problem == mbpp.problem  # shown once
    assert formats.read({"question": "q", "test_list": ["assert f(1)"]}).problem == "q"


def test_files_of_both_data_sets_are_scored(tmp_path, capfd):
    rows = [
        {**FORGED, "canonical_solution": "    return 2 * x\n", "completion": block(SOLVES)},
        {**FORGED, "completion": block("def double(x): return x")},
        {**listed("assert area(2) == 4", "assert area(3) == 9"), "test_setup_code": "",
         "challenge_test_list": [], "completion": block("def area(x): return x * x")},
        {"prompt": "Square it.", "test_list": ["assert area(3) == 9"],
         "test_imports": ["import math"],
         "completion": block("def area(x): return math.pow(x, 2)")},
    ]  # fmt: skip
    assert cli.main(["score", rows_in(tmp_path, rows), "--reward", "code"]) == 0
    out = capfd.readouterr().out
    assert [json.loads(line)["score"] for line in out.splitlines()] == [1.0, 0.0, 1.0, 1.0]

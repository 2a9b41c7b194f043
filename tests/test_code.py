"""The code reward: programs that solve, fail, cheat and stall, run for real."""

import os
import shutil
from contextlib import closing

import pytest
from fakes import completed

from unslothrl import rewards
from unslothrl.rewards.builtin import code
from unslothrl.rewards.scorer import Scorer

pytestmark = pytest.mark.real

DOUBLE = {"inputs": ["1\n", "2\n", "21"], "outputs": ["2\n", "4", "42"], "fn_name": None}
ADD = {"inputs": [[1, 2], "3\n4", [[5], [6]]], "outputs": [3, "7", [[5, 6]]], "fn_name": "add"}


def block(text: str) -> str:
    return f"I think so.\n```python\n{text}\n```\nDone."


def score(texts, tests=DOUBLE, level=None, **options):
    with closing(Scorer(rewards.choose(("code",)), **options)) as scorer:
        if level is not None:
            scorer.check()
            assert scorer.level == level
        return scorer.score([completed(text, 1, "", {"tests": tests}) for text in texts])


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (block("a") + block("b\n\n  c"), "b\n\n  c"),  # the last one counts
        ("```Python3\r\na\r\n```\r\n", "a"),
        (block("a") + "```\nno Python\n```", "a"),
        (block("a") + "```python\ncut off", "a"),
        ("```python\ncut off", None),
        ("```\nprint(1)\n```", None),
        ("print(1)", None),
    ],
)
def test_the_program_of_a_completion(completion, expected):
    assert code.program(completion) == expected


def test_all_tests_must_be_passed():
    solves = "print(2 * int(input()))"
    made = {
        solves: 1.0,
        f"print = print\nfor i in range(1):\n    {solves}": 1.0,
        solves + "\nprint()": 1.0,  # blank lines at the end
        "print({1: 2, 2: 4}.get(int(input()), 0))": 0.0,  # knows two of three
        "print(2)": 0.0,
        "print('2\\n4\\n42')": 0.0,
        solves + "\n1 / 0": 0.0,  # right, then it fails
        "import os\nos._exit(0)": 0.0,
        "import builtins\nbuiltins.print = lambda *_: None\n" + solves: 0.0,
        "import builtins\nbuiltins.int = lambda x: 1\n" + solves: 0.0,
        "def": 0.0,
        "": 0.0,
    }
    scored = score([block(text) for text in made] + ["no block", solves])
    assert scored.scores == [*made.values(), 0.0, 0.0] and scored.failures == []


def test_functions_are_called():
    made = {
        "def add(a, b): return a + b": 1.0,
        "class Solution:\n    def add(self, a, b): return a + b": 1.0,
        "def add(a, b): print('x' * 100); return a + b": 1.0,
        "def add(a, b): return str(a + b)": 0.0,
        "def add(a, b): raise SystemExit(0)": 0.0,
        "def sub(a, b): return a + b": 0.0,
        "import os\nos._exit(0)": 0.0,
        "import os, atexit\natexit.register(os._exit, 1)\ndef add(a, b): return a + b": 0.0,
        "import os\ndef add(a, b): return a + b\n"
        "import atexit\natexit.register(os.abort)": 0.0,  # right, then it fails
        "class Equal:\n    __eq__ = lambda *_: True\ndef add(a, b): return Equal()": 0.0,
        "def add(a, b): return float('nan')": 0.0,
    }
    scored = score([block(text) for text in made], ADD)
    assert dict(zip(made, scored.scores, strict=True)) == made and scored.failures == []


@pytest.mark.parametrize(
    ("result", "expected", "is_same"),
    [
        (3, 3, True),
        (3, "3", True),
        ([3], [3], True),
        (3.0, 3, True),
        (0.1 + 0.2, 0.3, True),
        (0.3001, 0.3, False),
        (True, 1, False),
        (1, True, False),
        (None, None, True),
        ({"a": [1.0]}, {"a": [1]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1, 2], [2, 1], False),
        (10**400, 0.5, False),
    ],
)
def test_results_are_compared_as_values(result, expected, is_same):
    assert code.returned(result, expected) is is_same


def test_programs_that_stall_are_wrong_and_no_failure_of_the_reward():
    programs = [block("while True: pass"), block("print(2 * int(input()))")]
    scored = score(programs * 2, deadline_s=1.0)
    assert scored.scores == [0.0, 1.0, 0.0, 1.0] and scored.failures == []
    assert scored.seconds[0] < 2 * 2.0 + 1  # its first failure ends it: at most two were begun


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_right_programs_are_right_though_sandboxes_take_long_to_start(tmp_path, monkeypatch):
    """As on a machine that is overloaded: each start takes longer than its program may."""
    slow = tmp_path / "bwrap"
    slow.write_text(f'#!/bin/sh\nsleep 1.3\nexec {shutil.which("bwrap")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    programs = [block("print(2 * int(input()))"), block("import time\ntime.sleep(5)")]
    tests = {"inputs": ["21"], "outputs": ["42"], "fn_name": None}
    scored = score(programs, tests, "bubblewrap", deadline_s=0.5)  # 1 s of wall time
    assert (scored.scores, scored.failures) == ([1.0, 0.0], [])
    assert scored.seconds[0] > 1.3


def test_a_right_result_and_no_end_in_time_is_wrong():
    tests = {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}
    hangs = "import atexit, time\natexit.register(time.sleep, 100)\ndef add(a, b): return a + b"
    scored = score([block(hangs), block("def add(a, b): return a + b")], tests, deadline_s=0.5)
    assert scored.scores == [0.0, 1.0] and scored.failures == []

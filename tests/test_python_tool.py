"""Python as a tool: a sandboxed interpreter that keeps its state, alone and in an episode."""

import re
from contextlib import closing

import psutil
import pytest
from environment_files import call, observed

from unslothrl import environments
from unslothrl.errors import UserError
from unslothrl.sandbox import Limits, choose
from unslothrl.sandbox.cells import Interpreter

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def level() -> str:
    return choose(True)


def test_state_stays_from_cell_to_cell(level):
    with closing(Interpreter(level)) as python:
        assert python.run("x = 20") == ("", False)
        assert python.run("def f(y):\n    return x + y") == ("", False)
        assert python.run("print('a')\nf(1)") == ("a\n21\n", False)
        assert python.run("None") == ("", False)
        assert python.run("f(")[1] and "SyntaxError" in python.run("f(")[0]
        assert python.run("1/0") == ("ZeroDivisionError: division by zero (line 1)", True)
        assert python.run("import math; math.comb(x, 2)") == ("190\n", False)


def test_what_a_cell_may_not(level):
    if level not in ("bubblewrap", "namespaces"):
        pytest.skip("no sandbox here")
    with closing(Interpreter(level)) as python:
        assert python.run("open('/etc/hostname').read()")[1]
        assert python.run("import socket; socket.create_connection(('1.1.1.1', 53), 1)")[1]
        assert python.run("import os; os.fork()")[1]
        assert python.run("2 + 2") == ("4\n", False)


def test_a_cell_that_takes_too_long_or_ends_the_interpreter_begins_anew(level):
    with closing(Interpreter(level, Limits(wall_s=1.0))) as python:
        assert python.run("x = 1") == ("", False)
        said, failed = python.run("while True: pass")
        assert failed and said.startswith("took longer than 1 s")
        assert "NameError" in python.run("x")[0] and python.run("3") == ("3\n", False)
        assert python.run("import os; os._exit(1)")[1] and python.run("3") == ("3\n", False)


def test_a_cell_that_makes_too_many_files_begins_anew(level):
    if level not in ("bubblewrap", "namespaces"):
        pytest.skip("no sandbox here")
    files = "for i in range(300):\n    open(f'/tmp/{i}', 'w').close()\n"
    with closing(Interpreter(level, Limits(files=200))) as python:
        said, failed = python.run(f"{files}while True: pass")
        assert failed and "took longer" not in said
        assert python.run("2 + 2") == ("4\n", False)


def test_much_output_is_cut_in_the_middle(level):
    with closing(Interpreter(level, most=100)) as python:
        said = python.run("print('a' * 1000 + 'b' * 1000)")[0]
        assert re.fullmatch(r"a{50}\n\.\.\. 1,901 characters.*\nb{49}\n", said, re.DOTALL)


def test_nothing_is_left(level):
    before = set(psutil.Process().children(recursive=True))
    python = Interpreter(level)
    python.run("import time")
    started = set(psutil.Process().children(recursive=True)) - before
    python.close()
    assert started
    _, left = psutil.wait_procs(started, timeout=5)
    assert not left


def test_an_episode_with_python():
    setup = environments.setup_of("single_turn", ("python",), allow_unsandboxed=True)
    calls = [call("python", code=code) for code in ("x = 6 * 7", "x", "y")]
    first, second, (said, failed) = observed(setup, *calls)
    assert (first, second) == (("(no output)", 0), ("42\n", 0))
    assert "NameError" in said and failed == 1


def test_tools_by_name():
    with pytest.raises(UserError, match=r"no such file: .* set one of python, search:FILE"):
        environments.check_tools(("pithon",))
    assert environments.setup_of("single_turn") is None

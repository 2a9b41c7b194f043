"""Code: 1 if the completion's program, its last block of Python, passes every test of its task.

A test gives it stdin and compares stdout, line by line without trailing blanks; or, where the tests
name a function, calls that and compares what it returns. Each runs in a sandbox of its own that
knows no expected answer. Tests in Python, see `assertions`, run in a sandbox beside the program's.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from unslothrl.data.formats import UnusableRow, parsed, value_of
from unslothrl.rewards import assertions
from unslothrl.rewards.reward import IN_SANDBOX, WALL_OF_CPU, Reward, missing
from unslothrl.text import json_or_text

COLUMNS = ("test_cases", "tests", "input_output", "reward_model.ground_truth")
IN_PYTHON = ("test", "test_list")
ASSERTIONS = "assertions"  # the tests that are in Python have it
PROMPT = (
    "Solve the problem with a program in Python. Reason first, then write the whole program in one "
    "block that begins with ```python and ends with ```. Unless the problem asks for a function, "
    "the program reads from standard input and prints to standard output."
)

_OPEN = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_CLOSE = re.compile(r"^[ \t]*```[ \t]*\r?$", re.MULTILINE)
CLOSE_ENOUGH = 1e-9  # relative, of two floats
LARGEST = sys.float_info.max


def program(completion: str) -> str | None:
    """The last block of Python that closes; None without one."""
    text, at = None, 0
    while opening := _OPEN.search(completion, at):
        closing = _CLOSE.search(completion, opening.end())
        if closing is None:
            break
        text, at = completion[opening.end() : closing.start()].strip("\r\n"), closing.end()
    return text


def trials(completion: str, tests: dict[str, Any]) -> list[tuple]:
    """The program and each test: function, input, expected output; or all as one in Python."""
    text = program(completion)
    if not text:
        return []
    if ASSERTIONS in tests:
        return [(text, None, tests, None)]
    pairs = zip(tests["inputs"], tests["outputs"], strict=True)
    return [(text, tests["fn_name"], *pair) for pair in pairs]


def passes(
    text: str, name: str | None, given: Any, expected: Any, seconds: float, level: str
) -> bool:
    """Whether a program passes a test: it ends well, in time, with the right output or result.

    `seconds` are of CPU time. Raises OSError where the sandbox fails.
    """
    from unslothrl.sandbox.levels import Limits, Program  # of runs with programs alone
    from unslothrl.sandbox.runner import run, run_tests

    limits = Limits(cpu_s=seconds, wall_s=WALL_OF_CPU * seconds)
    if isinstance(given, dict) and ASSERTIONS in given:
        outcome = run_tests(text, given, limits, level)
        return outcome.stopped is None and outcome.result is True
    if name is None:
        outcome = run(Program(text, stdin=given), limits, level)
        return outcome.stopped is None and lines_of(outcome.stdout) == lines_of(expected)
    asked = Program(text, function=name, arguments=tuple(arguments(given)))
    outcome = run(asked, limits, level)
    has_ended_well = outcome.stopped is None and outcome.has_result
    return has_ended_well and returned(outcome.result, expected)


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def arguments(given: Any) -> list:
    """A call's arguments: a list of them, or text with one a line, each as JSON."""
    if isinstance(given, str):
        return [json_or_text(line) for line in given.splitlines() if line.strip()]
    return given if isinstance(given, list) else [given]


def returned(result: Any, expected: Any) -> bool:
    """Whether a result is the expected one, which may be JSON text, or in a list of one."""
    wanted = json_or_text(expected) if isinstance(expected, str) else expected
    of_one = wanted[0] if isinstance(wanted, list) and len(wanted) == 1 else wanted
    return same(result, wanted) or same(result, of_one) or same(result, expected)


def same(a: Any, b: Any) -> bool:
    """Equality as JSON values, of floats to `CLOSE_ENOUGH`. True is not 1."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(*pair) for pair in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if not isinstance(a, float) and not isinstance(b, float):
        return a == b
    are_floats = all(isinstance(x, int | float) and abs(x) <= LARGEST for x in (a, b))
    return a == b or (are_floats and math.isclose(a, b, rel_tol=CLOSE_ENOUGH))


def read(row: Mapping) -> dict[str, Any]:
    """-> {"tests": {"inputs": [...], "outputs": [...], "fn_name": name or None}}, or what
    `assertions` reads.

    UnusableRow where a row has none, or where they are malformed or empty: a program that meets no
    test would be right.
    """
    for column in COLUMNS:
        value = parsed(value_of(row, column))
        if isinstance(value, Mapping) and "inputs" in value and "outputs" in value:
            return {"tests": checked_tests(value, column)}
    if (in_python := assertions.read(row)) is not None:
        return {"tests": in_python}
    for column in COLUMNS:
        value = parsed(value_of(row, column))
        if value is not None and column != COLUMNS[-1]:  # which may hold an answer instead
            raise UnusableRow(f'column {column} must be {{"inputs": [...], "outputs": [...]}}')
    raise missing("no tests", (*COLUMNS, *IN_PYTHON))


def checked_tests(value: Mapping, column: str) -> dict[str, Any]:
    """The tests of a column, input and output as text unless they are a call's. UnusableRow."""
    inputs, outputs, name = value["inputs"], value["outputs"], value.get("fn_name")
    are_lists = isinstance(inputs, list) and isinstance(outputs, list)
    if not are_lists or not inputs or len(inputs) != len(outputs):
        raise UnusableRow(f"column {column} must have a list of inputs, and as many outputs")
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise UnusableRow(f"column {column} has fn_name {name!r:.60}, which is no name")
    if name is None:
        inputs, outputs = list(as_text(inputs, column)), list(as_text(outputs, column))
    if all(output is None or (name is None and not output.strip()) for output in outputs):
        raise UnusableRow(f"column {column} expects nothing, so that any program would be right")
    return {"inputs": inputs, "outputs": outputs, "fn_name": name}


def as_text(values: list, column: str) -> Iterator[str]:
    """stdin and stdout as text; a list is joined, an item a line."""
    for value in values:
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            value = "\n".join(value)
        if not isinstance(value, str):
            raise UnusableRow(f"column {column} has {value!r:.60} where text must be")
        yield value


REWARD = Reward(
    passes,
    columns=("tests",),
    read=read,
    replaces=(*COLUMNS, *IN_PYTHON, *assertions.SETUPS),
    problem=assertions.problem,
    asked=assertions.asked,
    prompt=PROMPT,
    answer=program,
    runs=IN_SANDBOX,
    trials=trials,
)

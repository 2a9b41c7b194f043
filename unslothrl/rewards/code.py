"""Code: 1 if the completion's program passes every test of its task.

The program is the last block that begins with ```python. A test gives it stdin and compares stdout,
line by line without trailing blanks; or, where the tests name a function, calls that with arguments
and compares what it returns. Each test runs in a sandbox of its own that knows no expected answer.
"""

import math
import re
from typing import Any

from unslothrl import long_json, sandbox
from unslothrl.sandbox import Limits, LongInteger, Program

_OPEN = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_CLOSE = re.compile(r"^[ \t]*```[ \t]*\r?$", re.MULTILINE)
CLOSE_ENOUGH = 1e-9  # relative, of two floats
WALL_OF_CPU = 2.0  # wall time that a program gets for each second of CPU time


def program(completion: str) -> str | None:
    """The last block of Python that closes; None without one."""
    found = None
    at = 0
    while opening := _OPEN.search(completion, at):
        closing = _CLOSE.search(completion, opening.end())
        if closing is None:
            break
        found, at = completion[opening.end() : closing.start()].strip("\r\n"), closing.end()
    return found


def passes(
    text: str, name: str | None, given: Any, expected: Any, seconds: float, level: str
) -> bool:
    """Whether a program passes one test: it ends well, in time, with the right output or result.
    Runs in a worker. OSError where the sandbox fails."""
    limits = Limits(cpu_s=seconds, wall_s=WALL_OF_CPU * seconds)
    if name is None:
        outcome = sandbox.run(Program(text, stdin=given), limits, level)
        return outcome.stopped is None and same_output(outcome.stdout, expected)
    asked = Program(text, function=name, arguments=tuple(arguments(given)))
    outcome = sandbox.run(asked, limits, level)
    has_ended_well = outcome.stopped is None and outcome.has_result
    return has_ended_well and returned(outcome.result, expected)


def same_output(stdout: str, expected: str) -> bool:
    return lines_of(stdout) == lines_of(expected)


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def arguments(given: Any) -> list:
    """A call's arguments: a list of them, or text with one a line, each as JSON."""
    if isinstance(given, str):
        return [as_json(line) for line in given.splitlines() if line.strip()]
    return given if isinstance(given, list) else [given]


def as_json(text: str) -> Any:
    try:
        return long_json.loads(text)
    except (ValueError, RecursionError):
        return text


def returned(result: Any, expected: Any) -> bool:
    """Whether a result is the expected one, which may be JSON text, or in a list of one."""
    wanted = as_json(expected) if isinstance(expected, str) else expected
    of_one = wanted[0] if isinstance(wanted, list) and len(wanted) == 1 else wanted
    return same(result, wanted) or same(result, of_one) or same(result, expected)


def same(a: Any, b: Any) -> bool:
    """Equality of a result and what is expected, as JSON values; floats to `CLOSE_ENOUGH`. True is
    not 1."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(*pair) for pair in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, LongInteger):
        return isinstance(b, int) and a.digits == long_json.digits(b)
    if isinstance(a, float) or isinstance(b, float):
        try:
            return math.isclose(a, b, rel_tol=CLOSE_ENOUGH)
        except (TypeError, OverflowError):  # no number, or one larger than any float
            return False
    return a == b


def choose(allow_unsandboxed: bool) -> str:
    """-> the level that a run's programs run at. Runs in a worker. UserError."""
    return sandbox.choose(allow_unsandboxed)


def require(level: str) -> None:
    """Tries the level that a run has chosen elsewhere. Runs in a worker. UserError."""
    sandbox.require(level)

"""Python in the sandbox: its limits are those of the `code` reward, and it keeps its state for the
episode."""

import os

from unslothrl.environments.base import ToolError
from unslothrl.sandbox import choose
from unslothrl.sandbox.cells import Interpreter
from unslothrl.system import variables

LEVEL = choose(bool(os.environ.get(variables.UNSANDBOXED)))
INTERPRETER = Interpreter(LEVEL)  # which begins with its first cell, in the episode's process


def python(code: str) -> str:
    """
    Runs Python code. Variables stay for the next call. What is printed and the value of the last
    line are returned.

    Args:
        code: The code to run.
    """
    text, failed = INTERPRETER.run(code)
    if failed:
        raise ToolError(text)
    return text or "(no output)"

"""The command line as a process of its own: for Python's interface and the page."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unslothrl.system.variables import python_path

PYTHON = "UNSLOTHRL_PYTHON"  # of the environment that has it, where that is not this process's
SAID = "unslothrl: "  # begins the line of an error


def process(words: Sequence[str], variables: Mapping[str, str] = {}) -> dict[str, Any]:
    """The arguments of `subprocess` for it, with these environment variables besides."""
    own = {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    return {
        "args": [os.environ.get(PYTHON, sys.executable), "-m", "unslothrl", *words],
        "env": {**os.environ, **own, **variables},
        "encoding": "utf-8",
        "errors": "replace",
        "stdin": subprocess.DEVNULL,
    }


def error_in(lines: Iterable[str]) -> str:
    """What it has said last of a mistake or a failure, or ""."""
    said = [line.removeprefix(SAID) for line in lines if line.startswith(SAID)]
    return said[-1] if said else ""

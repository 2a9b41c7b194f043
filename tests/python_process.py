"""Processes of Python that a test starts and waits for."""

import subprocess
import sys
from typing import Any


def python(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """It must end well; `options` are those of `subprocess.run`."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done


def unslothrl(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command, however it ends."""
    command = [sys.executable, "-m", "unslothrl", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **options)

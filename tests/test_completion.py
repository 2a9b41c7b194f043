"""Completion as Typer's script for bash asks for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from unslothrl.algorithms import objectives

ROOT = Path(__file__).parents[1]


def completed(line: str) -> list[str]:
    """What may follow a line, in a process that imports nothing heavy."""
    code = (
        "import sys; sys.argv = ['unslothrl']; from unslothrl.commands.cli import main\n"
        "try: main()\n"
        "finally: assert not {'numpy', 'torch', 'ray', 'transformers'} & set(sys.modules)"
    )
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
        env={"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1),
             "_UNSLOTHRL_COMPLETE": "complete_bash"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("unslothrl tr", ["train"]),
        ("unslothrl train --num_c", ["--num_candidates"]),
        ("unslothrl train --objective.clip_", ["--objective.clip_low", "--objective.clip_high",
                                               "--objective.clip_dual"]),
        ("unslothrl train --learner ", list(objectives.names())),
        ("unslothrl train --recipe tiny", ["tiny-cpu"]),
        ("unslothrl data --model ", ["embedded"]),
        ("unslothrl train --run_name ", []),
    ],
)  # fmt: skip
def test_commands_options_and_values_are_completed(line, expected):
    assert completed(line) == expected

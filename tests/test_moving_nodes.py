"""Nodes of Ray that join, drain and die during a run: actors move, and every prompt counts once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_with_nodes import BATCH, CANDIDATES

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
ALL = ["started", "joined", "drained", "another joined", "killed"]


def run(*options: str) -> dict:
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "run_with_nodes.py", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=290,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["completions"] == result["steps"] * BATCH * CANDIDATES
    assert result["lost"] == result["more than once"] == result["left behind"] == []
    return result


@pytest.mark.slow
def test_a_node_that_joins_gets_an_actor():
    result = run("--until", "joined")
    assert [each["what"] for each in result["happened"]] == ALL[:2]


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", ["0", "1"])
def test_nodes_join_drain_and_die(max_staleness):
    result = run("--max_staleness", max_staleness)
    assert [each["what"] for each in result["happened"]] == ALL
    assert sum("leaves its node" in note for note in result["notes"]) == 1
    assert any("started again" in note for note in result["notes"])

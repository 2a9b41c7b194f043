"""Nodes of Ray that join, drain and die during a run: actors move, and every prompt counts once."""

import json
from pathlib import Path

import pytest
from python_process import python
from run_with_nodes import BATCH, CANDIDATES

pytestmark = pytest.mark.real


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_nodes_join_drain_and_die(max_staleness):
    program = Path(__file__).with_name("run_with_nodes.py")
    done = python(program, "--max_staleness", max_staleness, cwd=program.parents[1], timeout=290)
    result = json.loads(done.stdout)
    assert result["completions"] == result["steps"] * BATCH * CANDIDATES
    assert result["lost"] == result["more than once"] == result["left behind"] == []
    happened = [each["what"] for each in result["happened"]]
    assert happened == ["started", "joined", "drained", "another joined", "killed"]
    assert sum("leaves its node" in note for note in result["notes"]) == 1
    assert any("started again" in note for note in result["notes"])

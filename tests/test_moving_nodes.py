"""Nodes of Ray that join, drain and die during a run: actors move, and every prompt counts once."""

import json
from pathlib import Path

import pytest
from python_process import python
from run_with_nodes import BATCH, CANDIDATES

pytestmark = pytest.mark.real

ALL = ["started", "joined", "drained", "another joined", "killed"]


def run(*options: str) -> dict:
    program = Path(__file__).with_name("run_with_nodes.py")
    result = json.loads(python(program, *options, cwd=program.parents[1], timeout=290).stdout)
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

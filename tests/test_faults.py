"""How bench/faults.py judges a run, and the table of bench/fault_matrix.py's last run."""

import json
import sys
from pathlib import Path

import pytest
from run_on_hosts import wrongly_consumed

from unslothrl.tracking.run_folder import RunFolder

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))
import fault_matrix as matrix


def write(folder: Path, *steps: list[tuple[str, int]]) -> Path:
    for step, rows in enumerate(steps, 1):
        drawn = [{"task": task, "candidate": candidate} for task, candidate in rows]
        RunFolder(folder).write_rows("rollouts", step, drawn)
    return folder


A, B, C = ([(name, 0), (name, 1)] for name in "abc")


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        ([A + B, C + A, B + C], []),
        ([A + B, C + A, B + B], ["b: 3 times, not 2", "c: 1 times, not 2"]),
        ([A + B, A + B], ["2 tasks of 3"]),
        ([A + B, C + A[:1], B + C], ["step 2, a: candidates [0]"]),
        ([A + B, C + A + A[1:], B + C], ["step 2, a: candidates [0, 1, 1]"]),
        ([], ["0 tasks of 3"]),
    ],
)
def test_what_was_not_consumed_once_an_episode_is_named(steps, wrong, tmp_path):
    assert wrongly_consumed(write(tmp_path, *steps), 3, 2, 2) == wrong


def test_the_documents_table_is_that_of_the_last_run_which_found_nothing_broken():
    found = json.loads((BENCH / "results" / "fault-matrix-cpu.json").read_text())
    assert matrix.table(found) in (BENCH.parent / "docs/reliability.md").read_text()
    assert found["faults"].keys() == matrix.FAULTS.keys() and all(found["faults"].values())
    for name, done in found["faults"].items():
        for each in done:
            cost = matrix.Cost(**{key: each[key] for key in matrix.Cost.__dataclass_fields__})
            assert matrix.problems_of(matrix.FAULTS[name], cost) == each["problems"] == [], name


def test_each_broken_promise_is_named():
    fault = matrix.Fault(lambda place: None, (1,), most_lost=1)
    kept = {"at": "", "code": 1, "said": "", "lost": 1}
    assert matrix.problems_of(fault, matrix.Cost(**kept)) == []
    broken = {"code": 0, "lost": 2, "data": 3, "differs": ["metrics"], "wrong": ["no line"]}
    found = matrix.problems_of(fault, matrix.Cost(**{**kept, **broken}))
    said = ["exit code 0", "2 whole steps lost", "3 prompts or lines lost", "metrics", "no line"]
    assert sorted(found) == sorted(said)

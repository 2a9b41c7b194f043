"""The table of faults in docs/reliability.md: it is that of the last run, and what it promises."""

import json
from pathlib import Path

import pytest

from unslothrl.tracking.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "fault-matrix-cpu.json"


@pytest.fixture
def matrix(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import fault_matrix

    return fault_matrix


def test_the_documents_table_is_that_of_the_last_run(matrix):
    found = json.loads(RESULTS.read_text())
    assert matrix.table(found) in (ROOT / "docs" / "reliability.md").read_text()
    assert found["faults"].keys() == matrix.FAULTS.keys() and all(found["faults"].values())


def test_what_the_last_run_found_broken_is_nothing(matrix):
    for name, done in json.loads(RESULTS.read_text())["faults"].items():
        for each in done:
            cost = matrix.Cost(**{key: each[key] for key in matrix.Cost.__dataclass_fields__})
            assert matrix.problems_of(matrix.FAULTS[name], cost) == each["problems"] == [], name


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({"lost": 1}, []),
        ({"lost": 2}, ["2 whole steps lost"]),
        ({"code": 0}, ["exit code 0"]),
        ({"data": 3}, ["3 prompts or lines lost"]),
        ({"differs": ["metrics of step 2"]}, ["metrics of step 2"]),
        ({"wrong": ["no line that says why"]}, ["no line that says why"]),
    ],
)
def test_each_broken_promise_is_named(matrix, changed, broken):
    fault = matrix.Fault(lambda place: None, (1,), most_lost=1)
    cost = matrix.Cost(**{"at": "", "code": 1, "said": "", **changed})
    assert matrix.problems_of(fault, cost) == broken


def test_prompts_and_lines_that_are_missing_or_there_twice_are_counted(matrix, tmp_path):
    from small_runs import data_lost as lost
    from small_runs import recorded

    def run(name: str, steps: list[int], tasks: str) -> Path:
        (tmp_path / name).mkdir()
        folder = RunFolder(tmp_path / name)
        for step in steps:
            folder.log({"step": step})
        folder.write_rows("rollouts", 1, [{"task": task, "candidate": 0} for task in tasks])
        return folder.path

    whole = run("whole", [1, 2], "ab")
    assert lost(whole, whole) == 0 and len(recorded(whole)) == 4
    for steps, tasks in (([1], "a"), ([1, 2, 2], "abb"), ([1, 2], "ac")):
        assert lost(run(tasks, steps, tasks), whole) == 2

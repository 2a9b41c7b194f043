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
import faults
from small_runs import data_lost, recorded


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


def test_seconds_lost_are_those_above_the_median_of_calm_steps():
    seconds = [2.0, 2.0, 9.0, 4.0, 2.0, 2.0, 5.0, 2.0]
    hits = [
        faults.Fault("kill", "actor-0", 0.0, 3, back_s=10.0, start_s=6.0),  # back during step 4
        faults.Fault("kill", "actor-1", 0.0, 7, back_s=4.0, start_s=2.0),
    ]
    assert faults.lost(seconds, hits) == {
        "median_step_s": 2.0,
        "lost_s_a_failure": 6.0,  # 7 + 2 and 3, of two
        "may_lose_s_a_failure": 6.0,  # starts of 4 on average, and a step
    }
    cable = faults.Fault("cable", "host-1", 0.0, 7, is_failure=False)  # nothing failed then
    assert faults.lost(seconds, [hits[0], cable])["lost_s_a_failure"] == 9.0
    assert faults.lost(seconds, [cable]) == {"median_step_s": 2.0}
    assert faults.lost([2.0, 3.0, 4.0], []) == {"median_step_s": 3.0}


def test_steps_that_are_computed_again_are_no_longer_among_those_that_are_counted():
    for back_s, redone, lost_s, may_lose_s in ((21.0, 2, 19.0, 18.0), (15.0, 0, 13.0, 14.0)):
        hit = faults.Fault("kill", "learner-0", 0.0, 4, back_s=back_s, start_s=12.0, redone=redone)
        lost = faults.lost([2.0, 2.0, 3.0, 4.0, 2.0, 2.0], [hit])
        assert (lost["lost_s_a_failure"], lost["may_lose_s_a_failure"]) == (lost_s, may_lose_s)


def test_a_run_fails_for_each_of_what_it_must_do():
    good = {"exit_code": 0, "status": "finished", "steps": faults.STEPS, "reward_last": 1.0}
    good |= {"steps_wanted": faults.STEPS, "prompts_not_consumed_once_a_pass": []}
    good |= {"left_behind": [], "lost_s_a_failure": 6.0, "may_lose_s_a_failure": 6.0}
    good |= {"reward_by_step": [0.9, 1.1] * 20}
    assert faults.problems_of(dict(good), dict(good)) == []
    bad = {"exit_code": 1, "status": "failed", "steps": faults.STEPS - 1, "reward_last": 0.8}
    bad |= {"left_behind": ["host-1: /dev/shm/x"], "lost_s_a_failure": 6.1}
    bad |= {"prompts_not_consumed_once_a_pass": ["0 tasks of 3"]}
    for name, value in bad.items():
        assert len(faults.problems_of({**good, name: value}, dict(good))) == 1, name


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


def test_prompts_and_lines_that_are_missing_or_there_twice_are_counted(tmp_path):
    def run(name: str, steps: list[int], tasks: str) -> Path:
        (tmp_path / name).mkdir()
        folder = RunFolder(tmp_path / name)
        for step in steps:
            folder.log({"step": step})
        folder.write_rows("rollouts", 1, [{"task": task, "candidate": 0} for task in tasks])
        return folder.path

    whole = run("whole", [1, 2], "ab")
    assert data_lost(whole, whole) == 0 and len(recorded(whole)) == 4
    for steps, tasks in (([1], "a"), ([1, 2, 2], "abb"), ([1, 2], "ac")):
        assert data_lost(run(tasks, steps, tasks), whole) == 2

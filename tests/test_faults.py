"""How bench/faults.py judges a run: what it takes for lost, consumed twice, or slow."""

import json
from pathlib import Path

import pytest
from run_on_hosts import wrongly_consumed

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def faults(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import faults

    return faults


def write(folder: Path, *steps: list[tuple[str, int]]) -> Path:
    """Rollouts of so many steps: (task, candidate) of each row."""
    (folder / "rollouts").mkdir()
    for step, rows in enumerate(steps, 1):
        text = "".join(json.dumps({"task": t, "candidate": c}) + "\n" for t, c in rows)
        (folder / "rollouts" / f"step_{step:06d}.jsonl").write_text(text)
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


def test_seconds_lost_are_those_above_the_median_of_calm_steps(faults):
    seconds = [2.0, 2.0, 9.0, 4.0, 2.0, 2.0, 5.0, 2.0]
    hits = [
        faults.Fault("kill", "actor-0", 0.0, 3, back_s=10.0),  # back during step 4
        faults.Fault("kill", "actor-1", 0.0, 7, back_s=4.0),
    ]
    assert faults.lost(seconds, hits) == {
        "median_step_s": 2.0,
        "lost_s_a_failure": 6.0,  # 7 + 2 and 3, of two
        "back_s": 7.0,
    }


def test_a_run_fails_for_each_of_what_it_must_do(faults):
    good = {
        "exit_code": 0,
        "status": "finished",
        "steps": faults.STEPS,
        "steps_wanted": faults.STEPS,
        "prompts_not_consumed_once_a_pass": [],
        "left_behind": [],
        "reward_last": 1.0,
        "reward_by_step": [0.9, 1.1] * 20,
    }
    assert faults.problems_of(dict(good), dict(good)) == []
    for name, value in {
        "exit_code": 1,
        "status": "failed",
        "steps": faults.STEPS - 1,
        "prompts_not_consumed_once_a_pass": ["0 tasks of 3"],
        "left_behind": ["host-1: /dev/shm/unslothrl-x"],
        "reward_last": 0.8,
    }.items():
        assert len(faults.problems_of({**good, name: value}, dict(good))) == 1, name

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


def test_steps_that_are_computed_again_are_no_longer_among_those_that_are_counted(faults):
    hit = faults.Fault("kill", "learner-0", 0.0, 4, back_s=21.0, start_s=12.0, redone=2)
    lost = faults.lost([2.0, 2.0, 3.0, 4.0, 2.0, 2.0], [hit])
    assert lost["lost_s_a_failure"] == 19.0 and lost["may_lose_s_a_failure"] == 18.0
    in_flight = faults.Fault("kill", "learner-1", 0.0, 4, back_s=15.0, start_s=12.0, redone=0)
    lost = faults.lost([2.0, 2.0, 3.0, 4.0, 2.0, 2.0], [in_flight])
    assert lost["lost_s_a_failure"] == 13.0 and lost["may_lose_s_a_failure"] == 14.0


def test_a_run_fails_for_each_of_what_it_must_do(faults):
    good = {
        "exit_code": 0,
        "status": "finished",
        "steps": faults.STEPS,
        "steps_wanted": faults.STEPS,
        "prompts_not_consumed_once_a_pass": [],
        "left_behind": [],
        "reward_last": 1.0,
        "lost_s_a_failure": 6.0,
        "may_lose_s_a_failure": 6.0,
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
        "lost_s_a_failure": 6.1,
    }.items():
        assert len(faults.problems_of({**good, name: value}, dict(good))) == 1, name


def test_what_has_passed_at_this_commit_is_not_run_again(faults, monkeypatch):
    monkeypatch.setattr(faults, "commit", lambda: "1234567")
    passed = {"commit": "1234567", "problems": []}
    assert faults.is_done(passed) and not faults.is_done(None)
    assert not faults.is_done({**passed, "commit": "1234567-dirty"})
    assert not faults.is_done({**passed, "problems": ["exit code 1"]})


def test_all_runs_have_keys_of_their_own_and_come_after_what_they_are_compared_with(faults):
    runs = faults.all_runs()
    keys = [faults.key_of(*run) for run in runs]
    assert len(set(keys)) == len(keys) and set(faults.KINDS) == {kind for kind, _, _ in runs}
    for kind, steps, seed in runs:
        quiet = faults.key_of(faults.KINDS[kind].quiet, steps, seed)
        assert keys.index(quiet) <= keys.index(faults.key_of(kind, steps, seed))

"""Checkpoints on a disk: whole or absent, checked when read, the newest and the best kept."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unslothrl.checkpoints import store
from unslothrl.checkpoints.store import Ahead, Checkpoints, RunState
from unslothrl.records import Call, Completion, Failure, Group, Transcript, Turn
from unslothrl.training import saving
from unslothrl.training.saving import Boundary, Saving

FILES = ["SHA256SUMS", "learner.safetensors", "progress.json"]


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    return Checkpoints(tmp_path)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(os.listdir(checkpoints.folder))


def test_what_is_written_is_read(checkpoints):
    assert checkpoints.newest() is None
    state = RunState(step=5, position=40, evals=[{"step": 5, "eval/x/pass@1": 0.5}], base="b")
    folder = checkpoints.write(state, b"weights")
    found = checkpoints.newest()
    assert (found.folder, found.state, found.learner()) == (folder, state, b"weights")
    assert sorted(os.listdir(folder)) == FILES
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def test_the_newest_are_kept_and_the_best(checkpoints):
    for step in (5, 10, 15, 20):
        checkpoints.write(RunState(step=step), b"", is_best=step == 10)
    assert names(checkpoints) == ["best", "latest", "step_000010", "step_000015", "step_000020"]
    assert (checkpoints.folder / "latest").read_text() == "step_000020\n"
    assert (checkpoints.folder / "best").read_text() == "step_000010\n"
    checkpoints.write(RunState(step=20), b"again")  # after its evaluation
    assert checkpoints.newest().learner() == b"again"
    checkpoints.keep = 1
    checkpoints.write(RunState(step=25), b"", is_best=True)
    assert checkpoints.steps() == [25]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_one_that_fails_leaves_nothing(checkpoints, error, monkeypatch):
    checkpoints.write(RunState(step=5), b"five")

    def fails(folder):
        raise error

    monkeypatch.setattr(store, "flush_tree", fails)
    with pytest.raises(error):
        checkpoints.write(RunState(step=10), b"ten")
    assert names(checkpoints) == ["latest", "step_000005"]


def test_a_killed_process_leaves_nothing_that_counts(checkpoints):
    checkpoints.write(RunState(step=5), b"five")
    left_over = checkpoints.folder / ".step_000010"
    left_over.mkdir()
    (left_over / "progress.json").write_text("half")
    assert checkpoints.newest().state.step == 5
    checkpoints.write(RunState(step=10), b"ten")
    (checkpoints.folder / "latest").write_text("step_000005\n")  # killed just before
    assert checkpoints.newest().state.step == 10
    assert names(checkpoints) == ["latest", "step_000005", "step_000010"]


def test_one_that_was_moved_aside_for_another_is_there_until_that_is(checkpoints):
    """Killed in between, with no older one: after an evaluation a step's is written again."""
    checkpoints.write(RunState(step=5), b"five")
    (checkpoints.folder / "step_000005").rename(checkpoints.folder / ".step_000005.replaced")
    assert checkpoints.newest().learner() == b"five"
    assert names(checkpoints) == ["latest", "step_000005"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "empty", "longer"])
def test_a_damaged_one_is_said_and_the_one_before_it_used(checkpoints, name, damage):
    checkpoints.write(RunState(step=5), b"five")
    path = checkpoints.write(RunState(step=10), bytes(range(200))) / name
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    changed = {"cut": content[:-2], "empty": b"", "longer": content + b"x", "flipped": flipped}
    path.write_bytes(changed.get(damage, b""))
    if damage == "gone":
        path.unlink()
    notes: list[str] = []
    assert checkpoints.newest(notes.append).state.step == 5
    (note,) = notes
    assert "checkpoint step_000010 is damaged" in note and "\n" not in note


def test_one_of_another_step_is_none_and_one_may_be_damaged_after_it_was_found(checkpoints):
    folder = checkpoints.write(RunState(step=10), b"ten")
    found, notes = checkpoints.newest(), []
    (folder / "learner.safetensors").write_bytes(b"new")
    with pytest.raises(store.Damaged, match=r"learner\.safetensors is not as it was written"):
        found.learner()
    (folder / "learner.safetensors").write_bytes(b"ten")
    folder.rename(checkpoints.folder / "step_000011")
    assert checkpoints.newest(notes.append) is None and "of step 10" in notes[0]


TEXT = st.text(st.characters(exclude_categories=["Cs"]))  # its usual table takes seconds to make
NUMBERS, WHOLE = st.integers(0, 2**63), st.lists(st.integers(0, 2**63), max_size=5)
VALUES = st.one_of(st.floats(allow_nan=False), st.integers(-(2**53), 2**53), st.none(), TEXT)
METRICS = st.dictionaries(TEXT, st.floats(allow_nan=False))
EVALS = st.builds(lambda metrics, step: {**metrics, "step": step}, METRICS, NUMBERS)
STATES = st.builds(
    RunState,
    *[NUMBERS] * 5,
    st.floats(allow_nan=False, allow_infinity=False),
    WHOLE,
    WHOLE,
    st.none() | st.lists(EVALS, max_size=3),
    st.none() | METRICS,
    st.dictionaries(TEXT, TEXT),
    TEXT,
    st.dictionaries(TEXT, TEXT),
)


@given(STATES)
def test_a_state_comes_back_as_it_was(state):
    assert store.decoded(RunState, json.loads(store.dumps(state))) == state


@pytest.mark.parametrize("missing", [each.name for each in dataclasses.fields(RunState)])
def test_a_checkpoint_of_before_a_field_takes_its_default(missing):
    values = json.loads(store.dumps(RunState(7, 7, 7, 7, 7, 7.0)))
    del values[missing]
    expected = dataclasses.replace(
        RunState(7, 7, 7, 7, 7, 7.0), **{missing: getattr(RunState(), missing)}
    )
    assert store.decoded(RunState, values) == expected


def test_metrics_of_numpy_come_back_as_json_has_them():
    state = RunState(unlogged={"a": np.float32(0.1), "b": np.int64(3), "c": float("nan")})
    found = store.decoded(RunState, json.loads(store.dumps(state))).unlogged
    assert found["a"] == float(np.float32(0.1)) and found["b"] == 3 and found["c"] != found["c"]


@given(st.sampled_from([each.name for each in dataclasses.fields(RunState)]), VALUES)
def test_what_is_no_state_is_refused(name, value):
    values = json.loads(store.dumps(RunState())) | {name: value}
    with contextlib.suppress(ValueError):
        assert store.decoded(RunState, json.loads(json.dumps(values))) == RunState(**values)


def test_the_best_evaluation_is_the_first_of_the_highest():
    def is_best(step: int, *values: float) -> bool:
        evals = [{"step": i, "eval/x/pass@1": value} for i, value in enumerate(values)]
        return Boundary.of(RunState(step=step, evals=evals or None), bytes).is_best

    assert is_best(0, 0.5) and is_best(1, 0.5, 0.6)
    assert not is_best(1, 0.5, 0.5) and not is_best(1, 0.6, 0.5)
    assert not is_best(3, 1.0) and not is_best(0)


def test_a_boundary_does_not_change_with_the_run():
    state = RunState(step=1, outstanding=[1, 2])
    boundary = Boundary.of(state, lambda: b"")
    state.step, state.position = 2, 9
    state.outstanding.append(3)
    assert (boundary.state.step, boundary.state.outstanding) == (1, [1, 2])


def test_as_often_as_the_user_says_and_after_the_last():
    saving = Saving(None, checkpoint_every=4)
    assert [step for step in range(1, 11) if saving.is_checkpoint_due(step, 10)] == [4, 8, 10]


def test_as_often_as_costs_a_fiftieth_of_the_time(monkeypatch):
    now = 0.0
    monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: now))
    schedule, written = Saving(None), []
    schedule.run = lambda *call: schedule.saves_s.append(1.0)
    for step in range(1, 200):
        now += 1.0
        if schedule.is_checkpoint_due(step, 1000):
            written.append(step)
            schedule.checkpoint(None)
    assert written == [1, 51, 101, 151]
    now += 2.0
    assert schedule.is_checkpoint_due(200, 1000)
    schedule.checkpoint(None)  # after the best evaluation
    assert not schedule.is_checkpoint_due(200, 1000)


@pytest.mark.real
def test_what_a_process_writes_is_whole_whenever_it_is_killed(tmp_path):
    """A child that writes checkpoints as fast as it can is killed again and again."""
    program = (
        "import sys; from pathlib import Path\n"
        "from unslothrl.checkpoints.store import RunState\n"
        "from unslothrl.checkpoints.store import Checkpoints\n"
        "checkpoints = Checkpoints(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "for step in range(10**6): checkpoints.write(RunState(step=step), bytes(100_000))"
    )
    for _ in range(5):
        command = [sys.executable, "-c", program, str(tmp_path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        child.stdout.readline()
        while not (tmp_path / "checkpoints" / "latest").exists():
            pass
        child.kill()
        child.wait()
        assert Checkpoints(tmp_path).newest(pytest.fail).learner() == bytes(100_000)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
LOGPROBS = st.floats(width=32, allow_nan=False, allow_infinity=False)
INDEX = st.integers(0, 2**31 - 1)
CALLS = st.lists(st.builds(Call, TEXT, TEXT, TEXT), max_size=2).map(tuple)
TURNS = st.lists(st.builds(Turn, TEXT, TEXT, FINITE, INDEX, INDEX, CALLS), max_size=3).map(tuple)
IDS = st.lists(INDEX, max_size=3).map(tuple)


def transcripts() -> st.SearchStrategy[Transcript]:
    earlier = st.lists(st.tuples(IDS, completions(of_episodes=False)), max_size=2).map(tuple)
    return st.builds(Transcript, TURNS, TEXT, TEXT, st.none() | IDS, earlier)


@st.composite
def completions(draw, of_episodes: bool = True) -> Completion:
    tokens = draw(st.integers(0, 6))
    columns = [
        tuple(draw(st.lists(each, min_size=tokens, max_size=tokens)))
        for each in (INDEX, LOGPROBS, st.booleans(), INDEX)
    ]
    end = draw(st.sampled_from(["stop", "length", "abort", "lost"]))
    transcript = draw(st.none() | transcripts()) if of_episodes else None
    return Completion(*columns, end, draw(TEXT), draw(TEXT), transcript)


@st.composite
def groups(draw) -> Ahead:
    drawn = tuple(draw(st.lists(completions(), min_size=1, max_size=4)))
    numbers = st.lists(FINITE, min_size=len(drawn), max_size=len(drawn)).map(tuple)
    rewards = draw(st.dictionaries(TEXT, numbers, min_size=1, max_size=3))
    failure = st.builds(Failure, TEXT, TEXT, TEXT, st.integers(0, len(drawn) - 1), st.booleans())
    failures = tuple(draw(st.lists(failure, max_size=2)))
    return Ahead(
        draw(INDEX), draw(INDEX), Group(store.UNKNOWN, drawn, rewards, draw(numbers), failures)
    )


@given(st.lists(groups(), max_size=3))
def test_groups_come_back_as_they_were(drawn):
    assert store.from_jsonl(store.to_jsonl(drawn)) == tuple(drawn)


COMPLETION = Completion((7, 8), (-0.5, -0.25), (True, True), (1, 2), "stop", "a", "b")
FAILURES = (Failure("accuracy", "E: x", "a", 0),)
DRAWN = Ahead(3, 0, Group(store.UNKNOWN, (COMPLETION,), {"accuracy": (1.0,)}, (1.0,), FAILURES))
ROW = json.loads(store.to_jsonl([DRAWN]))
ONE = ROW["group"]["completions"][0]


@pytest.mark.parametrize(
    "wrong",
    [
        [], {}, {**ROW, "position": True}, {**ROW, "attempt": 0.0}, {**ROW, "group": 3},
        *({**ROW, "group": {**ROW["group"], **each}} for each in (
            {"completions": [{}]}, {"rewards": []}, {"rewards": {"accuracy": ["1"]}},
            {"scores": [True]}, {"failures": [{"reward": 1}]}, {"failures": [{"nosuch": "x"}]},
        )),
        *({**ROW, "group": {**ROW["group"], "completions": [{**ONE, **each}]}} for each in (
            {"token_ids": ["7"]}, {"logprobs": [None]}, {"sampled": [[True, 10**12]]},
            {"sampled": [[1, 2]]}, {"sampled": [[True]]}, {"versions": [["a", 2]]}, {"text": 3},
        )),
    ],
)  # fmt: skip
def test_other_rows_are_refused(wrong):
    assert store.from_jsonl(json.dumps(ROW).encode()) == (DRAWN,)
    with pytest.raises((ValueError, TypeError)):
        store.from_jsonl(json.dumps(wrong).encode())


def test_a_checkpoint_without_them_or_with_others_is_damaged(tmp_path):
    checkpoints, notes = Checkpoints(tmp_path), []
    assert not (checkpoints.write(RunState(step=1), b"one") / "ahead.jsonl").exists()
    path = checkpoints.write(RunState(step=2), b"two", groups=(DRAWN,)) / "ahead.jsonl"
    found = checkpoints.newest()
    assert found.state.step == 2 and found.ahead == (DRAWN,)
    path.write_bytes(path.read_bytes().replace(b"-0.5", b"-0.6"))
    assert checkpoints.newest(notes.append).state.step == 1
    path.unlink()
    assert checkpoints.newest(notes.append).ahead == ()
    assert ["ahead.jsonl" in note for note in notes] == [True, True]

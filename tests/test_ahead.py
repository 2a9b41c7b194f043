"""Groups that were drawn ahead, in a checkpoint."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unslothrl.checkpoints.store import UNKNOWN, Ahead, Checkpoints, RunState, from_jsonl, to_jsonl
from unslothrl.records import Call, Completion, Failure, Group, Transcript, Turn

TEXT = st.text(st.characters(exclude_categories=["Cs"]))  # its usual table takes seconds to make
FINITE = st.floats(allow_nan=False, allow_infinity=False)
LOGPROBS = st.floats(width=32, allow_nan=False, allow_infinity=False)
WHOLE = st.integers(0, 2**31 - 1)
CALLS = st.lists(st.builds(Call, TEXT, TEXT, TEXT), max_size=2).map(tuple)
TURNS = st.lists(st.builds(Turn, TEXT, TEXT, FINITE, WHOLE, WHOLE, CALLS), max_size=3).map(tuple)
IDS = st.lists(WHOLE, max_size=3).map(tuple)


def transcripts() -> st.SearchStrategy[Transcript]:
    earlier = st.lists(st.tuples(IDS, completions(of_episodes=False)), max_size=2).map(tuple)
    return st.builds(Transcript, TURNS, TEXT, TEXT, st.none() | IDS, earlier)


@st.composite
def completions(draw, of_episodes: bool = True) -> Completion:
    tokens = draw(st.integers(0, 6))
    columns = [
        tuple(draw(st.lists(each, min_size=tokens, max_size=tokens)))
        for each in (WHOLE, LOGPROBS, st.booleans(), WHOLE)
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
    group = Group(UNKNOWN, drawn, rewards, draw(numbers), failures)
    return Ahead(draw(WHOLE), draw(WHOLE), group)


@given(st.lists(groups(), max_size=3))
def test_groups_come_back_as_they_were(drawn):
    assert from_jsonl(to_jsonl(drawn)) == tuple(drawn)


COMPLETION = Completion((7, 8), (-0.5, -0.25), (True, True), (1, 2), "stop", "a", "b")
FAILURES = (Failure("accuracy", "E: x", "a", 0),)
DRAWN = Ahead(3, 0, Group(UNKNOWN, (COMPLETION,), {"accuracy": (1.0,)}, (1.0,), FAILURES))
ROW = json.loads(to_jsonl([DRAWN]))
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
    assert from_jsonl(json.dumps(ROW).encode()) == (DRAWN,)
    with pytest.raises((ValueError, TypeError)):
        from_jsonl(json.dumps(wrong).encode())


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

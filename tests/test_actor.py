"""What an actor does while its engine works: groups are scored as they are finished."""

import os
import threading
import time

import pytest
from fakes import task

from unslothrl import rewards
from unslothrl.actor import Actor, Scoring
from unslothrl.engines.base import Finished
from unslothrl.rewards.scorer import Scorer
from unslothrl.types import Completion, Sampling

SAMPLING = Sampling(1.0, 1.0, 0, 8)
WAIT_S = 60.0  # that a test waits before it fails


class Words:
    """A tokenizer: token 7 is "7", ..."""

    def batch_decode(self, rows, **_):
        return ["<answer>" + "".join(map(str, row)) + "</answer>" for row in rows]


class ScriptedEngine:
    """Finishes requests in the order of `script`; a callable in it is called in between."""

    def __init__(self, script):
        self.script = script

    sampled_tokens = 0

    def add(self, request):
        pass

    def step(self):
        item = self.script.pop(0)
        if not callable(item):
            drawn = Completion.drawn((item + 4,), (-0.5,), "stop", 0)
            return [Finished(str(item), drawn)]
        item()
        return []

    def is_finished(self):
        return not self.script

    def sleep(self):
        pass

    def memory_mb(self):
        return 1.0


class WatchedScorer(Scorer):
    """Says when a group has been scored."""

    def __init__(self, *names: str):
        super().__init__(rewards.choose(names))
        self.sizes: list[int] = []
        self.scored = threading.Event()

    def score(self, completed):
        found = super().score(completed)
        self.sizes.append(len(completed))
        self.scored.set()
        return found


def rolled(script, scorer, tasks: int = 3, candidates: int = 2):
    actor = Actor("actor-0", ScriptedEngine(script), Words(), scorer)
    try:
        return actor.generate([task(str(i)) for i in range(tasks)], candidates, SAMPLING, (0,))
    finally:
        scorer.close()


def test_a_group_is_scored_while_others_are_drawn():
    scorer = WatchedScorer("accuracy")

    def wait():
        assert scorer.scored.wait(WAIT_S), "the finished group is not scored"

    found = rolled([4, 2, 5, wait, 0, 3, 1], scorer)
    assert scorer.sizes[0] == 2 and sum(scorer.sizes) == 6
    # in the order of the tasks: candidate 3 says "7", the gold answer of all of them
    assert [group.task.id for group in found.groups] == ["0", "1", "2"]
    assert [group.scores for group in found.groups] == [(0.0, 0.0), (0.0, 1.0), (0.0, 0.0)]
    ids = [one.token_ids for group in found.groups for one in group.completions]
    assert ids == [(4,), (5,), (6,), (7,), (8,), (9,)]


def test_a_reward_for_all_gets_all_at_once(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(completions):\n    return [len(completions)] * len(completions)\n")
    scorer = WatchedScorer(f"{file}:reward")
    found = rolled([4, 5, 2, 3, 1, 0], scorer)
    assert scorer.sizes == [6]
    assert {total for group in found.groups for total in group.totals} == {6.0}


def test_failures_come_with_their_rollout(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(completion):\n    return 1 / (('7' in completion) - 1)\n")
    found = rolled([0, 1, 2, 3, 4, 5], WatchedScorer(f"{file}:reward"))
    assert [one.text for one in found.failures] == ["<answer>7</answer>"]


def test_an_error_in_scoring_is_raised():
    class Broken(Scorer):
        def score(self, completed):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        rolled([0, 1], Broken(rewards.choose(("accuracy",))), tasks=1)


def test_ctrl_c_ends_what_is_being_scored(tmp_path):
    """At once, though the reward would take for ever; its processes are gone."""
    file, began = tmp_path / "mine.py", tmp_path / "began"
    file.write_text(
        "import pathlib, threading\n"
        f"def reward(completion):\n    pathlib.Path({str(began)!r}).touch()\n"
        "    threading.Event().wait()\n"
    )
    scorer = Scorer(rewards.choose((f"{file}:reward",)), deadline_s=3600)

    def interrupt():
        end = time.monotonic() + WAIT_S
        while not began.exists():
            assert time.monotonic() < end, "the reward was never called"
            os.sched_yield()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rolled([0, 1, interrupt], scorer, tasks=1)
    assert all(w.process.poll() is not None for w in scorer._pools[None].working)
    assert not [one for one in threading.enumerate() if one.name == "scoring"]


def test_a_candidate_is_counted_once_and_groups_may_be_single():
    actor = Actor("actor-0", ScriptedEngine(()), Words(), WatchedScorer("accuracy"))
    with Scoring(actor, [task("a"), task("b")], 1) as scoring:
        scoring.add(1, Completion.drawn((7,), (-0.1,), "stop", 3))
        scoring.add(0, Completion.drawn((1,), (-0.1,), "stop", 3))
        groups, _ = scoring.finish()
    assert [group.scores for group in groups] == [(0.0,), (1.0,)]
    actor.scorer.close()

"""What an actor does while its engine works: groups are scored as they are finished."""

import os
import threading
import time
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from fakes import FakeEngine, draw_groups, task

from unslothrl import rewards
from unslothrl.actors.actor import Actor
from unslothrl.actors.scoring import BackgroundScoring
from unslothrl.cluster import LocalCluster
from unslothrl.engines.base import Finished
from unslothrl.records import Assignment, Completion, Group, Sampling, seed_of
from unslothrl.rewards.scorer import Scorer

SAMPLING = Sampling(1.0, 1.0, 0, 8)
WAIT_S = 60.0  # that a test waits before it fails
# A tokenizer: token 7 is "7", ...
WORDS = SimpleNamespace(decode=lambda ids, **_: f"<answer>{''.join(map(str, ids))}</answer>")


class ScriptedEngine(FakeEngine):
    """Finishes candidates, counted over all tasks, in the order of `script`; calls functions."""

    def __init__(self, script):
        super().__init__()
        self.script = list(script)

    def is_finished(self):
        return not self.script

    def step(self):
        requests = [running.request for running in self.in_flight.values()]
        item = self.script[0]
        if not callable(item) and item >= len(requests):
            return []  # what has been scored is not taken yet, so its request has not been made
        del self.script[0]
        if callable(item):
            item()
            return []
        self.sampled_tokens += 1
        return [Finished(requests[item].id, Completion.drawn((item + 4,), (-0.5,), "stop", 0))]


class WatchedScorer(Scorer):
    def __init__(self, *names: str):
        super().__init__(rewards.choose(names))
        self.sizes: list[int] = []
        self.scored = threading.Event()

    def score(self, completed):
        found = super().score(completed)
        self.sizes.append(len(completed))
        self.scored.set()
        return found

    def wait(self):
        assert self.scored.wait(WAIT_S), "the finished group is not scored"


def actor_of(script, scorer: Scorer | None = None) -> Actor:
    return Actor("actor-0", ScriptedEngine(script), WORDS, scorer or WatchedScorer("accuracy"))


def rolled(script, scorer, tasks: int = 3) -> list[Group]:
    with closing(actor_of(script, scorer)) as actor:
        return draw_groups(actor, [task(str(i)) for i in range(tasks)], 2, SAMPLING, (0,))


def test_a_group_is_scored_while_others_are_drawn():
    scorer = WatchedScorer("accuracy")
    groups = rolled([4, 2, 5, scorer.wait, 0, 3, 1], scorer)
    assert scorer.sizes[0] == 2 and sum(scorer.sizes) == 6
    # in the order of the tasks: candidate 3 says "7", the gold answer of all of them
    assert [group.task.id for group in groups] == ["0", "1", "2"]
    assert [group.scores for group in groups] == [(0.0, 0.0), (0.0, 1.0), (0.0, 0.0)]
    ids = [tuple(one.token_ids) for group in groups for one in group.completions]
    assert ids == [(4,), (5,), (6,), (7,), (8,), (9,)]


def test_a_reward_for_all_gets_all_at_once(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(completions):\n    return [len(completions)] * len(completions)\n")
    scorer = WatchedScorer(f"{file}:reward")
    groups = rolled([4, 5, 2, 3, 1, 0], scorer)
    assert scorer.sizes == [6]
    assert {total for group in groups for total in group.totals} == {6.0}


def test_failures_come_with_their_rollout(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(completion):\n    return 1 / (('7' in completion) - 1)\n")
    groups = rolled([0, 1, 2, 3, 4, 5], WatchedScorer(f"{file}:reward"))
    failures = [[(f.text, f.candidate) for f in group.failures] for group in groups]
    assert failures == [[], [("<answer>7</answer>", 1)], []]


def test_ctrl_c_ends_what_is_being_scored(tmp_path):
    """At once, though the reward would take for ever; its processes are gone."""
    file, began = tmp_path / "mine.py", tmp_path / "began"
    file.write_text(
        "import os, time\n"
        f"def reward(completion):\n    os.mkdir({str(began)!r})\n    time.sleep(3600)\n"
    )
    scorer = Scorer(rewards.choose((f"{file}:reward",)), deadline_s=3600)

    def interrupt():
        end = time.monotonic() + WAIT_S
        while not began.exists():
            assert time.monotonic() < end, "the reward was never called"
            os.sched_yield()
        raise KeyboardInterrupt

    before = threading.enumerate()  # with those of other tests' actors
    with pytest.raises(KeyboardInterrupt):
        rolled([0, 1, interrupt], scorer, tasks=1)
    assert all(w.child.poll() is not None for w in scorer.custom_processes.processes)
    assert not [t for t in threading.enumerate() if t.name == "scoring" and t not in before]


def assigned(*names: str, first: int = 0) -> list[Assignment]:
    return [Assignment(first + i, task(name), 2, SAMPLING, (0,)) for i, name in enumerate(names)]


def test_groups_come_as_they_are_complete_and_more_may_be_submitted():
    scorer = WatchedScorer("accuracy")
    actor = actor_of([2, 3, scorer.wait, 0, 4, 5, 1], scorer)  # it waits between two tokens
    actor.submit(assigned("a", "b"))
    first, _ = actor.collect(1)
    assert [index for index, _ in first] == [1] and not actor.engine.is_asleep
    actor.submit(assigned("c", first=2))
    rest, _ = actor.collect()
    assert sorted(index for index, _ in rest) == [0, 2] and actor.engine.is_asleep
    assert actor.collect()[0] == []
    actor.submit(assigned("d"))
    actor.close()
    assert not actor.episodes


def test_long_prompts_start_first_and_groups_keep_their_order():
    actor = actor_of(range(6))
    tasks = [task(str(i), prompt) for i, prompt in enumerate([(1,), (1, 2, 3), (1, 2)])]
    groups = draw_groups(actor, tasks, 2, SAMPLING, (5, 1))
    requests = [running.request for running in actor.engine.in_flight.values()]
    assert [len(request.prompt_ids) for request in requests] == [3, 3, 2, 2, 1, 1]
    assert [group.task.id for group in groups] == ["0", "1", "2"]
    assert [tuple(one.token_ids) for one in groups[1].completions] == [(4,), (5,)]
    assert requests[0].seed == seed_of(5, 1, "1", 0)
    actor.close()


def test_the_progress_counts_every_completion():
    cluster, seen = LocalCluster.of({"actor-0": actor_of([0, 1])}, {}), []
    call = cluster.actors[0].collect(assignments=assigned("a"))
    cluster.gather([call], lambda *state: seen.append(state))
    assert seen == sorted(seen) and seen[-1] == (2, 2)
    cluster.close()


def test_what_waits_meanwhile_goes_into_one_call():
    calls, begun, go_on = [], threading.Event(), threading.Event()

    def score(work):
        calls.append(list(work))
        begun.set()
        assert go_on.wait(WAIT_S)
        return list(work)

    scoring = BackgroundScoring(score, at_the_end=False)
    scoring.add(1)
    assert begun.wait(WAIT_S)
    scoring.add(2)
    scoring.add(3)
    go_on.set()
    scoring.finish()
    assert calls == [[1], [2, 3]] and scoring.take() == [1, 2, 3]
    scoring.close()


def test_an_error_comes_out_of_the_next_take():
    scoring = BackgroundScoring(Mock(side_effect=ValueError("broken")), at_the_end=False)
    scoring.add(1)
    scoring.finish()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            scoring.take()
    scoring.close()

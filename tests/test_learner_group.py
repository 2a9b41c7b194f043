"""Several learners as one: deadlines by the work, and equal weights."""

import dataclasses

import numpy as np
import pytest
from fakes import FakeLearner

from unslothrl.cluster import LocalCluster
from unslothrl.errors import RunError
from unslothrl.records import Batch, Sample
from unslothrl.training import updates
from unslothrl.training.updates import FIRST_RATE, FIRST_WORK_S, LearnerGroup, Pace


class CheckedLearner(FakeLearner):
    """Says another checksum than the number of its steps where `wrong` is set."""

    def __init__(self, name: str):
        super().__init__(name, lambda *_: True)
        self.wrong = 0
        self.deadlines: list[float | None] = []

    def update(self, batch, lrs, train_policy, deadline_s=None):
        self.deadlines.append(deadline_s)
        done = super().update(batch, lrs, train_policy)
        return dataclasses.replace(done, checksum=self.steps + self.wrong)


def group_of(count: int) -> tuple[LearnerGroup, list[CheckedLearner]]:
    learners = [CheckedLearner(f"learner-{rank}") for rank in range(count)]
    return LearnerGroup(LocalCluster.of({}, {each.name: each for each in learners})), learners


def batch(*lengths: int) -> Batch:
    samples = tuple(
        Sample((number,) * 2, (1,) * length, (-0.5,) * length, np.ones(length, np.float32), 0)
        for number, length in enumerate(lengths)
    )
    return Batch(samples, len(lengths), sum(lengths))


def update(group: LearnerGroup, *lengths: int) -> None:
    group.update(batch(*lengths), {"lora": 1e-3}, True)


def test_a_pace_by_hand():
    """Before anything is seen, time to compile; then five times the slowest of the last eight."""
    pace = Pace()
    assert pace.deadline_s(2000) == FIRST_WORK_S + 2000 / FIRST_RATE == 1000
    pace.saw(0, 5)  # nothing to do says nothing
    assert pace.deadline_s(0) == FIRST_WORK_S
    pace.saw(100, 50)
    assert pace.deadline_s(1000) == 2560  # 60 and five times 0.5 a unit
    for _ in range(updates.KEPT - 1):
        pace.saw(100, 1)
    assert pace.deadline_s(1000) == 2560
    pace.saw(100, 1)
    assert pace.deadline_s(1000) == pytest.approx(110)


def test_all_learners_get_the_same_deadline_from_the_largest_share():
    group, learners = group_of(3)
    update(group, 98, 48, 38, 8)  # shares of 100, 50 and 50 with the prompts of 2
    assert [each.deadlines for each in learners] == [[FIRST_WORK_S + 100 / FIRST_RATE]] * 3
    group.update_pace.seen[0] = 0.5  # seconds for each unit
    update(group, 398)
    assert {each.deadlines[-1] for each in learners} == {1060}


@pytest.mark.parametrize("learners, wrong, named", [
    (2, {1}, "learner-1 and learner-0"),
    (3, {0}, "learner-0 and learner-1"),
    (3, {2}, "learner-2 and learner-0"),
    (5, {1, 3}, "learner-1 and learner-3 and learner-0"),
])  # fmt: skip
def test_learners_that_differ_from_most_are_named(learners, wrong, named):
    group, every = group_of(learners)
    update(group, 4, 5, 6)
    for rank in wrong:
        every[rank].wrong = 7
    with pytest.raises(RunError, match=f"^{named} hold different adapters .*--resume$"):
        update(group, 4, 5, 6)


def test_what_is_measured_comes_back_in_order():
    group, learners = group_of(3)
    samples = batch(5, 1, 9, 2, 7).samples
    found = group.measure(samples, True)
    assert [each.completion_ids for each in found] == [each.completion_ids for each in samples]
    assert [len(each.logprobs) for each in found] == [5, 1, 9, 2, 7]
    assert sum(int(call.split()[1]) for each in learners for call in each.calls) == 5
    (alone,) = group.measure(samples[:1], False)  # two have nothing to do
    assert len(alone.logprobs) == 5


def test_learners_that_were_started_again_are_used():
    group, _ = group_of(2)
    _, fresh = group_of(2)
    group.cluster.learners = LocalCluster.of({}, {each.name: each for each in fresh}).learners
    group.update_pace.saw(1, 1)
    group.renew()
    update(group, 3, 4)
    assert {each.deadlines[0] for each in fresh} == {FIRST_WORK_S + 6 / FIRST_RATE}
    assert [len(each.batches) for each in fresh] == [1, 1]

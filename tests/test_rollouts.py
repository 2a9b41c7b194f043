"""Which generator takes how many tasks of a step, by hand-computed numbers."""

from fake_cluster import FakeCluster, holder
from fakes import NOTHING_DONE, task
from hypothesis import given
from hypothesis import strategies as st

from unslothrl.records import Assignment, Sampling
from unslothrl.training.rollouts import RolloutStream, task_counts

SAMPLING = Sampling(1.0, 1.0, 0, 4)


def test_tasks_by_hand():
    assert list(task_counts(30, 2, 1, 8)) == [11, 11, 8]  # the learner takes 8
    assert list(task_counts(32, 3, 1, 8)) == [8, 8, 8, 8]
    assert list(task_counts(33, 3, 1, 8)) == [9, 8, 8, 8]  # the remainder goes to the first
    assert list(task_counts(30, 2, 1, 0)) == [15, 15, 0]  # the learner only trains
    assert list(task_counts(2, 3, 1, 8)) == [1, 1, 0, 0]  # actors first
    assert list(task_counts(4, 3, 1, 8)) == [1, 1, 1, 1]
    assert list(task_counts(31, 0, 2, 8)) == [16, 15]  # no actors


@given(st.integers(1, 99), st.integers(0, 9), st.integers(1, 4), st.integers(0, 40))
def test_no_task_is_lost(total, actors, learners, chunk):
    counts = task_counts(total, actors, learners, chunk)
    assert sum(counts) == total
    assert len(counts) == actors + learners
    assert min(counts) >= 0


def test_who_has_fewer_groups_gets_what_waits():
    cluster = FakeCluster(2)
    for process in cluster.processes.values():
        process.is_hanging = True
    stream = RolloutStream(cluster, 0, overlaps=True)
    for index in range(4):
        assignment = Assignment(index, task(f"old {index}"), 2, SAMPLING, (0,))
        stream.in_flight[index] = stream.pool.members["actor-1"].holds[index] = assignment
    stream.sent = 4
    stream.send([task(str(i)) for i in range(8)], 2, SAMPLING, (0,))
    given_out = [holder(stream, index) for index in range(4, 12)]
    assert [given_out.count("actor-0"), given_out.count("actor-1")] == [6, 2]


def test_what_an_actor_is_given_goes_with_its_next_call():
    """Two calls are begun ahead; what is given out meanwhile waits for the next, once each."""
    cluster = FakeCluster(1)
    process = cluster.processes["actor-0"]
    process.is_hanging = True
    stream = RolloutStream(cluster, 0, overlaps=True)
    first = stream.send([task("a"), task("b")], 2, SAMPLING, (0,))
    second = stream.send([task("c")], 2, SAMPLING, (0,))
    calls = [(call.method, [a.index for a in call.arguments[2]]) for call in process.queue]
    assert calls == [("collect", first), ("collect", [])]
    process.is_hanging = False
    assert [group.task.id for group in stream.wait([*first, *second])] == ["a", "b", "c"]
    assert [a.index for a in process.target.given] == [*first, *second]


def test_versions_are_counted_over_processes_that_come_and_go():
    """Two actors, of which one ends with two versions in its engine and is started again."""
    stream = RolloutStream(FakeCluster(2), 0, overlaps=True)
    assert stream.version_counts() == (0, 0, 0)

    def hands_over(name: str, loaded: int, unloaded: int) -> None:
        member = stream.pool.members[name]
        member.collecting = 1
        stream._collected(member, ([], {**NOTHING_DONE, "versions": (loaded, unloaded)}))

    hands_over("actor-0", 3, 1)
    hands_over("actor-1", 3, 2)
    assert stream.version_counts() == (6, 3, 2)
    stream.pool.stop("actor-0", "it draws under another version")
    assert stream.version_counts() == (6, 5, 1)  # with it what it held has gone
    hands_over("actor-0", 1, 0)
    hands_over("actor-1", 4, 2)
    assert stream.version_counts() == (8, 5, 2)


def test_stand_ins_are_dealt_what_learners_would_draw():
    stream = RolloutStream(FakeCluster(3), 2, stand_ins=1)
    stream.send([task(str(i)) for i in range(9)], 2, SAMPLING, (0,))
    assert [len(member.holds) for member in stream.pool.ready()] == [4, 3, 2]

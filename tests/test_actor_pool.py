"""Actors that die, hang, are slow or lose results: each group comes once, and from whom it can."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock, PropertyMock

import pytest
from fake_cluster import FakeCluster, FakeProcess, Published, Target, holder
from fakes import task

from unslothrl.cluster.handles import Checks, LearnerHandle
from unslothrl.cluster.handles import Clock as RealClock
from unslothrl.errors import AdapterMismatch, ProcessLost, ResultLost, RunError
from unslothrl.records import Assignment, Sampling
from unslothrl.training import actor_health
from unslothrl.training import actor_pool as pool_module
from unslothrl.training.actor_health import LATE_SILENT_S, SILENT_S, Pending, Speed, limits_s
from unslothrl.training.rollouts import RolloutStream
from unslothrl.weights.adapter import Adapter, AdapterShape

SAMPLING = Sampling(1.0, 1.0, 0, 4)


class Clock:
    """In place of the module `time`."""

    def __init__(self):
        self.now, self.look_s = 0.0, 1.0

    def monotonic(self) -> float:
        self.now += self.look_s  # every look at it takes a second
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pool_module, "time", clock)
    return clock


def begun(
    actors: int, learner: Target | None = None, chunk: int = 0, base: str = "base", **keywords
) -> tuple[FakeCluster, RolloutStream, list[str]]:
    cluster, notes = FakeCluster(actors), []
    if learner is not None:
        cluster.learners = (LearnerHandle(learner.name, FakeProcess(learner.name, learner)),)
    keywords = {"note": notes.append, "checks": Checks(None, base), **keywords}
    return cluster, RolloutStream(cluster, chunk, **keywords), notes


def send(stream: RolloutStream, count: int) -> list[int]:
    return stream.send([task(str(i)) for i in range(count)], 2, SAMPLING, (0, 1))


def publish(stream: RolloutStream, version: int) -> None:
    stream.publish(Published(Adapter.of(version, b"weights", "{}")), version)


def pump(stream: RolloutStream, times: int) -> None:
    for _ in range(times):
        stream.pump()


def pump_until(stream: RolloutStream, is_reached: Callable[[], object]) -> None:
    while not is_reached():
        stream.pump()


def names_of(groups) -> list[str]:
    return [group.task.id for group in groups]


def generators_of(groups) -> set[str]:
    return {completion.generator for group in groups for completion in group.completions}


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_dead_actors_groups_are_given_out_again_and_it_is_started_again(overlaps):
    cluster, stream, notes = begun(2, overlaps=overlaps)
    publish(stream, 3)
    indices = send(stream, 9)
    stream.pump()
    cluster.processes["actor-1"].is_dead = True
    assert names_of(stream.wait(indices)) == [str(i) for i in range(9)]
    assert cluster.started == ["actor-1"] and stream.in_flight == {}
    assert notes[0].startswith("actor-1 died: started again")
    assert len(stream.wait(send(stream, 6))) == 6 and stream.pool.replaced == 1
    assert cluster.processes["actor-1"].target.calls[0] == "load 3"  # the newest, before any work


def test_an_actor_that_starts_while_a_version_is_published_works_under_it():
    cluster, stream, _ = begun(1, overlaps=True)
    publish(stream, 1)
    indices = send(stream, 2)
    cluster.processes["actor-0"].is_dead = True
    pump_until(stream, lambda: cluster.started)
    queue = cluster.processes["actor-0"].queue
    pump_until(stream, lambda: any(call.method == "load" for call in queue))
    publish(stream, 2)
    assert [group.policy_version for group in stream.wait(indices)] == [2, 2]


def test_shares_stay_in_order_after_an_actor_was_replaced():
    cluster, stream, _ = begun(3)
    cluster.processes["actor-0"].is_dead = True
    stream.wait(send(stream, 3))
    pump_until(stream, lambda: len(stream.pool.ready()) == 3)
    groups = stream.wait(send(stream, 3))
    assert [group.completions[0].generator for group in groups] == [f"actor-{i}" for i in range(3)]


def test_the_result_of_a_group_that_came_twice_counts_once():
    cluster, stream, _ = begun(1)
    cluster.processes["actor-0"].loses_next = True
    assert names_of(stream.wait(send(stream, 3))) == ["0", "1", "2"] and cluster.started == []
    assert stream.finished == {} and stream.in_flight == {}


def test_an_actor_that_does_not_answer_is_taken_for_hung_and_its_late_results_ignored(clock):
    clock.look_s = 0.1
    cluster, stream, notes = begun(2)
    assert len(stream.wait(send(stream, 4))) == 4
    hung = cluster.processes["actor-0"]
    hung.is_hanging = True
    groups = stream.wait(send(stream, 4))
    assert names_of(groups) == ["0", "1", "2", "3"] and cluster.started == []  # it may only be late
    pump_until(stream, lambda: cluster.started)
    assert cluster.started == ["actor-0"]
    assert "has not answered for" in notes[0] and "it hangs" in notes[0]
    assert len(hung.queue) > 0  # what it was asked is answered by nobody


@pytest.mark.parametrize("overlaps", [False, True])
def test_an_actor_that_was_late_goes_on_where_it_is(overlaps, clock):
    clock.look_s = 0.1
    cluster, stream, _ = begun(2, overlaps=overlaps)
    publish(stream, 1)
    assert len(stream.wait(send(stream, 4))) == 4
    stream.pool.longest["collect"] = 30.0  # so that it is late long before it hangs
    late, member = cluster.processes["actor-0"], stream.pool.members["actor-0"]
    late.is_hanging = True
    groups = stream.wait(send(stream, 4))
    assert names_of(groups) == ["0", "1", "2", "3"] and member.is_late
    assert generators_of(groups) == {"actor-1"}
    assert [m.name for m in stream.pool.ready()] == ["actor-1"]
    late.is_hanging = False
    pump_until(stream, lambda: not member.pending)
    assert not member.is_late and late.target.submitted == []  # it has stopped drawing the rest
    assert stream.finished == {}  # what it had done counts no second time
    assert generators_of(stream.wait(send(stream, 4))) == {"actor-0", "actor-1"}
    assert stream.in_flight == {} and cluster.started == []


def test_nobody_is_late_where_nobody_else_works(clock):
    clock.look_s = 0.1
    cluster, stream, _ = begun(1)
    assert len(stream.wait(send(stream, 2))) == 2
    cluster.processes["actor-0"].is_hanging = True
    indices = send(stream, 2)
    while not cluster.started:
        stream.pump()
        assert not any(member.is_late for member in stream.pool.members.values())
    assert len(stream.wait(indices)) == 2


def test_a_version_is_not_waited_for_where_an_actor_may_hang(clock):
    clock.look_s = 0.1
    cluster, stream, _ = begun(2)
    publish(stream, 1)
    assert len(stream.wait(send(stream, 4))) == 4
    stream.pool.longest["collect"] = 10.0  # so that it is late long before it hangs
    cluster.processes["actor-1"].is_hanging = True
    assert len(stream.wait(send(stream, 4))) == 4 and cluster.started == []
    publish(stream, 2)
    assert cluster.started == [] and stream.pool.members["actor-1"].is_late
    cluster.processes["actor-1"].is_hanging = False
    pump_until(stream, lambda: not stream.pool.members["actor-1"].is_late)
    groups = stream.wait(send(stream, 4))
    assert {group.policy_version for group in groups} == {2} and cluster.started == []


def test_a_first_call_may_take_long_unless_the_process_is_silent():
    cluster, stream, _ = begun(1)
    cluster.processes["actor-0"].is_hanging = True
    send(stream, 1)
    pump(stream, 100)  # of which each is some seconds
    assert cluster.started == []
    cluster.silent["actor-0"] = SILENT_S + 1
    stream.pump()
    assert cluster.started == []  # what compiles may hold the interpreter's lock
    cluster.silent["actor-0"] = actor_health.FIRST_SILENT_S + 1
    stream.pump()
    assert cluster.started == ["actor-0"]


@pytest.mark.parametrize(("silent_s", "started"), [(SILENT_S - 1, []), (SILENT_S + 1, ["actor-0"])])
def test_a_process_that_has_done_such_calls_may_be_silent_for_less_long(silent_s, started):
    cluster, stream, _ = begun(1)
    assert len(stream.wait(send(stream, 2))) == 2
    cluster.processes["actor-0"].is_hanging = True
    cluster.silent["actor-0"] = silent_s
    send(stream, 1)
    pump(stream, 5)
    assert cluster.started == started


@pytest.mark.parametrize(
    ("answers_take_s", "more_s"), [(0.0, 0.0), (0.5, 1.0), (60.0, actor_health.MOST_USUAL_S)]
)
def test_others_draw_what_a_silent_process_has_after_more_time_on_a_busy_machine(
    answers_take_s, more_s
):
    cluster, stream, _ = begun(2)
    cluster.processes["actor-1"].is_hanging = True
    cluster.silent["actor-1"] = LATE_SILENT_S + more_s - 0.1
    cluster.answers_take_s = answers_take_s  # twice as long is allowed, within limits
    indices = send(stream, 4)
    pump(stream, 100)
    assert not stream.pool.members["actor-1"].is_late
    cluster.silent["actor-1"] = LATE_SILENT_S + more_s + 0.1
    pump_until(stream, lambda: stream.pool.members["actor-1"].is_late)
    assert names_of(stream.wait(indices)) == ["0", "1", "2", "3"] and cluster.started == []


def test_an_actor_that_draws_under_another_version_is_stopped_by_name():
    cluster, stream, notes = begun(2)
    mismatch = AdapterMismatch("actor-1: layer 0 is not what was published")
    cluster.processes["actor-1"].target.load = Mock(side_effect=mismatch)
    publish(stream, 1)
    assert len(stream.wait(send(stream, 4))) == 4
    assert cluster.started == ["actor-1"] and notes[0].startswith("actor-1: layer 0 is not")


def test_an_actor_that_is_stopped_has_a_successor_with_a_canary():
    cluster, stream, notes = begun(2)
    stream.pool.checks.shape = AdapterShape((), "{}")
    stream.wait(send(stream, 4))
    stream.pool.stop("actor-1", "actor-1: its log-probabilities are 1 a token from the learner's")
    stream.pool.stop("actor-9", "it has left meanwhile")
    assert len(stream.wait(send(stream, 4))) == 4 and cluster.started == ["actor-1"]
    assert notes[0].startswith("actor-1: its log-probabilities") and "it is stopped" in notes[0]
    pump_until(stream, lambda: len(stream.pool.ready()) == 2)
    assert "canary" in cluster.processes["actor-1"].target.calls


def test_an_actor_with_another_base_after_a_restart_is_given_up():
    cluster, stream, notes = begun(2, base="another base")
    indices = send(stream, 40)
    cluster.processes["actor-0"].is_dead = True
    assert len(stream.wait(indices)) == 40
    pump_until(stream, lambda: "actor-0" not in stream.pool.members)
    assert any("actor-0 holds a different 4-bit base (base)" in note for note in notes)
    assert cluster.started == ["actor-0"] * pool_module.MOST_RESTARTS
    assert len(stream.wait(send(stream, 4))) == 4  # min_actors is 1


@pytest.mark.parametrize(
    ("actors", "least", "reason"),
    [(2, 2, "1 actor left, and min_actors is 2"), (1, 0, "0 actors left, and min_actors is 1")],
)
def test_too_few_actors_end_the_run_after_as_many_starts_as_make_sense(
    actors, least, reason, learner
):
    """With learners that draw nothing it needs one."""
    cluster, stream, notes = begun(actors, learner, min_actors=least)
    cluster.starts_in_vain = {"actor-0"}
    indices = send(stream, 4)
    cluster.processes["actor-0"].is_dead = True
    with pytest.raises(RunError, match=reason):
        stream.wait(indices)
    assert cluster.started == ["actor-0"] * pool_module.MOST_RESTARTS and not learner.given
    assert any(note.startswith(f"waiting for actors: {reason[0]} actor") for note in notes)


def test_an_actor_that_dies_before_it_hands_over_a_group_each_time_ends_the_run(monkeypatch):
    """However much it has drawn of it: with the same seeds the next one would die there, too."""
    nothing = {"completions": 0, "tokens": 9, "reward_s": 0.0, "engine_steps": 9, "engine_s": 1.0,
               "memory_mb": 1.0, "versions": (0,)}  # fmt: skip

    def slice_or_death(target, least=None, seconds=None, assignments=()):
        target.calls.append("slice")
        if len(target.calls) > 5:
            raise ProcessLost(target.name, f"{target.name} died")
        return [], nothing

    monkeypatch.setattr(Target, "collect", slice_or_death)
    cluster, stream, _ = begun(1)
    with pytest.raises(RunError, match="0 actors left"):
        stream.wait(send(stream, 1))
    assert cluster.started == ["actor-0"] * pool_module.MOST_RESTARTS


def test_an_actor_that_hangs_while_it_starts_is_started_again():
    cluster, stream, notes = begun(1)
    cluster.hangs_next = {"actor-0"}
    indices = send(stream, 4)
    cluster.processes["actor-0"].is_dead = True
    assert len(stream.wait(indices)) == 4
    assert cluster.started == ["actor-0"] * 2
    assert any("actor-0 has not answered for 6" in note for note in notes)


def test_a_stall_is_a_time_in_which_nobody_looked():
    clock = RealClock(iter([0.0, 0.5, 5.25, 65.25, 65.75]).__next__)
    assert [clock.now() for _ in range(4)] == [0.5, 5.25, 5.25, 5.75]


def test_a_driver_that_was_stopped_takes_nobody_for_hung(clock):
    """By Ctrl-Z. Until its processes' answers arrive it has nothing to go by but the clock."""
    clock.look_s = 0.1
    cluster, stream, _ = begun(2)
    indices = send(stream, 4)
    for process in cluster.processes.values():
        process.is_hanging = True
    pump(stream, 9)
    clock.now += 3600.0
    pump(stream, 9)
    for process in cluster.processes.values():
        process.is_hanging = False
    assert len(stream.wait(indices)) == 4 and cluster.started == []


@pytest.fixture
def learner() -> Target:
    return Target("learner-0", lambda assignment, candidate: True)


@pytest.mark.parametrize(("chunk", "draws"), [(0, False), (1, True)])
def test_learners_take_over_for_a_dead_actor_only_if_they_draw_at_all(chunk, draws, learner):
    cluster, stream, _ = begun(1, learner, chunk, min_actors=0)
    cluster.processes["actor-0"].is_dead = True
    assert len(stream.wait(send(stream, 4))) == 4
    assert len(learner.given) > chunk if draws else not learner.given


@pytest.mark.parametrize(
    "error", [ProcessLost("learner-0", "learner-0 died"), ResultLost("a result was lost")]
)
@pytest.mark.parametrize("overlaps", [False, True])
def test_a_learner_that_dies_while_it_publishes_takes_no_actor_with_it(
    overlaps, error, clock, learner
):
    """Neither one that works nor one that is starting; or has gone with its node since."""

    class LostVersion(Published):
        value = PropertyMock(side_effect=error)

        def __init__(self): ...

    clock.look_s = 0.001
    cluster, stream, _ = begun(3, learner, overlaps=overlaps)
    publish(stream, 0)
    cluster.processes["actor-2"].is_dead = True
    collecting = Pending(cluster.processes["actor-2"].call("collect"), "collect")
    stream.pool.call(stream.pool.members["actor-2"], collecting)
    pump_until(stream, lambda: cluster.started)
    with pytest.raises(ProcessLost, match="learner-0") as lost:
        stream.publish(LostVersion(), 1)
        pump_until(stream, lambda: False)
    assert lost.value.name == "learner-0" and str(error) in str(lost.value)
    stream.pool.renew_learners()
    stream.reset()
    publish(stream, 1)
    pump_until(stream, lambda: len(stream.pool.ready()) == 3)
    groups = stream.wait(send(stream, 12))
    assert {one.policy_version for group in groups for one in group.completions} == {1}
    assert generators_of(groups) == {"actor-0", "actor-1", "actor-2"}
    assert cluster.started == ["actor-2"]


def test_an_overlapping_actor_gets_no_more_than_it_can_draw_at_once():
    cluster, stream, _ = begun(2, overlaps=True, groups_at_once=3)
    for process in cluster.processes.values():
        process.is_hanging = True
    send(stream, 9)
    held = [holder(stream, index) for index in stream.in_flight]
    assert {name: held.count(name) for name in held} == {"actor-0": 3, "actor-1": 3, "": 3}
    assert held[-3:] == ["", "", ""]  # first come, first served


def test_what_is_urgent_goes_first():
    cluster, stream, _ = begun(1, overlaps=True, groups_at_once=1)
    cluster.processes["actor-0"].is_hanging = True
    groups = [Assignment(i, task(f"t{i}"), 1, SAMPLING, (0, i)) for i in range(2)]
    first = stream.send_assignments(groups)
    urgent = send(stream, 1)
    cluster.processes["actor-0"].is_hanging = False
    assert len(stream.wait(urgent)) == 1 and first[1] in stream.in_flight


def test_what_a_call_may_take_grows_with_what_was_seen():
    assert limits_s(None) == (actor_health.FIRST_S, math.inf)
    assert limits_s(0.5) == (actor_health.FLOOR_S, actor_health.LATE_S) == (20.0, 10.0)
    assert limits_s(4.0) == (4.0 * actor_health.FACTOR, 4.0 * actor_health.LATE_FACTOR)


def test_the_longest_call_of_a_kind_counts():
    _, stream, _ = begun(1)
    pool, member, now = stream.pool, stream.pool.members["actor-0"], 0.0
    pool.clock = SimpleNamespace(now=lambda: now)
    for seconds, longest in ((0.5, 0.5), (4.0, 4.0), (2.0, 4.0)):
        pool.call(member, Pending(member.handle.check(None), "check"))
        now += seconds
        pool.poll(0.0)
        assert pool.longest == {"check": longest} and not member.pending


def speed(*recent: tuple[int, int, float]) -> Speed:
    result = Speed()
    for steps, tokens, seconds in recent:
        result.saw(steps, tokens, seconds)
    return result


def test_slowness_is_beside_the_others_by_steps_and_by_tokens():
    usual = speed((100, 1000, 3.0), (100, 1000, 3.0))  # 0.03 s a step, 0.003 a token
    slow = speed((10, 100, 3.0), (10, 100, 3.0))
    assert slow.slowness([usual, usual]) == pytest.approx(10)
    few = speed((100, 100, 3.0), (100, 100, 3.0))  # few sequences: its tokens are slow alone
    assert few.slowness([usual]) == pytest.approx(1)
    assert slow.slowness([]) == 1 and speed((10, 100, 3.0)).slowness([usual]) == 1
    assert len(speed(*[(10, 10, 1.0)] * 50).recent) == 3  # the last 3 s


def test_a_slow_actor_is_helped_where_all_wait_for_it_and_then_started_again():
    cluster, stream, notes = begun(2)
    pool = stream.pool
    slow, fast = pool.members["actor-0"], pool.members["actor-1"]
    send(stream, 4)
    for member, steps in ((slow, 10), (fast, 100)) * 2:
        pool.saw_work(member, steps, 10 * steps, 3.0)
    pool._look_at_speeds(100.0)
    pool._look_at_speeds(101.0 + actor_health.HELD_UP_S)
    assert not slow.is_late  # the other has work of its own
    for index in fast.drop():
        del stream.in_flight[index]
    pool._look_at_speeds(102.0 + actor_health.HELD_UP_S)
    assert slow.is_late and not fast.is_late
    assert {holder(stream, index) for index in stream.in_flight} == {""}
    for _ in range(2):
        pool.saw_work(slow, 30, 300, 3.0)  # three times as slow is not yet as fast as the others
    pool._look_at_speeds(101.0 + actor_health.SLOW_S)
    assert cluster.started == ["actor-0"] and notes[0].startswith("actor-0 is 3 times as slow")
    pool.saw_work(fast, 500, 5000, 15.0)
    assert len(stream.wait(list(stream.in_flight))) == 2

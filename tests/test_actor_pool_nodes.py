"""Nodes that come and go: who starts where, who is emptied first; each group comes once."""

from unittest.mock import Mock

import pytest
from fake_cluster import holder
from test_actor_pool import begun, clock, generators_of, names_of, publish, pump_until, send  # noqa: F401

from unslothrl.cluster.handles import Changes
from unslothrl.errors import ResultLost, RunError, UserError
from unslothrl.training import actor_pool as pool_module


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_node_that_joins_gets_an_actor_which_draws(overlaps):
    cluster, stream, notes = begun(1, overlaps=overlaps)
    publish(stream, 2)
    stream.wait(send(stream, 4))
    cluster.next_changes = Changes(joined=("actor-1",), notes=("node b is ready",))
    pump_until(stream, lambda: "actor-1 is ready" in notes)
    assert notes[:2] == ["node b is ready", "a node has joined: actor-1 starts on it"]
    groups = stream.wait(send(stream, 6))
    assert generators_of(groups) == {"actor-0", "actor-1"} and len(groups) == 6
    assert cluster.processes["actor-1"].target.calls[0] == "load 2"


@pytest.mark.parametrize("overlaps", [False, True])
def test_an_actor_that_leaves_is_emptied_before_it_starts_elsewhere(overlaps):
    cluster, stream, _ = begun(2, overlaps=overlaps)
    leaving = cluster.processes["actor-0"]
    indices = send(stream, 8)
    cluster.next_changes = Changes(leaving=("actor-0",))
    pump_until(stream, lambda: stream.pool.members["actor-0"].is_leaving)
    held = {i for i in stream.in_flight if holder(stream, i) == "actor-0"}
    later = send(stream, 4)
    assert "actor-0" not in {holder(stream, i) for i in later}  # nothing new
    groups = stream.wait([*indices, *later])
    assert names_of(groups) == list("012345670123")
    pump_until(stream, lambda: cluster.started)
    assert cluster.started == cluster.moved == ["actor-0"] and stream.pool.replaced == 0
    drawn = [group for group in groups if generators_of([group]) == {"actor-0"}]
    assert len(drawn) >= len(held) and leaving.target.submitted == []
    assert generators_of(stream.wait(send(stream, 8))) == {"actor-0", "actor-1"}


def test_the_only_actor_may_leave_with_work_in_hand():
    """Between two of its calls it has none pending, and still holds groups."""
    cluster, stream, _ = begun(1)
    indices = send(stream, 20)
    cluster.next_changes = Changes(leaving=("actor-0",))
    first = cluster.processes["actor-0"]
    assert names_of(stream.wait(indices)) == [str(i) for i in range(20)]
    assert first.target.submitted == []
    assert len(stream.wait(send(stream, 4))) == 4 and cluster.started == ["actor-0"]


@pytest.mark.parametrize("overlaps", [False, True])
def test_without_room_an_actor_waits_and_the_others_go_on(overlaps):
    cluster, stream, notes = begun(2, overlaps=overlaps)
    indices = send(stream, 6)
    cluster.without_room = {"actor-1"}
    cluster.processes["actor-1"].is_dead = True
    assert names_of(stream.wait(indices)) == [str(i) for i in range(6)]
    assert generators_of(stream.wait(send(stream, 4))) == {"actor-0"}
    stream.wait(send(stream, 40))
    assert notes.count("actor-1 waits: no node has room for it") == 1  # however often it is tried
    cluster.without_room = set()
    pump_until(stream, lambda: "actor-1 is ready" in notes)
    assert generators_of(stream.wait(send(stream, 4))) == {"actor-0", "actor-1"}
    assert stream.pool.waiting == set()


def test_a_run_waits_for_room_below_min_actors_and_then_ends():
    cluster, stream, notes = begun(1)
    indices = send(stream, 2)
    cluster.without_room = {"actor-0"}
    cluster.processes["actor-0"].is_dead = True
    with pytest.raises(RunError, match="0 actors left, and min_actors is 1"):
        stream.wait(indices)
    assert any("0 actors at work, 1 starting" in note for note in notes)
    assert pool_module.time.monotonic() - stream.pool.waiting_since > pool_module.WAIT_S


@pytest.mark.parametrize(
    "error", [UserError("no card"), ValueError("odd"), RunError("no base"), KeyError("odd")]
)
def test_a_start_that_fails_is_tried_elsewhere_and_does_not_end_the_run(error):
    cluster, stream, notes = begun(2)
    add_actor = cluster.add_actor

    def fails_once(name: str, elsewhere: bool = False):
        handle, _ = add_actor(name, elsewhere)
        process = cluster.processes[name]
        if len(cluster.started) == 1:
            process.target.ready = Mock(side_effect=error)
        process.queue.clear()
        return handle, process.call("ready")

    cluster.add_actor = fails_once
    indices = send(stream, 4)
    cluster.processes["actor-1"].is_dead = True
    assert len(stream.wait(indices)) == 4
    pump_until(stream, lambda: "actor-1 is ready" in notes)
    assert cluster.started == ["actor-1"] * 2 and cluster.moved == ["actor-1"]
    (failed,) = [note for note in notes if note.startswith("actor-1 has not started (")]
    assert str(error).strip("'") in failed and "\n" not in failed


def test_a_result_that_is_lost_while_an_actor_starts_starts_it_again():
    cluster, stream, _ = begun(2)
    cluster.next_changes = Changes(joined=("actor-2",))
    pump_until(stream, lambda: "actor-2" in cluster.started)
    cluster.processes["actor-2"].target.check = Mock(side_effect=ResultLost("lost"))
    pump_until(stream, lambda: stream.pool.members["actor-2"].is_ready)
    assert cluster.started == ["actor-2"] * 2


def test_groups_given_out_while_everyone_leaves_wait_in_the_driver():
    cluster, stream, _ = begun(2, overlaps=True)
    cluster.without_room = {"actor-0", "actor-1"}
    cluster.next_changes = Changes(leaving=("actor-0", "actor-1"))
    pump_until(stream, lambda: not stream.pool.members)
    indices = send(stream, 4)
    assert {holder(stream, i) for i in indices} == {""}
    cluster.without_room = set()
    assert len(stream.wait(indices)) == 4


def test_several_waiting_actors_start_as_there_is_room():
    cluster, stream, _ = begun(3)
    cluster.without_room = {"actor-1", "actor-2"}
    for name in cluster.without_room:
        cluster.processes[name].is_dead = True
    assert len(stream.wait(send(stream, 6))) == 6 and cluster.started == []
    cluster.without_room = {"actor-2"}
    pump_until(stream, lambda: cluster.started == ["actor-1"])
    assert stream.pool.waiting == {"actor-2"}

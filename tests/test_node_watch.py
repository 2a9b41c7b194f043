"""Where actors start when nodes come, drain and go, over nodes that are made up."""

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from unslothrl.cluster import node_watch, on_node
from unslothrl.cluster.node_watch import NodeWatch
from unslothrl.cluster.nodes import Card
from unslothrl.config.options import Config
from unslothrl.errors import RunError, UserError
from unslothrl.planning.placement import ACTOR, LEARNER, Node, ProcessPlan, Resources
from unslothrl.system.machine import Gpu

GB = 1024.0
BASE_MB = 500.0  # so that an actor needs 2,000 MB
HERE = {"unslothrl": "1", "torch": "2.0"}


class FakeNodes:
    """Stands for Ray and for `JoinedNodes`."""

    def __init__(self, **nodes: tuple[float, int]):
        """name -> (GB of memory, GPUs)"""
        state = SimpleNamespace(
            state=SimpleNamespace(get_draining_nodes=lambda: dict.fromkeys(self.draining, 0)),
            available_resources_per_node=lambda: {n: {"GPU": g} for n, g in self.free.items()},
        )
        self.ray = SimpleNamespace(nodes=self._nodes, _private=SimpleNamespace(state=state))
        self.alive = dict(nodes)
        self.draining: set[str] = set()
        self.free = {name: gpus for name, (_, gpus) in nodes.items()}
        self.asked: list[tuple[str, str]] = []  # (node, function)
        self.installed: dict[str, dict[str, str]] = {}
        self.fails: dict[str, str] = {}  # node -> what `prepare` says
        self.given_back: list[str] = []
        self.config = replace(Config(), engine="transformers", backend="peft")
        self.resources = Resources((), 0.0)
        self.paths: list[str] = []
        self.facts = {name: self._facts(name) for name in nodes}
        self.names = {name: f"10.0.0.{name}" for name in nodes}
        self.prepared: dict[str, Any] = {}
        self.cards: list[Card] = []

    def _nodes(self) -> list[dict]:
        return [
            {"NodeID": name, "Alive": True, "Resources": {"memory": gb * 2**30},
             "NodeManagerAddress": f"10.0.0.{name}", "NodeManagerHostname": ""}
            for name, (gb, _) in self.alive.items()
        ]  # fmt: skip

    def _facts(self, node: str) -> dict:
        has = self.installed.get(node, HERE)
        return {"cpus": 2, "memory_mb": 64 * GB, "free_mb": 32 * GB, "versions": has}

    def look(self, nodes, most=None) -> list[tuple[Node, list[Card]]]:
        (node,) = nodes
        self.asked.append((node, "look"))
        self.facts[node] = self._facts(node)
        cards = [self.card(node) for _ in range(self.free.get(node, 0))[:most]]
        return [(self.entry(node), cards)]

    def entry(self, node: str) -> Node:
        return Node(node, self.names[node], 2, self.alive[node][0] * GB, 32 * GB)

    def differences(self, kinds) -> dict[str, str]:
        nodes = [(n, self.names[n], kinds[n], self.facts[n]["versions"]) for n in kinds]
        return on_node.differences(self.config, nodes)

    def make_ready(self, kinds) -> None:
        for node, what in self.differences(kinds).items():
            raise UserError(f"node {self.names[node]} has {what}: install the same everywhere")
        for node in kinds:
            self.asked.append((node, "ready"))
            if node in self.fails:
                raise UserError(f"node {self.names[node]}: {self.fails[node]}")
            self.prepared[node] = {}

    def card(self, node: str) -> Card:
        self.free[node] -= 1
        return Card(SimpleNamespace(node=node), "0", None)

    def give_back(self, cards) -> None:
        for card in cards:
            self.given_back.append(card.group.node)
            self.free[card.group.node] = self.free.get(card.group.node, 0) + 1


class Threads:
    """In place of `in_thread`: a look is over when `open` says so."""

    def __init__(self):
        self.open, self.waiting = True, []

    def __call__(self, function, *arguments) -> Future:
        future: Future = Future()
        self.waiting.append((future, function, arguments))
        if self.open:
            self.finish()
        return future

    def finish(self) -> None:
        for future, function, arguments in self.waiting:
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                future.set_exception(error)
        self.waiting = []


@pytest.fixture(autouse=True)
def installed(monkeypatch) -> Threads:
    monkeypatch.setattr(on_node, "ALWAYS", tuple(HERE))
    monkeypatch.setattr(on_node, "installed", lambda: dict(HERE))
    threads = Threads()
    monkeypatch.setattr(node_watch, "in_thread", threads)
    return threads


def watch_of(nodes: FakeNodes, **actors: str) -> NodeWatch:
    """With a learner on node a, and actors (their index as a word) on the nodes given."""
    plans = [ProcessPlan(LEARNER, 0, node=nodes.entry("a"))]
    for index, node in enumerate(actors.values()):
        plans.append(ProcessPlan(ACTOR, index, node=nodes.entry(node)))
    nodes.prepared = {plan.node.id: {} for plan in plans if plan.node}
    return NodeWatch(nodes, {plan.name: plan for plan in plans}, BASE_MB)


def node_of(watch: NodeWatch, name: str) -> str:
    node = watch.plans[name].node
    assert node is not None
    return node.id


def test_a_node_that_comes_is_made_ready_beside_the_run_and_gets_one_actor(installed):
    nodes = FakeNodes(a=(16, 0))
    watch = watch_of(nodes, zero="a")
    nodes.alive["b"] = (16, 0)
    installed.open = False
    for _ in range(3):
        assert watch.changes() == node_watch.Changes()
    assert nodes.asked == [] and len(installed.waiting) == 1
    installed.finish()
    assert watch.changes().joined == ("actor-1",)
    assert nodes.asked == [("b", "look"), ("b", "ready")] and node_of(watch, "actor-1") == "b"
    assert watch.changes() == node_watch.Changes()
    watch.place("actor-1")


@pytest.mark.parametrize(
    "case, line",
    [
        ("version", "node 10.0.0.b has torch 1.0 (the driver: 2.0)"),
        ("memory", "node 10.0.0.b has 1.0 GB of memory, and an actor needs about 2.0 GB"),
        ("prepare", "node 10.0.0.b: no such model"),
    ],
)
def test_a_node_that_cannot_be_used_is_named_once_and_left_out(case, line):
    nodes = FakeNodes(a=(2.5, 0))
    watch = watch_of(nodes, zero="a")
    nodes.alive["b"] = (1 if case == "memory" else 16, 0)
    nodes.installed = {"b": {**HERE, "torch": "1.0"}} if case == "version" else {}
    nodes.fails = {"b": "no such model"} if case == "prepare" else {}
    changes = watch.changes()
    (note,) = changes.notes
    assert changes.joined == () and note.startswith(line) and "continues without" in note
    assert watch.changes() == node_watch.Changes()
    nodes.alive["a"] = nodes.alive.pop("a")
    nodes.draining = {"a"}
    for _ in range(3):
        with pytest.raises(RunError, match=r"is about to go, and no other has 2\.0 GB"):
            watch.place("actor-0")
        assert watch.changes().notes == ()


def test_a_drained_node_is_left_for_the_one_with_most_room_each():
    nodes = FakeNodes(a=(16, 0), b=(16, 0), c=(16, 0))
    watch = watch_of(nodes, zero="a", one="b", two="c")
    nodes.draining = {"b"}
    assert watch.changes().leaving == ("actor-1",)
    watch.place("actor-1", elsewhere=True)
    assert node_of(watch, "actor-1") == "c"  # a has the learner as well
    assert watch.changes().leaving == ()


def test_an_actor_of_a_dead_node_waits_for_a_node_of_the_cluster_that_was_not_used():
    nodes = FakeNodes(a=(4, 0), b=(16, 0), c=(16, 0))
    watch = watch_of(nodes, zero="a", one="b")  # a is full with two
    del nodes.alive["b"]
    with pytest.raises(RunError, match=r"node 10\.0\.0\.b is gone"):
        watch.place("actor-1")
    assert watch.changes().joined == () and nodes.asked == [("c", "look"), ("c", "ready")]
    watch.place("actor-1")
    assert node_of(watch, "actor-1") == "c" and watch.waiting == set()


def test_a_node_that_comes_back_gets_the_actor_that_waits_and_none_besides():
    nodes = FakeNodes(a=(4, 0), b=(16, 0))
    watch = watch_of(nodes, zero="a", one="b")  # a is full with two
    for name in "cde":  # it goes, and comes back under other ids
        del nodes.alive[node_of(watch, "actor-1")]
        with pytest.raises(RunError, match="is gone"):
            watch.place("actor-1")
        nodes.alive[name] = (16, 0)
        assert watch.changes() == node_watch.Changes()
        watch.place("actor-1")
        assert node_of(watch, "actor-1") == name
    assert watch.names_given == 2


def test_a_learner_goes_where_most_memory_is_left():
    nodes = FakeNodes(a=(16, 0), b=(12, 0), c=(16, 0))
    watch = watch_of(nodes, zero="b", one="c")
    del nodes.alive["a"]
    watch.place("learner-0")
    assert node_of(watch, "learner-0") == "c"


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_node_that_goes_while_it_is_looked_at_is_forgotten(installed, gpus):
    nodes = FakeNodes(a=(16, 2))
    watch = (watch_on_cards if gpus else watch_of)(nodes, zero="a")
    nodes.alive["b"], nodes.free["b"], installed.open = (16, gpus), gpus, False
    watch.changes()
    installed.finish()
    del nodes.alive["b"]
    assert watch.changes() == node_watch.Changes() and watch.looks == {}
    assert nodes.given_back == ["b"] * gpus


def watch_on_cards(nodes: FakeNodes, **actors: str) -> NodeWatch:
    """The same with a card for each process."""
    watch = watch_of(nodes, **actors)
    watch.has_cards = True
    for name, plan in list(watch.plans.items()):
        assert plan.node is not None
        card = len(nodes.cards)
        nodes.cards.append(nodes.card(plan.node.id))
        watch.plans[name] = replace(plan, cards=(card,))
        watch.cards[card] = plan.node.id
    return watch


def test_each_card_of_a_node_that_comes_gets_an_actor():
    nodes = FakeNodes(a=(16, 2))
    watch = watch_on_cards(nodes, zero="a")
    nodes.alive["b"], nodes.free["b"] = (16, 2), 2
    assert watch.changes().joined == ("actor-1", "actor-2")
    assert [watch.plans[f"actor-{i}"].card for i in (1, 2)] == [2, 3]
    assert nodes.free["b"] == 0


def test_an_actor_whose_card_has_gone_takes_a_free_one_of_another_node_and_no_more():
    nodes = FakeNodes(a=(16, 1), b=(16, 1), c=(16, 3))
    watch = watch_on_cards(nodes, zero="b")
    del nodes.alive["b"]
    with pytest.raises(RunError, match="no other has a free GPU yet"):
        watch.place("actor-0")
    assert nodes.given_back == ["b"]
    assert watch.changes() == node_watch.Changes() and nodes.free["c"] == 2
    watch.place("actor-0")
    assert node_of(watch, "actor-0") == "c" and watch.plans["actor-0"].card == 2


def test_a_card_that_is_too_small_gets_no_actor(monkeypatch):
    nodes = FakeNodes(a=(16, 2))
    watch = watch_on_cards(nodes, zero="a")
    small, whole = Gpu("small", 100, 100, (8, 0)), nodes.card
    monkeypatch.setattr(nodes, "card", lambda node: replace(whole(node), gpu=small))
    nodes.alive["b"], nodes.free["b"] = (16, 1), 1
    changes = watch.changes()
    assert changes.joined == () and "too small" in changes.notes[0]
    assert nodes.given_back == ["b"]

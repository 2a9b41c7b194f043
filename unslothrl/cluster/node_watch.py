"""The nodes of a joined cluster during a run: some come, some are about to go, some have gone.

A node that comes is looked at and made ready as the others were at the start (`nodes.JoinedNodes`),
in a thread beside the run, and nothing here waits for it. One that differs, or cannot be used, is
named in one line, and the run goes on without it.

A process keeps its node as long as that is there. Otherwise it goes to another node with room: the
memory for it, or on a cluster with GPUs one that nobody uses. A node that comes gets processes that
wait for room, else a new actor; with several GPUs, one for each.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

from unslothrl.cluster.handles import Changes
from unslothrl.cluster.nodes import REMOVE_S, Card, JoinedNodes, name_of
from unslothrl.errors import RunError, UserError
from unslothrl.planning.footprint import usable_mb
from unslothrl.planning.place import Cards, best_node, groups_of, place_alone, process_mb
from unslothrl.planning.placement import ACTOR, LEARNER, Node, ProcessPlan


def in_thread(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Runs a function in a thread of its own, which does not keep this process alive."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class NodeWatch:
    """Where each process of a run is to be. `plans`, by name, is kept up to date."""

    def __init__(self, nodes: JoinedNodes, plans: dict[str, ProcessPlan], base_mb: float):
        self.nodes, self.plans, self.ray = nodes, plans, nodes.ray
        self.each = nodes.config.gpus_per_actor  # GPUs of an actor
        self.each_mb = process_mb(base_mb, self.each)
        self.usable = {plan.node.id: plan.node for plan in plans.values() if plan.node}
        self.cards = {  # that the run holds -> node
            card: plan.node.id
            for plan in plans.values()
            if plan.node is not None
            for card in plan.cards
        }
        self.has_cards = bool(nodes.resources.gpus)
        self.known = set(nodes.names)
        self.refused: set[str] = set()
        self.alive: dict[str, Mapping[str, Any]] = {}
        self.draining: set[str] = set()
        self.looks: dict[str, Future[Any]] = {}  # at nodes
        self.waiting: set[str] = set()  # processes that there is no room for
        self.names_given = sum(plan.kind == ACTOR for plan in plans.values())
        self.takes_more = self.names_given > 0  # without actors the learners draw
        self.joined: list[str] = []
        self.notes: list[str] = []

    def changes(self) -> Changes:
        """Since it was last asked. Takes milliseconds."""
        self.look()
        leaving = tuple(
            name
            for name, plan in self.plans.items()
            if plan.kind == ACTOR and plan.node is not None and plan.node.id in self.draining
        )
        changes = Changes(tuple(self.joined), leaving, tuple(self.notes))
        self.joined, self.notes = [], []
        return changes

    def look(self) -> None:
        """Begins to look at nodes that may be used, and takes those that are ready."""
        self._refresh()
        new = self.alive.keys() - self.known
        self.known |= new
        for node in new if self.takes_more else ():
            self.looks[node] = in_thread(self._ready, node, None)
        if self.waiting:
            self._look_for_room()
        for node, future in list(self.looks.items()):
            if future.done():
                del self.looks[node]
                self._take(node, future)

    def _refresh(self) -> None:
        """Which nodes there are; forgets those that have gone."""
        self.alive = {each["NodeID"]: each for each in self.ray.nodes() if each["Alive"]}
        self.draining = set(self.ray._private.state.state.get_draining_nodes())
        self.nodes.names |= {node: name_of(each) for node, each in self.alive.items()}
        for node in self.usable.keys() - self.alive.keys():
            del self.usable[node]
            self._give_back([card for card, at in self.cards.items() if at == node])

    def _give_back(self, cards: Iterable[int]) -> None:
        for card in cards:
            self.nodes.give_back([self.nodes.cards[card]])
            del self.cards[card]

    def _look_for_room(self) -> None:
        """On the nodes that the run does not use, or not wholly."""
        free = self.ray._private.state.available_resources_per_node() if self.has_cards else {}
        most = len(self.waiting) * self.each
        for node in self.alive.keys() - self.looks.keys() - self.refused - self.draining:
            if node not in self.usable or free.get(node, {}).get("GPU", 0) >= 1:
                self.looks[node] = in_thread(self._ready, node, most)

    def _ready(self, node: str, most: int | None) -> tuple[Node, list[Card]]:
        """Looks at a node and makes it ready for actors; takes at most so many of its GPUs. In a
        thread: it changes nothing here. Raises UserError, RunError."""
        ((entry, cards),) = self.nodes.look([node], most)
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.nodes.give_back, cards)
            if not self.has_cards and entry.memory_mb < self.each_mb:
                raise UserError(
                    f"node {entry.name} has {entry.memory_mb / 1024:.1f} GB of memory, and an "
                    f"actor needs about {self.each_mb / 1024:.1f} GB"
                )
            has_room = len(cards) >= self.each or not self.has_cards
            if has_room and node not in self.nodes.prepared:
                self.nodes.make_ready({node: {ACTOR}})
            on_error.pop_all()
        return entry, cards

    def _take(self, node: str, found: Future[Any]) -> None:
        """Uses a node that has been looked at, unless it is going by now."""
        is_there = node in self.alive and node not in self.draining
        if isinstance(error := found.exception(), UserError | RunError):
            self.refused.add(node)
            if is_there:
                self.notes.append(f"{error}: the run continues without this node")
            return
        entry, cards = found.result()
        kept = len(cards) // self.each * self.each if is_there else 0
        self.nodes.give_back(cards[kept:])  # what is left over holds no actor
        if not is_there or (self.has_cards and not kept):
            return
        numbers = range(len(self.nodes.cards), len(self.nodes.cards) + kept)
        self.nodes.cards += cards[:kept]
        self.usable[node] = entry
        self.cards |= dict.fromkeys(numbers, node)
        self._welcome(node, self._groups(numbers, self.each) if self.has_cards else [()])

    def _groups(self, cards: Iterable[int], each: int) -> list[Cards]:
        """GPUs of a node as those of processes with so many each, the larger ones together."""
        gpus = [card.gpu for card in self.nodes.cards]
        return groups_of(cards, gpus, [0] * len(gpus), each)

    def _welcome(self, node: str, came: list[Cards]) -> None:
        """Says who starts on a node beside the processes that wait for room."""
        for cards in came[len(self.waiting) :]:
            plan = self._planned(ProcessPlan(ACTOR, self.names_given), node, cards)
            if plan is None:
                self._give_back(cards)
                name = self.nodes.names[node]
                self.notes.append(f"node {name}: a GPU is too small for an actor")
                continue
            self.names_given += 1
            self.plans[plan.name] = plan
            self.joined.append(plan.name)

    def _planned(self, plan: ProcessPlan, node: str, cards: Cards) -> ProcessPlan | None:
        """The plan of a process there; None where its GPUs are too small for it."""
        gpu = self.nodes.cards[cards[0]].gpu if cards else None
        there = replace(plan, node=self.usable[node])
        new = place_alone(self.nodes.config, there, cards, gpu)
        is_too_large = gpu and new.needs and new.needs.generating_mb() > usable_mb(gpu)
        return None if is_too_large else new

    def place(self, name: str, elsewhere: bool = False) -> None:
        """Decides where a process starts now: where it was, or on another node where that is not to
        be or, with `elsewhere`, where another has room. RunError where there is no room yet."""
        self._refresh()
        plan = self.plans[name]
        assert plan.node is not None
        closed = self.draining | self.refused
        is_there = plan.node.id in self.usable.keys() - closed
        is_there &= all(card in self.cards for card in plan.cards)
        if elsewhere or not is_there:
            new = self._elsewhere(plan, closed | {plan.node.id})
            if new is None and not is_there:
                self.waiting.add(name)
                self._look_for_room()
                gpus = "a free GPU" if len(plan.cards) < 2 else f"{len(plan.cards)} free GPUs"
                what = gpus if self.has_cards else f"{self.each_mb / 1024:.1f} GB of memory for it"
                state = "is about to go" if plan.node.id in self.alive else "is gone"
                raise RunError(f"its node {plan.node.name} {state}, and no other has {what} yet")
            if new is not None:
                self.plans[name] = new
        self.waiting.discard(name)

    def _elsewhere(self, plan: ProcessPlan, closed: set[str]) -> ProcessPlan | None:
        """The plan of a process on another node: by its memory, or on its largest free GPUs."""
        nodes = [node for node in self.usable.values() if node.id not in closed]
        if plan.kind == LEARNER:  # they were made ready for actors
            wrong = self.nodes.differences({node.id: {LEARNER} for node in nodes})
            nodes = [node for node in nodes if node.id not in wrong]
        others = [each for each in self.plans.values() if each.name != plan.name]
        if not self.has_cards:
            used = [each.node.id for each in others if each.node is not None]
            count = [used.count(node.id) for node in nodes]
            at = best_node(nodes, count, self.each_mb, plan.kind == LEARNER)
            return None if at is None else self._planned(plan, nodes[at].id, ())
        taken = {card for each in others for card in each.cards} | set(plan.cards)
        free = self.cards.keys() - taken
        plans = [
            self._planned(plan, node.id, cards)
            for node in nodes
            for cards in self._groups(
                [card for card in free if self.cards[card] == node.id], len(plan.cards)
            )
        ]
        fitting = [each for each in plans if each is not None]
        return max(fitting, key=lambda each: usable_mb(each.gpu) if each.gpu else 0, default=None)

    def remove(self, name: str) -> None:
        self.waiting.discard(name)
        self.plans.pop(name, None)

    def close(self) -> None:
        """Returns when nothing is looked at any more, or hangs."""
        wait(self.looks.values(), REMOVE_S)

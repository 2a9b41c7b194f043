"""The nodes of a joined cluster during a run: some come, some are about to go, some have gone.

A node that comes is looked at and made ready as the others were at the start (`nodes.JoinedNodes`),
beside the run: what takes long runs there, and nothing here waits for it. One that differs, or
cannot be used, is named in one line, and the run goes on without it.

A process keeps its node as long as that is there. Otherwise it goes to another node with room: the
memory for it, or on a cluster with cards one that nobody uses. A node that comes gets actors that
wait for room, then one that another node had to take over, else a new one; with several cards, one
for each.
"""

import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unslothrl import variables
from unslothrl.cluster import versions
from unslothrl.cluster.base import Changes
from unslothrl.cluster.nodes import LOOK_S, RESERVE_S, JoinedNodes, name_of
from unslothrl.errors import RunError, UserError
from unslothrl.planning.engine_memory import usable_mb
from unslothrl.planning.place import Cards, best_node, groups_of, place_alone, process_mb
from unslothrl.planning.placement import ACTOR, LEARNER, Node, ProcessPlan

Steps = Generator[tuple[Any, float | None], bool, list[Cards]]
"""Yields what it waits for and the seconds that this may take, and is sent whether it has come.
-> for each actor that the node has room for, its cards."""


@dataclass
class Look:
    """At a node, as far as it has got."""

    steps: Steps
    is_new: bool  # it has come during the run
    ref: Any = None
    until: float | None = None


class NodeWatch:
    """Where each process of a run is to be. `plans`, by name, is kept up to date."""

    def __init__(self, nodes: JoinedNodes, plans: dict[str, ProcessPlan], base_mb: float):
        self.nodes, self.plans, self.ray = nodes, plans, nodes.ray
        self.each = nodes.config.actor_tensor_parallel  # cards of an actor
        self.each_mb = process_mb(base_mb, self.each)
        self.usable = {plan.node.id: plan.node for plan in plans.values() if plan.node}
        self.at_start = frozenset(self.usable)
        self.cards = {  # that the run holds -> node
            card: plan.node.id
            for plan in plans.values()
            if plan.node is not None
            for card in plan.cards
        }
        self.has_cards = bool(nodes.resources.gpus)
        self.versions = versions.installed()
        self.known = set(nodes.names)
        self.refused: set[str] = set()
        self.alive: dict[str, Mapping[str, Any]] = {}
        self.draining: set[str] = set()
        self.looks: dict[str, Look] = {}
        self.waiting: set[str] = set()  # processes that there is no room for
        self.displaced: set[str] = set()  # actors that another node has taken over
        self.names_given = sum(plan.kind == ACTOR for plan in plans.values())
        self.takes_more = self.names_given > 0  # without actors the learners draw
        self.joined: list[str] = []
        self.leaving: list[str] = []
        self.notes: list[str] = []

    def changes(self) -> Changes:
        """Since it was last asked. Takes milliseconds."""
        self.look()
        draining = [
            name
            for name, plan in self.plans.items()
            if plan.kind == ACTOR and plan.node is not None and plan.node.id in self.draining
        ]
        changes = Changes(tuple(self.joined), (*draining, *self.leaving), tuple(self.notes))
        self.joined, self.leaving, self.notes = [], [], []
        return changes

    def look(self) -> None:
        """Goes on with the looks at nodes as far as there are answers."""
        self._refresh()
        new = self.alive.keys() - self.known
        self.known |= new
        for node in new if self.takes_more else ():
            self._begin(node, is_new=True)
        if self.waiting:
            self._look_for_room()
        for node, look in list(self.looks.items()):
            try:
                came = self._advance(node, look)
            except (UserError, RunError) as error:
                self.notes.append(f"{error}: the run continues without this node")
                self.refused.add(node)
                del self.looks[node]
                continue
            if came is not None:
                del self.looks[node]
                if look.is_new:
                    self._welcome(node, came)

    def _refresh(self) -> None:
        """Which nodes there are; forgets those that have gone."""
        self.alive = {each["NodeID"]: each for each in self.ray.nodes() if each["Alive"]}
        self.draining = set(self.ray._private.state.state.get_draining_nodes())
        self.nodes.names |= {node: name_of(each) for node, each in self.alive.items()}
        for node in [*self.looks]:
            if node not in self.alive or node in self.draining:
                self.looks.pop(node).steps.close()
        for node in [*self.usable]:
            if node not in self.alive:
                self._forget(node)

    def _forget(self, node: str) -> None:
        self.usable.pop(node, None)
        gone = [card for card, holder in self.cards.items() if holder == node]
        self._give_back(gone)
        for card in gone:
            del self.cards[card]

    def _give_back(self, cards: Sequence[int]) -> None:
        if cards:
            self.nodes.give_back([self.nodes.cards[card].group for card in cards])

    def _begin(self, node: str, is_new: bool) -> None:
        most = None if is_new else len(self.waiting)
        self.looks[node] = Look(self._steps(node, most), is_new)

    def _look_for_room(self) -> None:
        """On the nodes that the run does not use, or not wholly."""
        free = self.ray._private.state.available_resources_per_node() if self.has_cards else {}
        for node in self.alive.keys() - self.looks.keys() - self.refused - self.draining:
            if node not in self.usable or free.get(node, {}).get("GPU", 0) >= 1:
                self._begin(node, is_new=False)

    def _advance(self, node: str, look: Look) -> list[Cards] | None:
        """-> what the look has returned, None while it waits. Raises what it raises."""
        while True:
            has_come = False
            if look.ref is not None:
                has_come = bool(self.ray.wait([look.ref], timeout=0)[0])
                if not has_come and (look.until is None or time.monotonic() < look.until):
                    return None
            try:
                look.ref, seconds = (
                    next(look.steps) if look.ref is None else look.steps.send(has_come)
                )
            except StopIteration as end:
                return end.value
            look.until = None if seconds is None else time.monotonic() + seconds

    def _steps(self, node: str, most: int | None) -> Steps:
        """Looks at a node and makes it ready; of its cards it takes those of at most so many
        processes."""
        nodes, name = self.nodes, self.nodes.names[node]
        nodes.facts[node] = yield from self._answer(node, LOOK_S, "facts", nodes.paths)
        if different := self._differences(node, ACTOR):
            raise UserError(f"node {name} has {different}: install the same everywhere")
        entry = nodes.entry(node, self.alive[node]["Resources"].get("memory", 0))
        if not self.has_cards and entry.memory_mb < self.each_mb:
            raise UserError(
                f"node {name} has {entry.memory_mb / 1024:.1f} GB of memory, and an actor needs "
                f"about {self.each_mb / 1024:.1f} GB"
            )
        cards: list[int] = []
        try:
            if self.has_cards:
                yield from self._take_cards(node, cards, most and most * self.each)
            if most is None:  # what is left over holds no actor
                over = len(cards) % self.each
                self._give_back([cards.pop() for _ in range(over)])
            if self.has_cards and not cards:
                if most is None:
                    has = f"too few free GPUs ({over})" if over else "no free GPU"
                    self.notes.append(f"node {name} has {has}: nothing starts there")
                return []
            if node not in nodes.prepared:
                call = nodes.begin_prepare(node, True, {})
                yield call, None
                nodes.take_prepared({node: nodes.answer(name, call)})
        except BaseException:
            self._give_back(cards)
            raise
        self.usable[node] = entry
        self.cards |= dict.fromkeys(cards, node)
        return self._groups(cards, self.each) if self.has_cards else [()]

    def _answer(
        self, node: str, seconds: float, function: str, *arguments: Any, group: Any = None
    ) -> Generator[tuple[Any, float | None], bool, Any]:
        """-> what a function of `on_node` returns there. Raises UserError, RunError."""
        call = self.nodes.on(node, function, *arguments, group=group)
        name = self.nodes.names[node]
        if not (yield call, seconds):
            raise RunError(f"node {name} has not answered for {seconds:.0f} s")
        return self.nodes.answer(name, call)

    def _differences(self, node: str, kind: str) -> str:
        """What is not installed there as it is on the driver and on the nodes in use."""
        nodes = self.nodes
        reference = {name: (version, "the driver") for name, version in self.versions.items()}
        for other in self.usable.keys() - {node}:
            for name, version in nodes.facts[other]["versions"].items():
                reference.setdefault(name, (version, f"node {nodes.names[other]}"))
        wanted = versions.wanted(nodes.config, {kind})
        here = nodes.facts[node]["versions"]
        return ", ".join(versions.differences(wanted, here, reference, nodes.names[node]))

    def _take_cards(
        self, node: str, cards: list[int], most: int | None
    ) -> Generator[Any, bool, None]:
        """Takes cards there that Ray counts as free."""
        nodes = self.nodes
        free = self.ray._private.state.available_resources_per_node().get(node, {}).get("GPU", 0)
        limit = os.environ.get(variables.CARD_LIMIT)
        for _ in range(int(free))[:most]:
            group = nodes.reserve(node)
            try:
                if not (yield group.ready(), RESERVE_S):  # another job was faster
                    nodes.give_back([group])
                    return
                answer = yield from self._answer(node, LOOK_S, "card", limit, group=group)
                nodes.cards.append(nodes.card(node, group, answer))
            except BaseException:
                nodes.give_back([group])
                raise
            cards.append(len(nodes.cards) - 1)

    def _groups(self, cards: Sequence[int], each: int) -> list[Cards]:
        """Cards of a node as those of processes with so many each, the larger ones together; in a
        group the smallest comes first."""
        gpus = [card.gpu for card in self.nodes.cards]
        return groups_of(cards, gpus, [0] * len(gpus), each)

    def _welcome(self, node: str, came: list[Cards]) -> None:
        """Says who starts on a node that has come, beside the actors that wait for room."""
        for cards in came[len(self.waiting & self._actors()) :]:
            back = next(iter(sorted(self.displaced)), None)
            if back is not None:
                self.displaced.remove(back)
                self.leaving.append(back)
                continue
            plan = self._planned(ProcessPlan(ACTOR, self.names_given), node, cards)
            if plan is None:
                self._give_back(cards)
                for card in cards:
                    del self.cards[card]
                self.notes.append(
                    f"node {self.nodes.names[node]}: a card is too small for an actor"
                )
                continue
            self.names_given += 1
            self.plans[plan.name] = plan
            self.joined.append(plan.name)

    def _planned(self, plan: ProcessPlan, node: str, cards: Cards) -> ProcessPlan | None:
        """The plan of a process there; None where its cards are too small for it."""
        card = cards[0] if cards else None
        gpu = None if card is None else self.nodes.cards[card].gpu
        there = replace(plan, node=self.usable[node])
        new = place_alone(self.nodes.config, there, cards, gpu)
        is_too_large = gpu and new.needs and new.needs.generating_mb() > usable_mb(gpu)
        return None if is_too_large else new

    def _actors(self) -> set[str]:
        return {name for name, plan in self.plans.items() if plan.kind == ACTOR}

    def place(self, name: str, elsewhere: bool = False) -> None:
        """Decides where a process starts now: where it was, or on another node where that is not to
        be or, with `elsewhere`, where another has room. RunError where none has."""
        self._refresh()
        plan = self.plans[name]
        assert plan.node is not None
        own = plan.node.id
        is_there = own in self._open() and all(card in self.cards for card in plan.cards)
        if elsewhere or not is_there:
            new = self._on_a_card(plan) if self.has_cards else self._by_memory(plan)
            if new is None and not is_there:
                self.waiting.add(name)
                self._look_for_room()
                raise RunError(self._no_room(plan))
            if new is not None:
                self.plans[name] = new
                if plan.kind == ACTOR:  # though its node be there: it may be about to be lost
                    self.displaced.add(name)
        self.waiting.discard(name)

    def _open(self) -> dict[str, Node]:
        """The nodes that processes may start on."""
        shut = self.draining | self.refused
        return {node: entry for node, entry in self.usable.items() if node not in shut}

    def _by_memory(self, plan: ProcessPlan) -> ProcessPlan | None:
        nodes = self._candidates(plan)
        others = [each.node for each in self.plans.values() if each.name != plan.name]
        count = [sum(other is not None and other.id == each.id for other in others)
                 for each in nodes]  # fmt: skip
        at = best_node(nodes, count, self.each_mb, plan.kind == LEARNER)
        return None if at is None else self._planned(plan, nodes[at].id, ())

    def _on_a_card(self, plan: ProcessPlan) -> ProcessPlan | None:
        """On the largest cards of a node that no other process has and that it fits on."""
        taken = {card for other in self.plans.values() for card in other.cards}
        free: dict[str, list[int]] = {each.id: [] for each in self._candidates(plan)}
        for card, node in self.cards.items():
            if card not in taken and node in free:
                free[node].append(card)
        plans = [
            self._planned(plan, node, cards)
            for node, its in free.items()
            for cards in self._groups(its, len(plan.cards))
        ]
        fitting = [each for each in plans if each is not None]
        return max(fitting, key=lambda each: usable_mb(each.gpu) if each.gpu else 0, default=None)

    def _candidates(self, plan: ProcessPlan) -> list[Node]:
        """The nodes, other than its own, that a process may start on."""
        assert plan.node is not None
        return [
            entry
            for node, entry in self._open().items()
            if node != plan.node.id
            and (plan.kind == ACTOR or not self._differences(node, plan.kind))
        ]

    def _no_room(self, plan: ProcessPlan) -> str:
        assert plan.node is not None
        gpus = "a free GPU" if len(plan.cards) < 2 else f"{len(plan.cards)} free GPUs"
        what = gpus if self.has_cards else f"{self.each_mb / 1024:.1f} GB of memory for it"
        state = "is about to go" if plan.node.id in self.alive else "is gone"
        return f"its node {plan.node.name} {state}, and no other has {what} yet"

    def exclude(self, name: str) -> bool:
        """Uses the node of a process no longer, if that was not among those of the start."""
        node = self.plans[name].node
        if node is None or node.id in self.at_start:
            return False
        self.refused.add(node.id)
        return True

    def remove(self, name: str) -> None:
        """Of a process that does not start again."""
        self.waiting.discard(name)
        self.displaced.discard(name)
        self.plans.pop(name, None)

    def close(self) -> None:
        for look in self.looks.values():
            look.steps.close()

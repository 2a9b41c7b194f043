"""The machines of a run: what there is on each, and what a process is started with there.

`ThisMachine` where Ray was started for this machine; `JoinedNodes` where others can join. There
every node is looked at once, before anything is loaded: its CPUs, memory, versions and cards. Then
each node that gets a process finds or fetches the base itself, and is sent the user's files that it
does not have. A node that cannot, or that differs, is named in one line.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from unslothrl import variables
from unslothrl.cluster import failures, on_node, shipping, versions
from unslothrl.config.options import OPTIONS, Config
from unslothrl.errors import RunError, UserError
from unslothrl.planning.engine_options import with_engines
from unslothrl.planning.machine import Gpu, Machine
from unslothrl.planning.placement import Node, Placement, ProcessPlan, Resources
from unslothrl.planning.shapes import shape_of
from unslothrl.weights import base_parts

LOOK_S = 150.0  # for a node to be looked at: a process that starts, and torch from a cold disk
RESERVE_S = 20.0  # for cards that Ray counts as free
REMOVE_S = 20.0  # at the end of a run; a process that starts there for it takes some
NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True)
class Start:
    """What a process is started with on its node."""

    strategy: Any  # Ray's scheduling strategy
    gpus: float  # that Ray counts for it
    environment: dict[str, str]
    config: Config  # with the user's files as that node has them
    base: Path


class Nodes(Protocol):
    """The machines of a run."""

    config: Config
    resources: Resources

    def prepare(self, placement: Placement) -> None:
        """Reserves what a placement needs and makes its nodes ready. Raises UserError."""

    def start_of(self, plan: ProcessPlan) -> Start:
        """What a process of the placement is started with, also in place of one that died."""

    def close(self) -> None:
        """Removes what was written on other machines."""


def of_run(ray: Any, config: Config, base: Path, machine: Machine, scratch: Path) -> Nodes:
    """The machines of a run under Ray, which has been started or joined. Raises UserError."""
    if config.ray_address is None:
        return ThisMachine(ray, config, base, machine, scratch)
    return JoinedNodes(ray, config, base, machine)


class ThisMachine:
    """See `Nodes`."""

    def __init__(self, ray: Any, config: Config, base: Path, machine: Machine, scratch: Path):
        self.ray, self.config, self.base = ray, config, base
        self.machine, self.scratch = machine, scratch
        self.resources = Resources.of_machine(config, machine)
        self.strategies: dict[str, Any] = {}

    def prepare(self, placement: Placement) -> None:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundles = placement.bundles()
        if not bundles:
            return
        group = placement_group(bundles, strategy="PACK")
        if not group.wait(timeout_seconds=60):
            raise UserError(
                f"number_of_actors {self.config.number_of_actors}: the cluster does not give "
                f"{bundles} (it has {self.ray.cluster_resources()}): is another job holding it?"
            )
        self.strategies = {
            plan.name: PlacementGroupSchedulingStrategy(group, index)
            for index, plan in enumerate(placement.processes)
        }

    def start_of(self, plan: ProcessPlan) -> Start:
        environment = process_environment(self.machine, self.scratch, plan)
        strategy = self.strategies.get(plan.name, "DEFAULT")
        return Start(strategy, plan.reserved, environment, self.config, self.base)

    def close(self) -> None:
        """Nothing is written on other machines."""


def process_environment(machine: Machine, scratch: Path, plan: ProcessPlan) -> dict[str, str]:
    """What a process gets: this process's environment, where to import us from, and the cards that
    it was planned for, where they are this machine's."""
    on_card: dict[str, str] = {}
    if plan.card is not None and plan.gpu is not None:
        on_card = variables.of_cards(*plan.cards)
    return {
        **variables.of_workers(machine.cpus, bool(machine.gpus)),
        **on_card,
        "PYTHONPATH": paths(str(variables.IMPORT_FOLDER), os.environ.get("PYTHONPATH", "")),
        variables.SCRATCH: str(scratch),
    }


def paths(*folders: str) -> str:
    return os.pathsep.join(filter(None, folders))


@dataclass(frozen=True)
class Card:
    """A card of a node, which the run holds by a placement group of its own: Ray binds a group to
    one card for as long as it exists."""

    group: Any
    visible: str  # what CUDA_VISIBLE_DEVICES is there for this card alone
    gpu: Gpu | None  # None: Ray counts a GPU where there is no sign of one


class JoinedNodes:
    """See `Nodes`. Cards that the placement does not use are given back."""

    def __init__(self, ray: Any, config: Config, base: Path, machine: Machine):
        self.ray, self.config, self.machine = ray, config, machine
        self.task = ray.remote(num_cpus=0, max_retries=0)(on_node.call)
        parts = base_parts.of(base)  # its weights a driver without a card quantises otherwise
        self.tokenizer = {part: parts[part] for part in base_parts.OF_TEXTS}
        self.driver_node = ray.get_runtime_context().get_node_id()
        self.facts: dict[str, dict[str, Any]] = {}
        self.preparing: dict[str, Any] = {}  # node -> what has begun to prepare it
        self.prepared: dict[str, dict[str, Any]] = {}
        self.cards: list[Card] = []
        self.paths = shipping.paths_of(config)
        self.digests = {path: shipping.digest(path) for path in self.paths}
        self.names = {each["NodeID"]: name_of(each) for each in ray.nodes() if each["Alive"]}
        try:
            self.resources = self._look()
        except BaseException:
            self.give_back([card.group for card in self.cards])
            raise
        self.config = fitted(config, self.resources)

    def _look(self) -> Resources:
        calls = {node: self.on(node, "facts", self.paths) for node in self.names}
        self.facts = self._answers(calls, LOOK_S)
        cards = self._hold_cards()
        total = {each["NodeID"]: each["Resources"].get("memory", 0) for each in self.ray.nodes()}
        found = []
        for node in self.facts:
            its = cards.get(node, [])
            found.append((self.entry(node, total.get(node, 0)), [card.gpu for card in its]))
            self.cards += its
        return Resources.of_nodes(found)

    def entry(self, node: str, memory: float) -> Node:
        """What there is on a node that has been looked at; `memory` is what Ray counts, bytes."""
        facts = self.facts[node]
        memory_mb = min(memory / 2**20, facts["memory_mb"])
        return Node(node, self.names[node], facts["cpus"], memory_mb, facts["free_mb"])

    def _hold_cards(self) -> dict[str, list[Card]]:
        """Takes every card that Ray counts as free, and looks at it. -> node -> its cards"""
        free = self.ray._private.state.available_resources_per_node()
        groups = [
            (node, self.reserve(node))
            for node in self.names
            for _ in range(int(free.get(node, {}).get("GPU", 0)))
        ]
        if not groups:
            return {}
        refs = {group.ready(): (node, group) for node, group in groups}
        done, late = self.ray.wait(list(refs), num_returns=len(refs), timeout=RESERVE_S)
        self.give_back([refs[ref][1] for ref in late])  # another job was faster
        held = [refs[ref] for ref in refs if ref in set(done)]
        try:
            limit = os.environ.get(variables.CARD_LIMIT)
            calls = {
                (node, index): self.on(node, "card", limit, group=group)
                for index, (node, group) in enumerate(held)
            }
            answers = self._answers(calls, LOOK_S)
            cards: dict[str, list[Card]] = {}
            for (node, index), answer in answers.items():
                cards.setdefault(node, []).append(self.card(node, held[index][1], answer))
            return cards
        except BaseException:
            self.give_back([group for _, group in held])
            raise

    def reserve(self, node: str) -> Any:
        """-> a placement group of one of the node's cards, once it is ready."""
        from ray.util.placement_group import placement_group

        return placement_group([{"GPU": 1}], bundle_label_selector=[{NODE_LABEL: node}])

    def card(self, node: str, group: Any, answer: dict[str, Any]) -> Card:
        if answer["gpu"] is None and answer["problem"]:
            raise UserError(
                f"node {self.names[node]}: Ray counts a GPU that cannot be used there "
                f"({answer['problem']}): fix it, or join the node with `ray start --num-gpus=0`"
            )
        return Card(group, answer["id"], answer["gpu"] and gpu_of(answer["gpu"]))

    def prepare(self, placement: Placement) -> None:
        has = {node: facts["versions"] for node, facts in self.facts.items()}
        versions.check(self.config, placement, has)
        used = {card for plan in placement.processes for card in plan.cards}
        self.give_back([card.group for at, card in enumerate(self.cards) if at not in used])
        nodes = list(dict.fromkeys(plan.node.id for plan in placement.processes if plan.node))
        with_learner = {plan.node.id for plan in placement.learners if plan.node}
        refs: dict[str, Any] = {}
        calls = {node: self.begin_prepare(node, node in with_learner, refs) for node in nodes}
        self.take_prepared(self._answers(calls, None))

    def begin_prepare(self, node: str, with_learner: bool, refs: dict[str, Any]) -> Any:
        """Has a node find or fetch the base, and sends it what it does not have. `refs`: of the
        paths that have been put into Ray's object store so far. Raises UserError."""
        needed = self.paths
        if not with_learner and self.config.engine == "vllm":
            needed = [path for path in needed if path != self.config.adapter]
        digests = self.facts[node]["digests"]
        lacks = [path for path in needed if digests[path] != self.digests[path]]
        for path in lacks:
            if path not in refs:
                if shipping.digest(path) != self.digests[path]:
                    raise UserError(f"{path} is no longer what it was when the run began")
                refs[path] = self.ray.put(shipping.content(path))
        contents = [refs[path] for path in lacks]
        names = self._names()
        self.preparing[node] = self.on(node, "prepare", self.config, lacks, *names, *contents)
        return self.preparing[node]

    def take_prepared(self, answers: Mapping[str, Any]) -> None:
        """What `prepare` has returned on nodes. Raises UserError that names one."""
        for node, answer in answers.items():
            if "error" in answer:
                raise UserError(f"node {self.names[node]}: {answer['error']}")
            if changed := base_parts.differing(self.tokenizer, answer["parts"]):
                raise UserError(
                    f"node {self.names[node]}: model {self.config.model} is not the driver's, by "
                    f"its {changed}: fetch the same model on both, or delete the older copy"
                )
        check_same_weights(self.config.model, self.names, {**self.prepared, **answers})
        self.prepared |= answers

    def _names(self) -> tuple[str, str, list[str]]:
        """Ray's names of the cluster and of this run, and of every run that is alive."""
        worker = self.ray._private.worker.global_worker
        jobs = worker.gcs_client.get_all_job_info()
        alive = [job.hex() for job, info in jobs.items() if not info.is_dead]
        return worker.node.session_name, self.ray.get_runtime_context().get_job_id(), alive

    def on(self, node: str, name: str, *arguments: Any, group: Any = None) -> Any:
        """Begins a function of `on_node` on a node, or on the card of a `group`."""
        from ray.util import scheduling_strategies as strategies

        strategy: Any = strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        if group is not None:
            strategy = strategies.PlacementGroupSchedulingStrategy(group, 0)
        gpus = int(group is not None)
        task = self.task.options(num_gpus=gpus, scheduling_strategy=strategy)
        return task.remote(str(variables.IMPORT_FOLDER), name, *arguments)

    def _answers(self, calls: Mapping[Any, Any], timeout_s: float | None) -> dict[Any, Any]:
        """What calls return, by their keys, which are nodes or begin with one. Raises UserError."""
        refs = list(calls.values())
        late = self.ray.wait(refs, num_returns=len(refs), timeout=timeout_s)[1]
        for key, ref in calls.items():
            if ref in late:
                raise UserError(
                    f"node {self._name(key)} has not answered for {timeout_s:.0f} s: look at it "
                    "with `ray status`, or stop Ray on it"
                )
        return {key: self.answer(self._name(key), ref) for key, ref in calls.items()}

    def answer(self, name: str, ref: Any) -> Any:
        try:
            answer = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            cause = failures.original(error)
            raise RunError(f"node {name}: {failures.summary_of(cause)}") from None
        if isinstance(answer, str):
            raise UserError(
                f"node {name} cannot import this package ({answer}): install the driver's version "
                "of unslothrl there, in the Python that runs `ray start`"
            )
        return answer

    def _name(self, key: Any) -> str:
        return self.names[key if isinstance(key, str) else key[0]]

    def start_of(self, plan: ProcessPlan) -> Start:
        from ray.util import scheduling_strategies as strategies

        assert plan.node is not None  # the cluster was joined
        node = plan.node.id
        prepared = self.prepared[node]
        strategy: Any = strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        if plan.card is not None:
            group = self.cards[plan.card].group
            strategy = strategies.PlacementGroupSchedulingStrategy(group, 0)
        return Start(
            strategy,
            min(1.0, plan.reserved),
            self._environment(plan, node),
            prepared["config"],
            Path(prepared["base"]),
        )

    def _environment(self, plan: ProcessPlan, node: str) -> dict[str, str]:
        facts, machine = self.facts[node], self.machine
        if node == self.driver_node:
            values = variables.of_workers(machine.cpus, bool(machine.gpus))
        else:
            here = variables.defaults(machine.cpus, bool(machine.gpus))
            values = variables.of_node(facts["cpus"], plan.card is not None, here)
        if plan.card is not None:
            visible = ",".join(self.cards[card].visible for card in plan.cards)
            values |= {variables.VISIBLE: visible, variables.KEEP_VISIBLE: "1"}
        return {
            **values,
            "PYTHONPATH": paths(facts["folder"], facts["pythonpath"]),
            variables.SCRATCH: self.prepared[node]["scratch"],
        }

    def give_back(self, groups: Sequence[Any]) -> None:
        from ray.util.placement_group import remove_placement_group

        for group in groups:
            remove_placement_group(group)

    def close(self) -> None:
        alive = {each["NodeID"] for each in self.ray.nodes() if each["Alive"]}
        alive -= self.ray._private.state.state.get_draining_nodes().keys()  # they run nothing new
        for ref in self.preparing.values():
            self.ray.cancel(ref, force=True)  # nothing where it has ended
        self._wait(list(self.preparing.values()))
        session, job, _ = self._names()
        are_there = self.preparing.keys() <= alive
        where = self.preparing.keys() if are_there else alive  # one may have joined again meanwhile
        self._wait([self.on(node, "remove", session, job) for node in where & alive])

    def _wait(self, refs: Sequence[Any]) -> None:
        """For what ends a run on its nodes; no longer than that is worth."""
        if refs:
            self.ray.wait(refs, num_returns=len(refs), timeout=REMOVE_S)


def name_of(node: Mapping[str, Any]) -> str:
    """The address of a node of `ray.nodes()`, by which messages name it."""
    address, host = node["NodeManagerAddress"], node["NodeManagerHostname"]
    return f"{address} ({host})" if host not in ("", address) else address


def gpu_of(fields: Mapping[str, Any]) -> Gpu:
    return Gpu(**{**fields, "capability": tuple(fields["capability"])})


def fitted(config: Config, resources: Resources) -> Config:
    """The config with what its vLLMs may take of the nodes' cards, where that is as by default."""
    shape = shape_of(config.model)
    if shape is None or config.fit == "off":
        return config
    names = ("kv_cache_mb", "learner_gpu_usage")
    given = {name for name in names if getattr(config, name) != OPTIONS[name].default}
    return with_engines(config, given, shape, resources)


def check_same_weights(
    model: str, names: Mapping[str, str], prepared: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raises UserError where two nodes' copies of the base are not the same bytes."""
    first, *others = prepared
    for node in others:
        if changed := base_parts.differing(prepared[first]["parts"], prepared[node]["parts"]):
            raise UserError(
                f"node {names[node]}: its model {model} is not that of node {names[first]}, by its "
                f"{changed}: copy one's {prepared[first]['base']} to the other, or use a model "
                "that is 4-bit already"
            )

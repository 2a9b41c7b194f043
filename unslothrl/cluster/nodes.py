"""The machines of a run: what there is on each, and what a process is started with there.

Nodes of a cluster that was joined are looked at before anything is loaded: their CPUs, memory,
versions and GPUs. Then each node that gets a process finds or fetches the base itself, and is sent
the user's files that it does not have. A node that cannot, or that differs, is named in one line. A
node that joins during the run takes the same path: see `node_watch`.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.cluster import causes, on_node
from unslothrl.cluster.ray_calls import Start, result_of
from unslothrl.config.options import OPTIONS, Config
from unslothrl.errors import RunError, UserError
from unslothrl.planning.fit import with_engines
from unslothrl.planning.placement import Node, Placement, ProcessPlan, Resources
from unslothrl.system import variables
from unslothrl.system.machine import Gpu, Machine
from unslothrl.weights import base_parts
from unslothrl.weights.shapes import shape_of

LOOK_S = 150.0  # for a node to be looked at: a process that starts, and torch from a cold disk
RESERVE_S = 20.0  # for GPUs that Ray counts as free
REMOVE_S = 20.0  # at the end of a run; a process that starts there for it takes some
NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True)
class Card:
    """A GPU of a node, held by a placement group: Ray binds a group to one GPU for good."""

    group: Any
    visible: str  # what CUDA_VISIBLE_DEVICES is there for this GPU alone
    gpu: Gpu | None  # None: Ray counts a GPU where there is no sign of one


class JoinedNodes:
    """The nodes of a cluster that was joined; GPUs that are not used are given back."""

    def __init__(self, ray: Any, config: Config, base: Path, machine: Machine):
        self.ray, self.config, self.machine = ray, config, machine
        self.task = ray.remote(num_cpus=0, max_retries=0)(on_node.call)
        parts = base_parts.of(base)  # its weights a driver without a GPU quantises otherwise
        self.tokenizer = {part: parts[part] for part in base_parts.OF_TEXTS}
        self.driver_node = ray.get_runtime_context().get_node_id()
        self.facts: dict[str, dict[str, Any]] = {}
        self.kinds: dict[str, set[str]] = {}  # of the processes on each node that was made ready
        self.prepared: dict[str, dict[str, Any]] = {}
        self.digests = {path: on_node.digest(path) for path in on_node.paths_of(config)}
        self.names = {each["NodeID"]: name_of(each) for each in ray.nodes() if each["Alive"]}
        found = self.look(list(self.names))
        self.cards = [card for _, cards in found for card in cards]
        self.resources = Resources.of_nodes([(n, [card.gpu for card in c]) for n, c in found])
        shape = shape_of(config.model)
        if shape is not None and config.fit != "off":  # what its vLLMs may take of the nodes' GPUs
            names = ("kv_cache_mb", "learner_gpu_usage")
            given = {name for name in names if getattr(config, name) != OPTIONS[name].default}
            self.config = with_engines(config, given, shape, self.resources)

    def look(self, nodes: Sequence[str], most: int | None = None) -> list[tuple[Node, list[Card]]]:
        """What there is on nodes, with the GPUs that Ray counts as free, which are reserved: on
        each at most so many. Raises UserError or RunError that names a node."""
        paths = list(self.digests)
        facts = self._answers([(node, self._on(node, "facts", paths)) for node in nodes])
        self.facts |= dict(zip(nodes, facts, strict=True))
        memory = {each["NodeID"]: each["Resources"].get("memory", 0) for each in self.ray.nodes()}
        cards = self._reserve(nodes, most)
        found = []
        for node in nodes:
            has = self.facts[node]
            memory_mb = min(memory.get(node, 0) / 2**20, has["memory_mb"])
            entry = Node(node, self.names[node], has["cpus"], memory_mb, has["free_mb"])
            found.append((entry, [card for at, card in cards if at == node]))
        return found

    def _reserve(self, nodes: Sequence[str], most: int | None) -> list[tuple[str, Card]]:
        """Takes the GPUs that Ray counts as free, and looks at them."""
        from ray.util.placement_group import placement_group, remove_placement_group

        free = self.ray._private.state.available_resources_per_node()
        groups: dict[Any, tuple[str, Any]] = {}
        for node in nodes:
            for _ in range(int(free.get(node, {}).get("GPU", 0)))[:most]:
                group = placement_group([{"GPU": 1}], bundle_label_selector=[{NODE_LABEL: node}])
                groups[group.ready()] = node, group
        refs = list(groups)
        late = self.ray.wait(refs, num_returns=len(refs), timeout=RESERVE_S)[1] if refs else []
        held = [groups[ref] for ref in refs if ref not in late]
        with contextlib.ExitStack() as unused:
            for ref in late:  # another job was faster
                remove_placement_group(groups[ref][1])
            for _, group in held:
                unused.callback(remove_placement_group, group)
            limit = os.environ.get(variables.CARD_LIMIT)
            calls = [(node, self._on(node, "card", limit, group=group)) for node, group in held]
            cards = []
            for (node, group), answer in zip(held, self._answers(calls), strict=True):
                if answer["gpu"] is None and answer["problem"]:
                    raise UserError(
                        f"node {self.names[node]}: Ray counts a GPU that cannot be used there "
                        f"({answer['problem']}): fix it, or join the node with `ray start "
                        "--num-gpus=0`"
                    )
                gpu = Gpu(**answer["gpu"]) if answer["gpu"] else None
                cards.append((node, Card(group, answer["id"], gpu)))
            unused.pop_all()
        return cards

    def prepare(self, placement: Placement) -> None:
        """Makes the nodes of a placement ready. Raises UserError."""
        used = {card for plan in placement.processes for card in plan.cards}
        self.give_back([card for at, card in enumerate(self.cards) if at not in used])
        kinds: dict[str, set[str]] = {}
        for plan in placement.processes:
            if plan.node is not None:
                kinds.setdefault(plan.node.id, set()).add(plan.kind)
        self.make_ready(kinds)

    def make_ready(self, kinds: Mapping[str, set[str]]) -> None:
        """Has nodes, on which processes of those kinds start, find or fetch the base, and sends
        them what they do not have. Raises UserError or RunError that names one."""
        if wrong := self.differences(kinds):
            text = "; ".join(f"node {self.names[node]} has {what}" for node, what in wrong.items())
            raise UserError(f"{text}: install the same everywhere")
        refs: dict[str, Any] = {}  # of the paths that have been put into Ray's object store
        calls = [(node, self._begin_prepare(node, refs)) for node in kinds]
        answers = dict(zip(kinds, self._answers(calls, None), strict=True))
        for node, answer in answers.items():
            name, model = self.names[node], self.config.model
            if changed := base_parts.differing(self.tokenizer, answer["parts"]):
                raise UserError(
                    f"node {name}: model {model} is not the driver's, by its {changed}: fetch the "
                    "same model on both, or delete the older copy"
                )
        self.prepared |= answers
        self.kinds |= kinds

    def differences(self, kinds: Mapping[str, set[str]]) -> dict[str, str]:
        """-> node -> what is not installed there as on the driver and on the nodes in use."""
        every = {**self.kinds, **kinds}
        has = [(n, self.names[n], of, self.facts[n]["versions"]) for n, of in every.items()]
        wrong = on_node.differences(self.config, has)
        return {node: what for node, what in wrong.items() if node in kinds}

    def _begin_prepare(self, node: str, refs: dict[str, Any]) -> Any:
        has = self.facts[node]["digests"]
        lacks = [path for path, digest in self.digests.items() if has[path] != digest]
        for path in lacks:
            if path not in refs and on_node.digest(path) != self.digests[path]:
                raise UserError(f"{path} is no longer what it was when the run began")
            if path not in refs:
                refs[path] = self.ray.put(on_node.content(path))
        contents = [refs[path] for path in lacks]
        return self._on(node, "prepare", self.config, lacks, *self._job(), *contents)

    def _job(self) -> tuple[str, str]:
        """Ray's names of the cluster and of this run."""
        session = self.ray._private.worker.global_worker.node.session_name
        return session, self.ray.get_runtime_context().get_job_id()

    def _on(self, node: str, name: str, *arguments: Any, group: Any = None) -> Any:
        """Begins a function of `on_node` on a node, or on the GPU of a `group`."""
        strategy = strategy_of(node, group)
        task = self.task.options(num_gpus=int(group is not None), scheduling_strategy=strategy)
        return task.remote(str(variables.IMPORT_FOLDER), name, *arguments)

    def _answers(
        self, calls: Sequence[tuple[str, Any]], timeout_s: float | None = LOOK_S
    ) -> list[dict[str, Any]]:
        """What calls, each with its node, return. Raises UserError, RunError."""
        refs = [ref for _, ref in calls]
        late = self.ray.wait(refs, num_returns=len(refs), timeout=timeout_s)[1] if refs else []
        answers = []
        for node, ref in calls:
            name = self.names[node]
            if ref in late:
                raise UserError(
                    f"node {name} has not answered for {timeout_s:.0f} s: look at it with `ray "
                    "status`, or stop Ray on it"
                )
            answer, error = result_of(ref)
            if error is not None:
                cause = causes.original(error)
                if isinstance(cause, UserError):
                    raise UserError(f"node {name}: {cause}")
                raise RunError(f"node {name}: {causes.summary_of(cause)}")
            if isinstance(answer, str):
                raise UserError(
                    f"node {name} cannot import this package ({answer}): install the driver's "
                    "version of unslothrl there, in the Python that runs `ray start`"
                )
            answers.append(answer)
        return answers

    def start_of(self, plan: ProcessPlan) -> Start:
        """What a process of the placement is started with, also in place of one that died."""
        assert plan.node is not None  # the cluster was joined
        node, machine = plan.node.id, self.machine
        prepared, facts = self.prepared[node], self.facts[node]
        if node == self.driver_node:
            values = variables.of_workers(machine.cpus, bool(machine.gpus))
        else:
            here = variables.defaults(machine.cpus, bool(machine.gpus))
            values = variables.of_node(facts["cpus"], plan.card is not None, here)
        if plan.card is not None:
            visible = ",".join(self.cards[card].visible for card in plan.cards)
            values |= {variables.VISIBLE: visible, variables.KEEP_VISIBLE: "1"}
        values["PYTHONPATH"] = os.pathsep.join(filter(None, [facts["folder"], facts["pythonpath"]]))
        values[variables.SCRATCH] = prepared["scratch"]
        group = None if plan.card is None else self.cards[plan.card].group
        strategy = strategy_of(node, group)
        return Start(values, prepared["config"], Path(prepared["base"]), strategy)

    def give_back(self, cards: Sequence[Card]) -> None:
        from ray.util.placement_group import remove_placement_group

        for card in cards:
            remove_placement_group(card.group)

    def close(self) -> None:
        """Removes what was written on other machines."""
        alive = {each["NodeID"] for each in self.ray.nodes() if each["Alive"]}
        alive -= self.ray._private.state.state.get_draining_nodes().keys()  # they run nothing new
        session, job = self._job()  # on all: one that was prepared may have joined again since
        refs = [self._on(node, "remove", session, job) for node in alive]
        if refs:
            self.ray.wait(refs, num_returns=len(refs), timeout=REMOVE_S)


def name_of(node: Mapping[str, Any]) -> str:
    """The address of a node of `ray.nodes()`, by which messages name it."""
    address, host = node["NodeManagerAddress"], node["NodeManagerHostname"]
    return f"{address} ({host})" if host not in ("", address) else address


def strategy_of(node: str, group: Any) -> Any:
    """Ray's scheduling strategy for a node, or for the GPU of a placement group."""
    from ray.util import scheduling_strategies as strategies

    if group is not None:
        return strategies.PlacementGroupSchedulingStrategy(group, 0)
    return strategies.NodeAffinitySchedulingStrategy(node, soft=False)

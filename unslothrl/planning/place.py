"""Assigns the processes to GPUs and nodes, and divides each GPU among its processes: the table in
docs/architecture.md ("Which process computes on which GPU").

Each process is bound to its GPU (`variables.of_cards`), and on a cluster that was joined to its
node, so GPUs may differ: see `cards_of`. Without GPUs, `assign_nodes` chooses the nodes. A
process on a GPU of unknown size plans for a part of it, and learns its size when it is there.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.planning import footprint
from unslothrl.planning.placement import ACTOR, LEARNER, Node, Placement, ProcessPlan, Resources
from unslothrl.system.machine import Gpu
from unslothrl.weights.shapes import Shape, shape_of

OVERHEAD_MB = 1_500  # host memory a worker process needs besides the base: torch, vLLM, Ray

Cards = tuple[int, ...]  # GPUs of one process, by their places; the smallest first


def place(
    config: Config,
    resources: Resources,
    *,
    base_mb: float | None = None,
    shape: Shape | None = None,
) -> Placement:
    """`base_mb` is the size of the 4-bit base, None while it is not known: then the host's memory
    is not checked. `shape` saves looking the model's sizes up again.

    Raises UserError where the processes cannot fit, with what there is and what was asked.
    """
    shape = shape or shape_of(config.model)
    gpus = len(resources.gpus)
    if config.max_staleness and (gpus == 1 or takes_turns(config, gpus)):
        raise UserError(
            f"max_staleness {config.max_staleness}: on {gpus} GPU{'s' * (gpus > 1)} actors and "
            "learners take turns, so nothing is generated during an update: set --max_staleness 0, "
            "or add a GPU"
        )
    cards = cards_of(config, resources)
    own, shared = ({card for its in of_kind for card in its} for of_kind in cards)
    bare = [
        ProcessPlan(kind, index, its, resources.gpus[its[0]] if its else None)
        for kind, of_kind in zip((LEARNER, ACTOR), cards, strict=True)
        for index, its in enumerate(of_kind)
    ]
    if resources.nodes:
        places = (
            [resources.card_nodes[process.cards[0]] for process in bare]
            if resources.gpus
            else assign_nodes(config, resources.nodes, base_mb)
        )
        bare = [replace(p, node=resources.nodes[at]) for p, at in zip(bare, places, strict=True)]
    elif not resources.gpus:
        memory_mb = resources.memory_mb
        assign_nodes(config, [Node("", "this machine", 1, memory_mb, memory_mb)], base_mb)
    planned = {
        process.name: process
        for card in dict.fromkeys(process.card for process in bare)
        for process in _divide(
            config, shape, [p for p in bare if p.card == card], card in own & shared
        )
    }
    return Placement(resources.gpus, tuple(planned[process.name] for process in bare))


def place_alone(config: Config, process: ProcessPlan, cards: Cards, gpu: Gpu | None) -> ProcessPlan:
    """The plan of a process that starts during a run on the node that `process` names: its GPUs, if
    it has any, are its alone; `gpu` is the smallest of them."""
    bare = ProcessPlan(process.kind, process.index, cards, gpu, process.node)
    return _divide(config, shape_of(config.model), [bare])[0]


def cards_of(config: Config, resources: Resources) -> tuple[Sequence[Cards], Sequence[Cards]]:
    """-> (the GPU of each learner, those of each actor), none where there are no GPUs. UserError
    where there are too few.

    Actors share what is left by learners, unless they have several GPUs of a node each, or are on
    the learners' own (`takes_turns`). Of the ways that are tried the one whose smallest share of a
    GPU is largest; where that makes no difference, learners are on as few nodes as can be and get
    the larger GPUs, or, where actors have several, what is left over of each node.
    """
    gpus, learners, actors = resources.gpus, config.number_of_learners, config.number_of_actors
    each = config.gpus_per_actor if actors else 1
    if not gpus:
        return [()] * learners, [()] * actors
    nodes = resources.card_nodes or [0] * len(gpus)
    alike = Counter((nodes[card], size(gpu)) for card, gpu in enumerate(gpus))

    def order(card: int) -> tuple[float, int, int]:
        """The larger first; of equal ones those first whose node has most of them."""
        return -size(gpus[card]), -alike[nodes[card], size(gpus[card])], nodes[card]

    ordered = sorted(range(len(gpus)), key=order)
    if each > 1:
        by_node = [[card for card in ordered if nodes[card] == node] for node in sorted({*nodes})]
        left_over = [card for its in by_node for card in its[: len(its) % each]]
        ordered = left_over + [card for its in by_node for card in its[len(its) % each :]]
    ways: list[tuple[float, int, list[int], list[Cards]]] = []
    most = 0  # groups for actors
    for first in range(len(gpus) - learners + 1):
        own = ordered[first : first + learners]
        is_shared = len(gpus) == 1 or takes_turns(config, len(gpus))
        left = own if is_shared else [card for card in ordered if card not in own]
        groups = groups_of(left, gpus, nodes, each)
        most = max(most, len(groups))
        if len(groups) >= (actors if each > 1 else actors > 0):
            dealt = _for_actors(groups, gpus, actors, nodes)
            shares = [size(gpus[group[0]]) / dealt.count(group) for group in dealt]
            smallest = min([*shares, *(size(gpus[card]) for card in own)])
            ways.append((smallest, -len({nodes[card] for card in own}), own, dealt))
    if not ways:
        raise UserError(
            f"number_of_learners {learners}: beside a GPU for each learner, {len(gpus)} GPUs hold "
            f"{most} of {actors} actors with {each} of one machine: lower --number_of_actors, "
            "--actor_tensor_parallel or --number_of_learners"
        )
    *_, own, dealt = max(ways, key=lambda way: way[:2])
    return [(card,) for card in own], dealt


def takes_turns(config: Config, gpus: int) -> bool:
    """Whether learners that share a base leave too few GPUs for an actor, which is then on theirs:
    the base's parts are in host memory while completions are generated, and an engine's weights
    during the update."""
    left = gpus - config.number_of_learners
    return config.learner_shards > 1 and 0 <= left < config.gpus_per_actor


def groups_of(
    cards: Iterable[int], gpus: Sequence[Gpu | None], nodes: Sequence[int], each: int
) -> list[Cards]:
    """GPUs in groups of `each` of one node and of about the same size, the smallest first."""
    of_node: dict[int, list[int]] = {}
    for card in sorted(cards, key=lambda card: -size(gpus[card])):
        of_node.setdefault(nodes[card], []).append(card)
    groups = [
        tuple(reversed(its[at : at + each]))
        for its in of_node.values()
        for at in range(0, len(its) - each + 1, each)
    ]
    return sorted(groups, key=min)


def _for_actors(
    groups: Sequence[Cards], gpus: Sequence[Gpu | None], actors: int, nodes: Sequence[int]
) -> list[Cards]:
    """The GPUs of each actor: none is idle while another is shared; then whichever leaves the actor
    most, of equal ones those whose node has fewest actors. Actors of GPUs with the fewest come
    first."""
    count = dict.fromkeys(groups, 0)
    on_node: Counter[int] = Counter()
    for _ in range(actors):
        idle = [group for group in groups if not count[group]]
        if idle:
            at = max(idle, key=lambda at: (size(gpus[at[0]]), -on_node[nodes[at[0]]]))
        else:
            at = max(reversed(groups), key=lambda at: size(gpus[at[0]]) / (count[at] + 1))
        count[at] += 1
        on_node[nodes[at[0]]] += 1
    return [group for group in sorted(groups, key=count.__getitem__) for _ in range(count[group])]


def size(gpu: Gpu | None) -> float:
    """MB of a GPU that may be used; GPUs of unknown size are alike."""
    return 1.0 if gpu is None else footprint.usable_mb(gpu)


def process_mb(base_mb: float, workers: int = 1) -> float:
    """MB of a host's memory that a process needs which computes there; more than one of vLLM's
    `workers` are processes of their own beside it, and divide the base."""
    return OVERHEAD_MB * (1 if workers == 1 else 1 + workers) + base_mb


def assign_nodes(config: Config, nodes: Sequence[Node], base_mb: float | None) -> list[int]:
    """-> the place among `nodes` of each process's node, learners first; without GPUs. UserError
    where no node has room for a process.

    Learners are on one node where one can hold them all, and actors where `best_node` says.
    `base_mb` None: the base's size is not known, and memory is not checked.
    """
    learners = config.number_of_learners
    each_mb = 0.0 if base_mb is None else process_mb(base_mb, config.gpus_per_actor)
    holds_all = [at for at, node in enumerate(nodes) if node.memory_mb >= learners * each_mb]
    count = [0] * len(nodes)
    places = []
    for index in range(config.number_of_processes):
        if index < learners and holds_all:
            at: int | None = max(holds_all, key=lambda at: nodes[at].memory_mb)
        else:
            at = best_node(nodes, count, each_mb, index < learners)
        if at is None:
            have = ", ".join(
                f"{node.name} {node.memory_mb / 1024:.1f} GB for {number}"
                for node, number in zip(nodes, count, strict=True)
            )
            fewer = "actors" if config.number_of_actors else "learners"
            raise UserError(
                f"number_of_{fewer}: each of {config.number_of_processes} processes needs about "
                f"{each_mb / 1024:.1f} GB of its node's memory, and the nodes hold {sum(count)} "
                f"({have}): lower --number_of_{fewer}, or join another node"
            )
        count[at] += 1
        places.append(at)
    return places


def best_node(
    nodes: Sequence[Node], count: Sequence[int], each_mb: float, is_learner: bool
) -> int | None:
    """-> the place among `nodes`, of which each has `count` processes of `each_mb` already, where
    one more goes; None where none has room. A learner goes where most memory is left, an actor
    where it is free now, and then where the processes have most CPUs each."""

    def order(at: int) -> tuple[float, ...]:
        node, used_mb = nodes[at], count[at] * each_mb
        if is_learner:
            return (used_mb - node.memory_mb,)
        free_mb = node.free_mb - used_mb
        return free_mb < each_mb, (count[at] + 1) / node.cpus, -free_mb

    fits = [at for at, node in enumerate(nodes) if node.memory_mb >= (count[at] + 1) * each_mb]
    return min(fits, key=order, default=None)


def _divide(
    config: Config, shape: Shape | None, processes: Sequence[ProcessPlan], is_shared: bool = False
) -> list[ProcessPlan]:
    """The processes of one GPU, learners first, with what each gets of it; or those on CPUs.
    `is_shared`: by a learner and actors."""
    has_card = processes[0].card is not None
    actors = sum(process.kind == ACTOR for process in processes)
    left, plans = footprint.usable_share(processes[0].gpu), []
    for process in processes:
        limits, share = actor_alone(config).limits, left / max(1, actors)
        if process.kind == LEARNER:
            has_engine, share = has_card and config.learner_has_engine, left
            limits = footprint.EngineLimits(config.learner_gpu_usage) if has_engine else None
        sleeps = limits is not None and (is_shared or process.kind == LEARNER)
        leaves = is_shared and config.learner_shards > 1
        process = replace(process, limits=limits, share=share, takes_turns=sleeps or leaves)
        if shape is not None and (process.card is None or process.gpu is not None):
            of = footprint.learner if process.kind == LEARNER else footprint.actor
            needs = of(config, shape, process.gpu, process.engine(), is_shared)
            process = replace(process, needs=needs)
        if process.kind == LEARNER and is_shared:
            process = replace(process, share=min(left, _share_beside_actors(config, process)))
            left -= process.share
        plans.append(process)
    return plans


def _share_beside_actors(config: Config, learner: ProcessPlan) -> float:
    """Of the GPU's memory, what a learner holds while the actors on its GPU generate: what it needs
    or, where that is not known, what `learner_gpu_usage` says."""
    if learner.gpu is None:
        return config.learner_gpu_usage
    if learner.needs:
        return learner.needs.generating_mb() / learner.gpu.memory_mb
    beside_engine = sum(footprint.ON_A_CARD.values()) if learner.limits else 0.0
    return config.learner_gpu_usage + beside_engine / learner.gpu.memory_mb


def actor_alone(config: Config) -> ProcessPlan:
    """An actor that has the GPU that it finds, whatever its size, or a CPU to itself."""
    limits, nccl_mb = None, footprint.NCCL_MB if config.gpus_per_actor > 1 else 0.0
    if config.engine == "vllm":
        limits = footprint.EngineLimits(config.actor_gpu_usage, config.kv_cache_mb, nccl_mb)
    return ProcessPlan(ACTOR, 0, limits=limits)

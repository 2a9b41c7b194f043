"""Makes the placement: deals the processes to the cards, and divides each card among its processes.

as many cards as processes, or more   a whole card each
fewer, but more than learners         learners keep whole ones, actors share the rest evenly
one, and one learner                  all share it: actors sleep while the learner updates
none                                  CPU processes; nothing is reserved

With `actor_tensor_parallel` an actor has that many whole cards of a node: see `tensor_parallel`.

Each process is bound to its card (`variables.of_cards`), and on a cluster that was joined to its
node, so cards may differ: see `deal`. Without cards, `nodes.deal_nodes` chooses the nodes. Who has
a card of unknown size plans for a part of it, and learns its size when it is there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.planning import memory
from unslothrl.planning.engine_memory import ON_A_CARD, EngineLimits, usable_share
from unslothrl.planning.machine import Gpu
from unslothrl.planning.nodes import deal_nodes, process_mb
from unslothrl.planning.placement import ACTOR, LEARNER, Placement, ProcessPlan, Resources
from unslothrl.planning.shapes import Shape, shape_of
from unslothrl.planning.tensor_parallel import Cards, deal_cards
from unslothrl.planning.tensor_parallel import size as _size


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
    if not resources.gpus and not resources.nodes and base_mb is not None:
        _check_host_memory(config, resources, base_mb)
    shape = shape or shape_of(config.model)
    dealt = cards_of(config, resources)
    if len(resources.gpus) == 1:
        _check_card(config)
    processes = [
        _with_cards(ProcessPlan(kind, index), cards, resources)
        for kind, of_kind in zip((LEARNER, ACTOR), dealt, strict=True)
        for index, cards in enumerate(of_kind)
    ]
    processes = _on_nodes(config, resources, processes, base_mb)
    if not resources.gpus:
        return Placement((), tuple(_on_cpu(config, shape, process) for process in processes))
    planned: dict[str, ProcessPlan] = {}
    for card in dict.fromkeys(process.card for process in processes):
        those = [process for process in processes if process.card == card]
        planned |= {process.name: process for process in _on_card(config, shape, those)}
    return Placement(resources.gpus, tuple(planned[process.name] for process in processes))


def place_alone(config: Config, process: ProcessPlan, shape: Shape | None = None) -> ProcessPlan:
    """The plan of a process that begins during a run on the node and card that `process` names: the
    card, if it has one, is its alone."""
    shape = shape or shape_of(config.model)
    bare = ProcessPlan(
        process.kind, process.index, process.card, process.gpu, process.more_cards, process.node
    )
    if bare.card is None:
        return _on_cpu(config, shape, bare)
    return _on_card(config, shape, [bare])[0]


def cards_of(config: Config, resources: Resources) -> tuple[Sequence[Cards], Sequence[Cards]]:
    """-> (the cards of each learner, those of each actor), none where there are no cards. Raises
    UserError where there are too few."""
    learners, actors = config.number_of_learners, config.number_of_actors
    each = config.actor_tensor_parallel
    if each > 1 and actors and resources.gpus:
        return deal_cards(resources.gpus, learners, actors, each, resources.card_nodes)
    own, shared = deal(resources.gpus, learners, actors, resources.card_nodes)
    return [_alone(card) for card in own], [_alone(card) for card in shared]


def _alone(card: int | None) -> Cards:
    return () if card is None else (card,)


def _with_cards(process: ProcessPlan, cards: Cards, resources: Resources) -> ProcessPlan:
    if not cards:
        return process
    return replace(process, card=cards[0], gpu=resources.gpus[cards[0]], more_cards=cards[1:])


def _on_nodes(
    config: Config, resources: Resources, processes: Sequence[ProcessPlan], base_mb: float | None
) -> list[ProcessPlan]:
    """The processes, each with its node where a cluster was joined."""
    nodes = resources.nodes
    if not nodes:
        return list(processes)
    if resources.gpus:
        places = [resources.card_nodes[p.card] for p in processes if p.card is not None]
    else:
        are_learners = [process.kind == LEARNER for process in processes]
        places = deal_nodes(nodes, are_learners, base_mb, config.actor_tensor_parallel)
    return [replace(p, node=nodes[at]) for p, at in zip(processes, places, strict=True)]


def _check_card(config: Config) -> None:
    """Raises UserError where one card cannot do what the options name: hold their shares, or
    generate while it updates."""
    check_overlap(config)
    actors, learner, actor = (
        config.number_of_actors,
        config.learner_gpu_usage,
        config.actor_gpu_usage,
    )
    if actors and config.kv_cache_mb is None and learner + actors * actor > 1:
        raise UserError(
            f"actor_gpu_usage {actor}: 1 GPU cannot hold {actors} actors at {actor} and a learner "
            f"at {learner} of its memory: set --number_of_actors 0, or --actor_gpu_usage "
            f"{_rounded_down((1 - learner) / actors):.2f}"
        )


def check_overlap(config: Config) -> None:
    """Raises UserError where actors are to generate while the learner updates on the only card."""
    if config.max_staleness:
        raise UserError(
            f"max_staleness {config.max_staleness}: on 1 GPU actors and learner take turns, so "
            "nothing is generated while it updates: set --max_staleness 0, or add a GPU"
        )


def _check_host_memory(config: Config, resources: Resources, base_mb: float) -> None:
    processes = config.number_of_processes
    needed = config.number_of_learners * process_mb(base_mb) + config.number_of_actors * process_mb(
        base_mb, config.actor_tensor_parallel
    )
    if needed > resources.memory_mb:
        raise UserError(
            f"number_of_actors: {processes} processes need about {needed / 1024:.1f} GB of memory, "
            f"the cluster has {resources.memory_mb / 1024:.1f} GB: lower --number_of_actors"
        )


def deal(
    gpus: Sequence[Gpu | None], learners: int, actors: int, nodes: Sequence[int] = ()
) -> tuple[Sequence[int | None], Sequence[int | None]]:
    """-> (a card for each learner, a card for each actor).

    Every learner has a card to itself, actors share the others; one card holds all. Of all ways to
    do so the one whose smallest share is largest; where that makes no difference, learners are on
    as few nodes as can be and get the larger cards. `nodes` has each card's node, none: all are on
    one. Raises UserError where cards are too few.
    """
    if not gpus:
        return [None] * learners, [None] * actors
    if len(gpus) == learners == 1:
        return [0], [0] * actors
    if len(gpus) < learners + (actors > 0):
        raise UserError(
            f"number_of_learners {learners}: the cluster has {len(gpus)} GPUs for {learners} "
            f"learners and {actors} actors: a learner needs one of its own"
            f"{' and one is left for the actors' if actors else ''}: lower --number_of_learners"
        )
    nodes = nodes or [0] * len(gpus)
    alike = Counter((nodes[card], _size(gpu)) for card, gpu in enumerate(gpus))

    def order(card: int) -> tuple[float, int, int]:
        """The larger first; of equal ones those first whose node has most of them."""
        size = _size(gpus[card])
        return -size, -alike[nodes[card], size], nodes[card]

    ordered = sorted(range(len(gpus)), key=order)
    Way = tuple[tuple[float, int], list[int], list[int]]
    ways: dict[tuple, Way] = {}  # by the learners' sizes and their number of nodes
    for first in range(len(gpus) - learners + 1):
        own = ordered[first : first + learners]
        sizes = [_size(gpus[card]) for card in own]
        spread = len({nodes[card] for card in own})
        if (*sizes, spread) in ways:
            continue
        left = [card for card in range(len(gpus)) if card not in own]
        shared = _deal_actors(gpus, left, actors, nodes)
        shares = [_size(gpus[card]) / shared.count(card) for card in shared]
        ways[(*sizes, spread)] = (min([*shares, *sizes]), -spread), own, shared
    _, own, shared = max(ways.values(), key=lambda way: way[0])
    return own, shared


def _deal_actors(
    gpus: Sequence[Gpu | None], cards: Sequence[int], actors: int, nodes: Sequence[int]
) -> list[int]:
    """A card for each actor: none stays idle while another is shared; then whichever leaves the
    actor most, of equal ones that whose node has fewest actors. Actors of the cards with the fewest
    come first, as `Placement.bundles` needs it."""
    count = dict.fromkeys(cards, 0)
    on_node: Counter[int] = Counter()
    for _ in range(actors):
        idle = [card for card in cards if not count[card]]
        if idle:
            card = max(idle, key=lambda card: (_size(gpus[card]), -on_node[nodes[card]]))
        else:
            card = max(reversed(cards), key=lambda card: _size(gpus[card]) / (count[card] + 1))
        count[card] += 1
        on_node[nodes[card]] += 1
    return [
        card for card in sorted(cards, key=lambda card: count[card]) for _ in range(count[card])
    ]


def _on_cpu(config: Config, shape: Shape | None, process: ProcessPlan) -> ProcessPlan:
    """On a CPU a learner generates by its own model."""
    if process.kind == ACTOR:
        process = replace(process, limits=limits_of_actor(config))
    return _with_needs(config, shape, process)


def _on_card(
    config: Config, shape: Shape | None, processes: Sequence[ProcessPlan]
) -> list[ProcessPlan]:
    """The processes of one card, learners first, with what each gets of it."""
    count = len(processes)
    learners = [process for process in processes if process.kind == LEARNER]
    is_shared, actors = bool(learners) and count > 1, count - len(learners)
    left = usable_share(processes[0].gpu)
    plans = []
    for process in processes:
        whole = float(len(process.cards))  # of a process that shares none
        process = replace(process, reserved=whole if count == 1 else _rounded_down(1 / count))
        if process.kind == ACTOR:
            limits = limits_of_actor(config)
            process = replace(process, limits=limits, share=left / actors)
            process = replace(process, takes_turns=is_shared and limits is not None)
        else:
            limits = EngineLimits(config.learner_gpu_usage) if config.learner_has_engine else None
            process = replace(process, limits=limits, share=left, takes_turns=limits is not None)
        process = _with_needs(config, shape, process, is_shared)
        if process.kind == LEARNER and is_shared:
            process = replace(process, share=min(left, _share_beside_actors(config, process)))
            left -= process.share
        plans.append(process)
    return _with_lock(plans)


def _with_needs(
    config: Config, shape: Shape | None, process: ProcessPlan, is_shared: bool = False
) -> ProcessPlan:
    if shape is None or (process.card is not None and process.gpu is None):
        return process
    if process.kind == LEARNER:
        needs = memory.learner(config, shape, process.gpu, process.engine())
    else:
        needs = memory.actor(config, shape, process.gpu, process.engine(), is_shared)
    return replace(process, needs=needs)


def _share_beside_actors(config: Config, learner: ProcessPlan) -> float:
    """Of the card's memory, what a learner holds while the actors on its card generate: what it
    needs or, where that is not known, what `learner_gpu_usage` says."""
    if learner.needs and learner.gpu:
        return learner.needs.generating_mb() / learner.gpu.memory_mb
    beside_engine = sum(ON_A_CARD.values()) if learner.limits else 0.0
    return config.learner_gpu_usage + (
        beside_engine / learner.gpu.memory_mb if learner.gpu else 0.0
    )


def limits_of_actor(config: Config) -> EngineLimits | None:
    if config.engine != "vllm":
        return None
    return EngineLimits(config.actor_gpu_usage, config.kv_cache_mb)


def actor_alone(config: Config) -> ProcessPlan:
    """An actor that has the card that it finds, whatever its size, or a CPU to itself."""
    return ProcessPlan(ACTOR, 0, limits=limits_of_actor(config))


def _with_lock(processes: Sequence[ProcessPlan]) -> list[ProcessPlan]:
    """Where several engines of a card sleep, they sleep and wake one at a time.

    vLLM compares the card's free memory before and after it has gone to sleep and ends its process
    where less is free (v1/worker/gpu_worker.py:220): another one that wakes meanwhile takes as much
    as it has freed.
    """
    sleeping = [process for process in processes if process.takes_turns]
    if len(sleeping) < 2:
        return list(processes)
    lock = f"card-{processes[0].card}"
    return [
        replace(process, sleep_lock=lock) if process.takes_turns else process
        for process in processes
    ]


def _rounded_down(value: float) -> float:
    """To Ray's resolution, so that shares never add up to more than one GPU."""
    return int(value * 10_000) / 10_000

"""Which node of a cluster without cards runs which process: learners together, actors spread."""

from collections.abc import Sequence

from unslothrl.errors import UserError
from unslothrl.planning.placement import Node

OVERHEAD_MB = 1_500  # host memory a worker process needs besides the base: torch, vLLM, Ray


def process_mb(base_mb: float, workers: int = 1) -> float:
    """MB of a host's memory that a process needs which computes there; more than one of vLLM's
    `workers` are processes of their own beside it, and divide the base."""
    return OVERHEAD_MB * (1 if workers == 1 else 1 + workers) + base_mb


def deal_nodes(
    nodes: Sequence[Node], is_learner: Sequence[bool], base_mb: float | None, workers: int = 1
) -> list[int]:
    """-> the place among `nodes` of each process's node; learners come first.

    Learners are on one node where one can hold them all. Each actor then goes where the processes
    have most CPUs each, among the nodes that still have the memory for it: first those where it is
    free now, and of equal ones that with most of it free. `base_mb` None: the base's size is not
    known, and memory is not checked. Each may need as much as an actor with that many `workers`.

    Raises UserError where no node has room for a process, with what each has.
    """
    each_mb = 0.0 if base_mb is None else process_mb(base_mb, workers)
    count = [0] * len(nodes)
    learners = sum(is_learner)
    holds_all = [at for at, node in enumerate(nodes) if node.memory_mb >= learners * each_mb]

    def best(learner: bool) -> int:
        if learner and holds_all:
            return max(holds_all, key=lambda at: nodes[at].memory_mb)
        place = place_for(nodes, count, each_mb, learner)
        if place is None:
            raise no_room(nodes, count, learners, len(is_learner) - learners, each_mb)
        return place

    places = []
    for learner in is_learner:
        at = best(learner)
        count[at] += 1
        places.append(at)
    return places


def place_for(
    nodes: Sequence[Node], count: Sequence[int], each_mb: float, learner: bool = False
) -> int | None:
    """-> the place among `nodes`, of which each has `count` processes of `each_mb` already, where
    one more goes (see `deal_nodes`), a learner where most memory is left; None where none has room.
    """
    left = [node.memory_mb - n * each_mb for node, n in zip(nodes, count, strict=True)]
    free = [node.free_mb - n * each_mb for node, n in zip(nodes, count, strict=True)]

    def order(at: int) -> tuple[float, ...]:
        if learner:
            return (-left[at],)
        return free[at] < each_mb, (count[at] + 1) / nodes[at].cpus, -free[at]

    return min((at for at, mb in enumerate(left) if mb >= each_mb), key=order, default=None)


def no_room(
    nodes: Sequence[Node], count: Sequence[int], learners: int, actors: int, each_mb: float
) -> UserError:
    """The error for a process that no node can hold, beside the `count` that each has already."""
    have = ", ".join(
        f"{node.name} {node.memory_mb / 1024:.1f} GB for {number}"
        for node, number in zip(nodes, count, strict=True)
    )
    fewer = "--number_of_actors" if actors else "--number_of_learners"
    return UserError(
        f"number_of_actors {actors}: each of {learners + actors} processes needs about "
        f"{each_mb / 1024:.1f} GB of its node's memory, and the nodes hold {sum(count)} ({have}): "
        f"lower {fewer}, or join another node"
    )

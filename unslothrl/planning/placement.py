"""Where actors and learners go: pure arithmetic on what the cluster has.

as many GPUs as processes or more   a whole GPU each
fewer, but at least two             the learners keep whole ones, the actors share the rest
one                                 all share it by their shares of its memory
none                                no reservation at all: CPU processes take turns
"""

from collections.abc import Sequence
from dataclasses import dataclass

from unslothrl.errors import UserError
from unslothrl.planning.machine import Gpu

OVERHEAD_MB = 1_500  # host memory a worker process needs besides the base: torch, vLLM, Ray


@dataclass(frozen=True)
class Cluster:
    """What there is."""

    gpus: int
    memory_mb: float  # of the hosts together


@dataclass(frozen=True)
class Seat:
    """A process's place on a card. `cards` are the host's as they were before any process started;
    none where they are not known, on a cluster that was joined, or not there."""

    engines: int = 1  # engines of its kind that are awake on its card at the same time
    takes_turns: bool = False  # with a learner on its card: each makes room for the other
    cards: tuple[Gpu, ...] = ()


ALONE = Seat()


@dataclass(frozen=True)
class Placement:
    """GPUs a process reserves; a fraction means that it shares one."""

    learner_gpus: float
    actor_gpus: float

    def seat(self, cards: tuple[Gpu, ...]) -> Seat:
        """Where an actor sits; `cards` as in `Seat`."""
        takes_turns = 0 < self.learner_gpus < 1
        engines = 1 if takes_turns or not self.actor_gpus else int(1 / self.actor_gpus)
        return Seat(engines, takes_turns, cards)

    def bundles(self, learners: int, actors: int) -> list[dict[str, float]]:
        """Ray placement group bundles, learners first; none where no GPU is reserved."""
        if not self.learner_gpus:
            return []
        return [{"GPU": self.learner_gpus}] * learners + [{"GPU": self.actor_gpus}] * actors


def place(
    cluster: Cluster,
    *,
    learners: int,
    actors: int,
    learner_share: float,
    actor_share: float,
    base_mb: float,
) -> Placement:
    """`*_share` is the part of a card's memory a process wants; `base_mb` the base's size.

    Raises UserError where the request cannot fit, with what there is and what was asked.
    """
    if cluster.gpus == 0:
        _check_host_memory(cluster, learners + actors, base_mb)
        return Placement(0.0, 0.0)
    if cluster.gpus >= learners + actors:
        return Placement(1.0, 1.0)
    if cluster.gpus > learners:
        per_gpu = -(-actors // (cluster.gpus - learners))
        return Placement(1.0, _fraction(1 / per_gpu))
    if cluster.gpus > 1 or learners > 1:
        raise UserError(
            f"number_of_learners {learners}: the cluster has {cluster.gpus} GPUs for {learners} "
            f"learners and {actors} actors: a learner needs one of its own"
            f"{' and one is left for the actors' if actors else ''}: lower --number_of_learners"
        )
    if actors and learner_share + actors * actor_share > 1:
        raise UserError(
            f"actor_gpu_usage {actor_share}: 1 GPU cannot hold {actors} actors at {actor_share} "
            f"and a learner at {learner_share} of its memory: set --number_of_actors 0, or "
            f"--actor_gpu_usage {_fraction((1 - learner_share) / actors):.2f}"
        )
    return Placement(_fraction(1 / (1 + actors)), _fraction(1 / (1 + actors)))


def _check_host_memory(cluster: Cluster, processes: int, base_mb: float) -> None:
    needed = processes * (OVERHEAD_MB + base_mb)
    if needed > cluster.memory_mb:
        raise UserError(
            f"number_of_actors: {processes} processes need about {needed / 1024:.1f} GB of memory, "
            f"the cluster has {cluster.memory_mb / 1024:.1f} GB: lower --number_of_actors"
        )


def _fraction(value: float) -> float:
    """Rounded down to Ray's resolution, so that shares never add up to more than one GPU."""
    return int(value * 10_000) / 10_000


def shares(total: int, actors: int, learners: int, learner_chunk: int) -> Sequence[int]:
    """How many of `total` tasks each generator takes: actors first, then learners.

    Learners take `learner_chunk` each, but never so much that an actor goes without; actors share
    the rest evenly, the remainder to the first. Without actors the learners share everything.
    """
    if actors == 0:
        return _even(total, learners)
    for_learners = min(learner_chunk * learners, max(0, total - actors))
    return [*_even(total - for_learners, actors), *_even(for_learners, learners)]


def _even(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)]

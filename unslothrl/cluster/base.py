"""What the driver asks of the processes of a run."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from unslothrl.cluster.handles import ActorHandle, Call, GeneratorHandle, LearnerHandle

T = TypeVar("T")

Stage = Callable[[str], None]
"""Called with what is being started."""

Progress = Callable[[int, int], None]
"""Called with (completions or sequences done, tokens) while calls run."""


class Cluster(Protocol):
    """The actors and learners of a run, wherever they are."""

    actors: Sequence[ActorHandle]
    learners: Sequence[LearnerHandle]

    def gather(self, calls: Sequence[Call[T]], progress: Progress | None = None) -> list[T]:
        """The results of calls, in order; raises what a call raised, as soon as it does.

        `progress` gets (done, tokens) summed over the calls' processes while they run.
        """

    def wait(self, calls: Sequence[Call[Any]]) -> None:
        """Returns when these calls have ended; what came of them stays where it is."""

    def close(self) -> None:
        """Ends every process that was started."""


def join_learners(cluster: Cluster) -> None:
    """Makes a group of several learners: they will exchange their gradients."""
    learners = cluster.learners
    if len(learners) > 1:
        (address,) = cluster.gather([learners[0].listen()])
        cluster.gather(
            [learner.join(rank, len(learners), address) for rank, learner in enumerate(learners)]
        )


def everyone(cluster: Cluster) -> list[GeneratorHandle]:
    """All that hold a model, learners first."""
    return [*cluster.learners, *cluster.actors]


def generators(cluster: Cluster) -> list[GeneratorHandle]:
    """All that can draw, actors first."""
    return [*cluster.actors, *cluster.learners]


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

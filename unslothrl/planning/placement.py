"""Which process computes on which GPU, and what it may take of it.

A `Placement` is made once, by `place.place`. The options are fitted to it, `unslothrl plan` prints
it, the cluster reserves by it, and every worker asks for what it says.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from unslothrl.config.options import Config
from unslothrl.planning.footprint import USABLE, EngineLimits, EngineMemory, Needs, usable_mb
from unslothrl.system.machine import Gpu, Machine

LEARNER, ACTOR = "learner", "actor"


@dataclass(frozen=True)
class Node:
    """A host of a cluster that was joined."""

    id: str  # Ray's
    name: str  # its address, by which messages name it
    cpus: int
    memory_mb: float  # that processes may take there
    free_mb: float  # of it now


@dataclass(frozen=True)
class Resources:
    """What there is for a run's processes. A GPU is None where its size is not known.

    `nodes` are those of a cluster that was joined, none where all are processes of this machine;
    `card_nodes` has each GPU's place among them.
    """

    gpus: tuple[Gpu | None, ...]
    memory_mb: float  # of the hosts together
    nodes: tuple[Node, ...] = ()
    card_nodes: tuple[int, ...] = ()

    @classmethod
    def of_machine(cls, config: Config, machine: Machine) -> "Resources":
        """This machine, of whose GPUs one process (`--cluster local`) uses the first alone."""
        gpus = machine.gpus[:1] if config.cluster == "local" else machine.gpus
        return cls(gpus, machine.ram_mb)

    @classmethod
    def of_nodes(cls, nodes: Sequence[tuple[Node, Sequence[Gpu | None]]]) -> "Resources":
        """The nodes of a cluster that was joined, each with its cards."""
        return cls(
            tuple(gpu for _, gpus in nodes for gpu in gpus),
            sum(node.memory_mb for node, _ in nodes),
            tuple(node for node, _ in nodes),
            tuple(place for place, (_, gpus) in enumerate(nodes) for _ in gpus),
        )


@dataclass(frozen=True)
class ProcessPlan:
    """One process: where it computes and what it may take."""

    kind: str  # LEARNER or ACTOR
    index: int  # among its kind
    cards: tuple[int, ...] = ()  # its GPUs by their places in `Placement.gpus`; none: a CPU
    gpu: Gpu | None = None  # the smallest as it was when the placement was made; None: not known
    node: Node | None = None  # where it runs; None: on this machine
    share: float = USABLE  # of its GPU's memory, its own while completions are generated
    limits: EngineLimits | None = None  # of its vLLM; None where it has none
    takes_turns: bool = False  # its vLLM sleeps, its part of a base is in host memory, when idle
    needs: Needs | None = None  # an estimate; None where the model's sizes are not known

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.index}"

    @property
    def card(self) -> int | None:
        """The smallest of its GPUs, which comes first."""
        return self.cards[0] if self.cards else None

    def engine(self, here: Gpu | None = None, free_mb: float | None = None) -> EngineMemory | None:
        """What its vLLM is given; None where it has none.

        In the process itself: `here` is the GPU that it finds, for one whose size was not known,
        and `free_mb` what is free of it now, which is less where somebody else has taken some.
        """
        if self.limits is None:
            return None
        return self.limits.on(self.gpu or here, self.share, free_mb)


@dataclass(frozen=True)
class CardPlan:
    """A GPU and its processes, which are all in the same phase at a time."""

    gpu: Gpu
    processes: tuple[ProcessPlan, ...]

    def needed_mb(self, least: bool = False) -> float:
        """By the estimate of all its processes, whose model's sizes must be known. `least`: with KV
        caches no larger than need be."""
        everyone = [process.needs for process in self.processes if process.needs]
        generating = sum(needs.generating_mb() - least * needs.spare_mb for needs in everyone)
        return max(generating, sum(needs.updating_mb() for needs in everyone))

    def spare_mb(self) -> float:
        """Of what is usable, what is left, or is only a larger KV cache than need be."""
        return usable_mb(self.gpu) - self.needed_mb(least=True)

    def excess_mb(self) -> float:
        return self.needed_mb() - usable_mb(self.gpu)

    @property
    def fits(self) -> bool:
        return self.excess_mb() <= 0


@dataclass(frozen=True)
class Placement:
    gpus: tuple[Gpu | None, ...]  # as in `Resources`
    processes: tuple[ProcessPlan, ...]  # learners first

    @property
    def learners(self) -> tuple[ProcessPlan, ...]:
        return tuple(process for process in self.processes if process.kind == LEARNER)

    @property
    def actors(self) -> tuple[ProcessPlan, ...]:
        return tuple(process for process in self.processes if process.kind == ACTOR)

    @property
    def cards(self) -> tuple[CardPlan, ...]:
        """The GPUs of known size that are used."""
        plans = (
            CardPlan(gpu, tuple(process for process in self.processes if index in process.cards))
            for index, gpu in enumerate(self.gpus)
            if gpu is not None
        )
        return tuple(card for card in plans if card.processes)

    def rounds(self) -> list[tuple[ProcessPlan, ...]]:
        """The order of the start: the processes of a round start together, the next round's when
        they are ready. Engines on one GPU measure its free memory, so they start one by one."""
        rounds: dict[int, list[ProcessPlan]] = {}
        started: Counter[int] = Counter()  # on each GPU
        for process in self.processes:
            number = started[process.cards[0]] if process.cards else 0
            rounds.setdefault(number, []).append(process)
            started.update(process.cards)
        return [tuple(rounds[number]) for number in sorted(rounds)]

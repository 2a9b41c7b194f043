"""What a run takes of the cards, of the host's memory, of /dev/shm and of the disk.

The cards' part is the placement's; this adds up the rest.
"""

from dataclasses import dataclass
from typing import Any

from unslothrl.config.hardware import versions_in_flight
from unslothrl.config.options import Config
from unslothrl.planning.memory import MB, TRAINED
from unslothrl.planning.place import place
from unslothrl.planning.placement import Placement, ProcessPlan, Resources
from unslothrl.system.machine import Machine
from unslothrl.weights.shapes import HALF, Shape

DRIVER_MB = 700  # of the host, for the driver and Ray's own processes; measured on a CPU


@dataclass(frozen=True)
class Store:
    """Host memory, /dev/shm or the disk; `has_mb` is None where that is not known, `instead` what
    takes its place where there is too little."""

    name: str
    needed_mb: float
    has_mb: float | None
    instead: str | None = None

    @property
    def holds(self) -> bool:
        return self.has_mb is None or self.needed_mb <= self.has_mb

    @property
    def fits(self) -> bool:
        return self.holds or self.instead is not None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "needed_mb": round(self.needed_mb),
            "has_mb": self.has_mb and round(self.has_mb),
            "fits": self.fits,
        }


@dataclass(frozen=True)
class Forecast:
    placement: Placement  # of a model whose sizes are known
    stores: tuple[Store, ...]

    @property
    def fits(self) -> bool:
        on_cards = all(card.fits for card in self.placement.cards)
        return on_cards and all(store.fits for store in self.stores)

    @property
    def without_card(self) -> tuple[ProcessPlan, ...]:
        return tuple(process for process in self.placement.processes if process.card is None)

    def to_json(self) -> dict[str, Any]:
        return {
            "fits": self.fits,
            "cards": [
                {
                    "name": card.gpu.name,
                    "usable_mb": round(card.usable_mb),
                    "needed_mb": round(card.needed_mb()),
                    "fits": card.fits,
                    "processes": [of_process(process) for process in card.processes],
                }
                for card in self.placement.cards
            ],
            "processes_without_a_card": [of_process(process) for process in self.without_card],
            "stores": [store.to_json() for store in self.stores],
        }


def of_process(process: ProcessPlan) -> dict[str, Any]:
    needs = process.needs
    assert needs is not None  # the model's sizes are known
    return {
        "name": process.name,
        "cards": len(process.cards),
        "peak_mb": round(needs.peak_mb()),
        **needs.to_json(),
    }


def forecast_of(config: Config, shape: Shape, machine: Machine) -> Forecast:
    """What the run would take of this machine. Raises UserError where its processes cannot be
    placed at all."""
    placed = place(config, Resources.of_machine(config, machine), shape=shape)
    everyone = [process.needs for process in placed.processes if process.needs]
    host = sum(sum(needs.host.values()) for needs in everyone) + DRIVER_MB
    if not placed.cards:
        host += sum(needs.peak_mb() for needs in everyone)
    adapter = shape.lora_weights(config.max_lora_rank) * HALF / MB
    # of each process and of the driver two, and every further version that a vLLM actor draws under
    copies = 2 * (1 + len(placed.processes))
    copies += (versions_in_flight(config) - 1) * sum(
        each.limits is not None for each in placed.actors
    )
    stores = (
        Store("host memory", host, machine.ram_mb or None),
        Store("/dev/shm", adapter * copies, machine.shm_mb, "the disk"),
        Store("disk", disk_mb(config, shape, machine), machine.disk_mb),
    )
    return Forecast(placed, stores)


def disk_mb(config: Config, shape: Shape, machine: Machine) -> float:
    """The 4-bit base, three adapters and two checkpoints; the 16-bit base too if it is quantised
    here."""
    base = shape.weight_bytes()
    if "4bit" not in config.model:
        base += shape.parameters() * HALF
    loras = shape.lora_weights(config.max_lora_rank)
    trained = TRAINED["cuda" if machine.gpus else "cpu"] - 4  # no gradients
    return (base + loras * (3 * HALF + 2 * trained)) / MB


def ends_early(max_steps: int | None, steps: int, episodes: int) -> list[str]:
    """A line where the data end before --max_steps."""
    if not max_steps or steps >= max_steps:
        return []
    passes = f"{episodes} pass{'es' * (episodes != 1)}"
    return [
        f"max_steps {max_steps} -> {steps}: the data end after {passes} (--episodes): set "
        f"--episodes {-(-max_steps * episodes // steps)} for {max_steps} steps"
    ]

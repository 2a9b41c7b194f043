"""Options that the user set and that change nothing, by the `unused` conditions of their own
declarations: "with NAME VALUE", "with NAME", "without NAME VALUE", "without NAME", where NAME is an
option, or a text of `FACTS`.

Options that contradict each other are refused in config/checks.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl import rewards
from unslothrl.config.options import OPTIONS, Config
from unslothrl.system.machine import Machine
from unslothrl.text import plain
from unslothrl.weights.adapter_check import Lora

LORA = {"max_lora_rank": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}


@dataclass(frozen=True)
class Facts:
    """What a run is, once everything is resolved."""

    config: Config
    machine: Machine
    adapter: Lora | None  # the one that it starts from

    def runs(self, *kinds: str) -> bool:
        """Whether any of its rewards runs in one of those places, see rewards/."""
        return any(reward.runs in kinds for reward in rewards.choose(self.config.reward))

    @property
    def is_on_policy(self) -> bool:
        """Whether every ratio is 1: a rollout has one update, and no function of the user's."""
        config = self.config  # which leaves parts that are functions unset
        named = config.clip is not None and config.ratio is not None
        return config.updates_per_step == 1 and named

    @property
    def learner_generates_alone(self) -> bool:
        """Whether nothing generates but a learner without a vLLM of its own."""
        config = self.config
        is_alone = config.engine == "vllm" and config.number_of_actors == 0
        return is_alone and config.backend != "unsloth"

    @property
    def has_gpu(self) -> bool:
        """Whether it computes on a GPU; a cluster that is joined is taken to have one."""
        return bool(self.machine.gpus) or self.config.ray_address is not None


FACTS: dict[str, Callable[[Facts], bool]] = {
    "with an adapter": lambda run: run.adapter is not None,
    "with one update per rollout": lambda run: run.is_on_policy,
    "with topk at num_candidates": lambda run: run.config.topk == run.config.num_candidates,
    "without a GPU": lambda run: not run.has_gpu,
    "without a reward model": lambda run: not run.runs(rewards.IN_LEARNER),
    "without a reward that can stall": lambda run: (
        not run.runs(rewards.IN_PROCESS, rewards.IN_SANDBOX)
    ),
    "without a reward that runs programs": lambda run: not run.runs(rewards.IN_SANDBOX),
    "without actors or backend unsloth": lambda run: run.learner_generates_alone,
    "without environment or tools": lambda run: not run.config.has_environment,
}


def holds(condition: str, run: Facts) -> bool:
    """Whether a condition of an option's declaration is true for a run."""
    if condition in FACTS:
        return FACTS[condition](run)
    word, name, *value = condition.split()
    has = getattr(run.config, name)
    return (str(has) == value[0] if value else bool(has)) == (word == "with")


def notes(requested: Mapping[str, Any], run: Facts) -> list[str]:
    """A line for each option that the user set (name -> value) and that changes nothing."""
    lines = []
    for name, value in requested.items():
        conditions = OPTIONS[name].metadata["unused"] if wants(name, value, run) else ()
        why = next((each for each in conditions if holds(each, run)), None)
        if why is not None:
            lines.append(f"{name} {plain(value)} has no effect {why}")
    return lines


def wants(name: str, value: Any, run: Facts) -> bool:
    """Whether a value asks for anything: not what is off, nor what is so anyway."""
    if name == "run_name" and run.config.resume is not None:  # by which the run was found
        return value != Path(run.config.resume).resolve().name
    if name in LORA and run.adapter is not None:
        return value != getattr(run.adapter, LORA[name])
    if name == "select" and value in ("topk", "all"):
        return False
    return value is not None and value is not False

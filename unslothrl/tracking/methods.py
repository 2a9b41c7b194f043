"""What a run's folder is of: reinforcement learning, or a stage before it or beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.config.offline_options import TABLES
from unslothrl.config.options import OPTIONS
from unslothrl.embedded import EMBEDDED
from unslothrl.files import exists

RL, SFT, DPO, RM = "train", "sft", "dpo", "rm"  # the commands


@dataclass(frozen=True)
class Method:
    """How a kind of run is called."""

    name: str  # within a sentence
    short: str
    tags: tuple[str, ...]  # on the hub


METHODS = {
    RL: Method("reinforcement learning", "RL", ("reinforcement-learning",)),
    SFT: Method("supervised fine-tuning (SFT)", "SFT", ("trl", "sft")),
    DPO: Method("direct preference optimisation (DPO)", "DPO", ("trl", "dpo")),
    RM: Method("reward modelling on pairs", "reward model", ("trl", "reward-trainer")),
}


def command_of(options: Mapping[str, Any]) -> str:
    """By the options that its config.toml has set: `trl` is every stage's, the others' are of one
    alone."""
    if "trl" not in options:
        return RL
    if "assistant_only_loss" in options:
        return SFT
    return DPO if "loss_type" in options else RM


def options_of(command: str) -> Mapping[str, Any]:
    """The fields of its options: name -> dataclass field."""
    return TABLES[command].options if command in TABLES else OPTIONS


def described(command: str, dataset: str, run: str, learner: str = "") -> str:
    """A stage in a line, for who gets the adapter: without paths of this machine."""
    data = dataset if dataset == EMBEDDED or not exists(dataset) else Path(dataset).name
    objective = f" ({learner})" if learner and not exists(learner) else ""
    return f"{METHODS[command].short}{objective} on {data}, run {run}"

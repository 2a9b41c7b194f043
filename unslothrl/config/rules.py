"""Options that contradict each other, and options that change nothing.

Most rules are declared by the options themselves, as conditions that rule their values out
(`refused`) or leave them without effect (`unused`), and as `no_more_than` another option. A
condition is "with NAME VALUE", "with NAME", "without NAME VALUE" or "without NAME", where NAME is
an option, or a text of `Facts.all`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unslothrl import rewards
from unslothrl.algorithms.objective import Objective
from unslothrl.config.names import in_full
from unslothrl.config.options import OPTIONS, Config
from unslothrl.config.parts import objective_of
from unslothrl.environments import SINGLE_TURN
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.rewards.reward import IN_LEARNER, IN_PROCESS, IN_SANDBOX
from unslothrl.system.machine import Machine
from unslothrl.text import plain

LORA = {"max_lora_rank": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}

Check = tuple[bool, str]  # whether options contradict each other, and what to do about it


@dataclass(frozen=True)
class Facts:
    """What a run is, once everything is resolved."""

    config: Config
    machine: Machine
    adapter: Any  # the one that it starts from, a `weights.adapter_check.Lora`; None: none

    @cached_property
    def all(self) -> dict[str, bool]:
        """Conditions that no option says alone."""
        config = self.config
        places = {reward.runs for reward in rewards.choose(config.reward)}
        has_gpu = bool(self.machine.gpus) or config.ray_address is not None  # a cluster has one
        # A rollout has one update, and no function of the user's (which leaves parts unset).
        named = config.clip is not None and config.ratio is not None
        alone = config.number_of_actors == 0 and config.engine == "vllm"
        return {
            "with an adapter": self.adapter is not None,
            "with one update per rollout": config.updates_per_step == 1 and named,
            "with topk at num_candidates": config.topk == config.num_candidates,
            "without a GPU": not has_gpu,
            "without a reward model": IN_LEARNER not in places,
            "without a reward that can stall": not places & {IN_PROCESS, IN_SANDBOX},
            "without a reward that runs programs": IN_SANDBOX not in places,
            "without actors or backend unsloth": alone and config.backend != "unsloth",
            "without environment or tools": not config.has_environment,
        }

    def holds(self, condition: str) -> bool:
        """Whether a condition of an option's declaration is true."""
        if condition in self.all:
            return self.all[condition]
        word, name, *value = condition.split()
        has = getattr(self.config, name)
        return (str(has) == value[0] if value else bool(has)) == (word == "with")


# What changes nothing


def notes(requested: Mapping[str, Any], run: Facts) -> list[str]:
    """A line for each option that the user set (name -> value) and that changes nothing."""
    lines = []
    for name, value in requested.items():
        conditions = OPTIONS[name].metadata["unused"] if wants(name, value, run) else ()
        why = next((each for each in conditions if run.holds(each)), None)
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


# What cannot be


def check(config: Config) -> None:
    """Raises UserError where options contradict each other."""
    check_system_prompt(config.system_prompt)
    for checks in (declared(config), of_objective(config, objective_of(config))):
        for is_wrong, message in checks:
            if is_wrong:
                raise UserError(message)


def check_system_prompt(text: str | None) -> None:
    """UserError for a file's name in place of the prompt in it."""
    if text and is_file(expanded(text)):
        raise UserError(
            f'system_prompt {text} is a file: give the text itself, --system_prompt "$(cat {text})"'
        )


def declared(config: Config) -> Iterator[Check]:
    """By the options' own conditions, where they are not as usual."""
    run = Facts(config, Machine(), None)
    for name, entry in OPTIONS.items():
        value, limit = getattr(config, name), entry.metadata.get("no_more_than")
        flag = in_full(name, entry.metadata["group"])
        is_off = any(run.holds(condition) for condition in entry.metadata["unused"])
        if limit is not None and value is not None and not is_off:
            most, other = getattr(config, limit), in_full(limit, OPTIONS[limit].metadata["group"])
            yield (
                most is not None and value > most,
                f"{name} must be at most {limit} ({most}), got {value}: set --{flag} {most} or "
                f"--{other} {value}",
            )
        if value != entry.default:
            for condition in entry.metadata.get("refused", ()):
                remedy = f"change --{condition.split()[1]}, or leave --{flag} out"
                yield run.holds(condition), f"{name} {value} is not possible {condition}: {remedy}"


def of_objective(config: Config, objective: Objective) -> Iterator[Check]:
    """How many completions there are, what they earn, and what is made of that."""
    candidates = config.num_candidates
    yield (
        candidates < 2 and not objective.has_critic,
        f"num_candidates must be at least 2 for {config.learner} (rewards are compared within a "
        f"group), got {candidates}: set --num_candidates 8",
    )
    learns_alone = objective.has_critic or objective.trains_without_advantage
    yield (
        config.select == "max_variance" and config.topk < 2 and not learns_alone,
        "select max_variance with topk 1: one candidate alone has no advantage: set --topk 2",
    )
    chosen = rewards.choose(config.reward)
    yield (
        config.environment == SINGLE_TURN and not any(reward.weight for reward in chosen),
        "reward: every weight is 0, so nothing would be learnt: set NAME=1",
    )
    dual, kl, weight = objective.clip_dual, objective.kl, objective.kl_coefficient
    yield (
        bool(dual) and dual <= 1,
        f"clip_dual must be over 1, or 0 for off, got {dual}: set --objective.clip_dual 3",
    )
    yield (
        kl != "none" and not weight,
        f"kl {kl} has no weight (kl_coefficient 0): set --objective.kl_coefficient 0.04",
    )
    yield (
        config.offload == "model" and config.learner_generates,
        "offload model: a learner that generates needs its model on the GPU: set "
        "--learner_chunk_size 0 and --number_of_actors 1",
    )
    yield (
        not config.min_actors and not config.learner_generates,
        "min_actors 0: learners generate nothing (learner_chunk_size 0), so a run without actors "
        "would wait forever: set --min_actors 1",
    )

"""Options that the user set and that change nothing: one table of rules, a line for each.

A rule names options and when none of them has an effect. Options that contradict each other are
refused in config/checks.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl import rewards
from unslothrl.algorithms.objective import Objective
from unslothrl.config.options import Config
from unslothrl.embedded import EMBEDDED
from unslothrl.environments import SINGLE_TURN
from unslothrl.planning.machine import Machine
from unslothrl.untrusted import plain
from unslothrl.weights.adapter_check import Lora

CLIPS = ("clip_low", "clip_high", "clip_dual", "skip_threshold")
CRITICS = ("gamma", "gae_lambda", "critic_lr", "value_clip")
EVALS = ("eval_problems", "eval_candidates", "eval_temperature", "eval_top_p")
RAY_STARTED = ("ray_port", "ray_worker_ports", "ray_node_ip", "ray_temp_dir")
DIVIDING = ("standardised", "batch_standardised")  # advantages with a standard deviation


@dataclass(frozen=True)
class Facts:
    """What a run is, once everything is resolved."""

    config: Config
    objective: Objective
    machine: Machine
    adapter: Lora | None  # the one that it starts from

    @property
    def has_gpu(self) -> bool:
        """Whether it computes on a card; a cluster that is joined is taken to have one."""
        return bool(self.machine.gpus) or self.config.ray_address is not None

    def runs(self, *kinds: str) -> bool:
        """Whether any of its rewards runs in one of those places, see rewards/."""
        return any(reward.runs in kinds for reward in rewards.choose(self.config.reward))


@dataclass(frozen=True)
class Rule:
    """`options` have no effect in a run for which `when` is true."""

    options: tuple[str, ...]
    when: Callable[[Facts], bool]
    why: str  # may name {config.<option>} and {adapter.<setting>}


RULES = (
    Rule(
        ("run_name", "output_dir"),
        lambda run: run.config.resume is not None,
        "a run that is resumed keeps its folder",
    ),
    Rule(
        (
            "environment_options",
            "max_turns",
            "max_episode_tokens",
            "max_tool_calls",
            "turn_rewards",
            "turn_discount",
            "environment_timeout",
            "environment_memory_mb",
            "environment_python",
            "renderer",
        ),
        lambda run: not run.config.has_environment,
        "an episode is a single turn: set --environment or --tools",
    ),
    Rule(
        ("environment_options",),
        lambda run: run.config.environment == SINGLE_TURN,
        "tools take no options: set --environment",
    ),
    Rule(
        ("project_name",), lambda run: not run.config.track, "only trackers have projects: --track"
    ),
    Rule(
        ("turn_discount",),
        lambda run: run.config.turn_rewards != "discounted",
        "only --turn_rewards discounted uses it",
    ),
    Rule(
        ("holdout", "prompt_column", "answer_column"),
        lambda run: run.config.dataset == EMBEDDED,
        "the embedded problems have their own",
    ),
    Rule(
        ("holdout",),
        lambda run: bool(run.config.eval_dataset),
        "eval_dataset is set, so nothing is held out",
    ),
    Rule(
        ("episodes",),
        lambda run: run.config.dataset == EMBEDDED,
        "the embedded problems never end: max_steps ({config.max_steps}) counts",
    ),
    Rule(
        ("reward_timeout",),
        lambda run: not run.runs(rewards.IN_PROCESS, rewards.IN_SANDBOX),
        "no reward of this run can stall",
    ),
    Rule(
        ("normalize_reward_model",),
        lambda run: not run.runs(rewards.IN_LEARNER),
        "no reward of this run is a model",
    ),
    Rule(
        ("allow_unsandboxed_code",),
        lambda run: not run.runs(rewards.IN_SANDBOX),
        "no reward of this run executes programs",
    ),
    Rule(
        ("topk",),
        lambda run: run.config.select == "all",
        "select all trains on every candidate",
    ),
    Rule(
        ("select",),
        lambda run: (
            run.config.topk == run.config.num_candidates
            and run.config.select not in ("topk", "all")
        ),
        "topk is num_candidates ({config.num_candidates}): every candidate is chosen: lower --topk",
    ),
    Rule(
        ("shuffle_rewards",),
        lambda run: run.config.num_candidates == 1,
        "rewards are shuffled within a group, and groups have one candidate",
    ),
    Rule(
        ("lr_floor",),
        lambda run: run.config.lr_schedule == "constant",
        "lr_schedule is constant: set --lr_schedule linear or cosine",
    ),
    Rule(
        ("advantage_std", "advantage_epsilon"),
        lambda run: is_named(run.objective.advantage) and run.objective.advantage not in DIVIDING,
        "advantage {config.advantage} divides by no standard deviation",
    ),
    Rule(
        ("clip_low", "clip_high", "clip_dual"),
        lambda run: run.objective.clip == "none",
        "clip is none: set --clip surrogate",
    ),
    Rule(
        ("clip_dual",),
        lambda run: run.objective.clip == "weight",
        "clip weight has no dual bound: set --clip surrogate",
    ),
    Rule(
        CLIPS,
        lambda run: run.objective.ratio == "one",
        "the ratio is always 1 (ratio one): set --ratio token",
    ),
    Rule(
        CLIPS,
        lambda run: (
            run.config.updates_per_step == 1
            and is_named(run.objective.clip)
            and is_named(run.objective.ratio)
        ),
        "the ratio is 1 in the only update of a rollout: set --updates_per_rollout 2 or more",
    ),
    Rule(
        ("kl_estimator", "kl_coefficient"),
        lambda run: run.objective.kl == "none",
        "kl is none: set --kl loss or --kl reward",
    ),
    Rule(
        ("correction_low", "correction_high"),
        lambda run: run.objective.correction == "none",
        "correction is none: set --correction truncated",
    ),
    Rule(
        ("correction_low",),
        lambda run: run.objective.correction == "truncated",
        "correction truncated has only an upper bound: set --correction_high",
    ),
    Rule(
        CRITICS,
        lambda run: not run.objective.has_critic,
        "learner {config.learner} has no critic: set --learner ppo",
    ),
    Rule(
        EVALS,
        lambda run: run.config.eval_every == 0,
        "eval_every is 0, so nothing is evaluated",
    ),
    Rule(
        ("max_lora_rank",),
        lambda run: run.adapter is not None,
        "the adapter's rank ({adapter.rank}) is used",
    ),
    Rule(
        ("lora_alpha",),
        lambda run: run.adapter is not None,
        "the adapter's alpha ({adapter.alpha:g}) is used",
    ),
    Rule(
        ("lora_dropout",),
        lambda run: run.adapter is not None,
        "the adapter's dropout ({adapter.dropout:g}) is used",
    ),
    Rule(
        ("learner_chunk_size",),
        lambda run: run.config.number_of_actors == 0,
        "there are no actors, so the learner generates everything",
    ),
    Rule(
        ("actor_gpu_usage", "kv_cache_mb", "min_actors"),
        lambda run: run.config.number_of_actors == 0,
        "there are no actors: set --number_of_actors 1",
    ),
    Rule(
        ("partial_rollouts",),
        lambda run: run.config.max_staleness == 0,
        "no version is loaded while completions are generated: set --max_staleness 1",
    ),
    Rule(
        ("actor_gpu_usage", "kv_cache_mb"),
        lambda run: run.config.engine != "vllm",
        "engine {config.engine} uses memory as it needs it: set --engine vllm",
    ),
    Rule(
        ("engine",),
        lambda run: (
            run.config.engine == "vllm"
            and run.config.number_of_actors == 0
            and run.config.backend != "unsloth"
        ),
        "there are no actors, and with backend {config.backend} the learner generates by itself",
    ),
    Rule(
        ("actor_gpu_usage", "learner_gpu_usage", "offload", "fit"),
        lambda run: not run.has_gpu,
        "this machine has no GPU",
    ),
    Rule(
        ("fit",),
        lambda run: run.config.ray_address is not None,
        "options are fitted only to cards of this machine, and the run joins a cluster",
    ),
    Rule(
        RAY_STARTED,
        lambda run: run.config.ray_address is not None,
        "the run joins a cluster that exists already",
    ),
    Rule(
        ("ray_address", *RAY_STARTED),
        lambda run: run.config.cluster == "local",
        "cluster is local: leave --cluster out for Ray",
    ),
)


def is_named(part: Any) -> bool:
    """Whether a part of an objective is one of ours, not a function of the user's."""
    return isinstance(part, str)


def notes(requested: Mapping[str, Any], run: Facts) -> list[str]:
    """A line for each option that the user set (name -> value) and that changes nothing."""
    lines: dict[str, str] = {}
    for rule in RULES:
        for name in rule.options:
            if name not in requested or name in lines or not wants(name, requested[name], run):
                continue
            if rule.when(run):
                why = rule.why.format(config=run.config, adapter=run.adapter)
                lines[name] = f"{name} {plain(requested[name])} has no effect: {why}"
    return list(lines.values())


def wants(name: str, value: Any, run: Facts) -> bool:
    """Whether a value asks for anything: not what is off, nor what the adapter has anyway."""
    if name == "run_name" and run.config.resume is not None:  # by which the run was found
        return value != Path(run.config.resume).resolve().name
    has = {"max_lora_rank": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}
    if run.adapter is not None and name in has:
        return value != getattr(run.adapter, has[name])
    return value is not None and value is not False

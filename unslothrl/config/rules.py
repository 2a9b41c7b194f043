"""Options that change nothing, and options that contradict each other."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unslothrl import rewards
from unslothrl.algorithms.objective import Objective
from unslothrl.config.options import OPTIONS, SPLITS, Config
from unslothrl.config.parts import objective_of
from unslothrl.config.values import RUN
from unslothrl.embedded import EMBEDDED
from unslothrl.environments import SINGLE_TURN
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.rewards.reward import IN_LEARNER, IN_PROCESS, IN_SANDBOX
from unslothrl.system.machine import Machine
from unslothrl.text import plain

LORA = {"max_lora_rank": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}
NO_MORE_THAN = (  # another option
    ("topk", "num_candidates"),
    ("overlong_cache", "max_new_tokens"),
    ("correction_low", "correction_high"),
    ("filter_low", "filter_high"),
    ("min_actors", "number_of_actors"),
)

OF_VLLM = "number_of_actors cluster engine"
NOT_WITH = (  # an option, and those of which one value excludes it
    *((name, "cluster backend offload number_of_actors learner_chunk_size") for name in SPLITS),
    ("context_parallel", "learner_shards"),
    ("learner_tensor_parallel", "learner_shards context_parallel pipeline_stages"),
    ("pipeline_stages", "learner_shards context_parallel learner_tensor_parallel"),
    ("max_staleness", "cluster number_of_actors"),
    ("actor_tensor_parallel", OF_VLLM),
    ("actor_pipeline_parallel", f"{OF_VLLM} actor_tensor_parallel"),
    ("freeze_steps", "advantage"),
)


# What changes nothing

CLIPPED = "clip_low clip_high clip_dual"
WITH = (  # an option, values of it, and the options that then change nothing
    ("select", ("all",), "topk"),
    ("num_candidates", (1,), "shuffle_rewards"),
    ("dataset", (EMBEDDED,), "holdout prompt_column answer_column episodes"),
    ("environment", (SINGLE_TURN,), "environment_options"),
    ("turn_rewards", ("sum", "last"), "turn_discount"),
    ("advantage", ("centred", "leave_one_out", "gae"), "advantage_std advantage_epsilon"),
    ("ratio", ("one",), f"{CLIPPED} skip_threshold"),
    ("clip", ("none",), CLIPPED),
    ("clip", ("weight",), "clip_dual"),
    ("kl", ("none",), "kl_estimator kl_coefficient"),
    ("correction", ("none",), "correction_low correction_high"),
    ("correction", ("truncated",), "correction_low"),
    ("lr_schedule", ("constant",), "lr_floor"),
    ("max_staleness", (0,), "partial_rollouts"),
    ("eval_every", (0,), "eval_problems eval_candidates eval_temperature eval_top_p"),
    ("number_of_actors", (0,), "min_actors learner_chunk_size actor_gpu_usage kv_cache_mb"),
    ("engine", ("transformers",), "actor_gpu_usage kv_cache_mb"),
    ("cluster", ("local",), "ray_address"),
)


def conditions(config: Config, machine: Machine, adapter: Any) -> Iterator[tuple[bool, str, str]]:
    """-> (whether it is so, what, the options that then change nothing). `adapter`: the one that
    the run starts from, a `weights.adapter_check.Lora`, or None."""
    for name, values, others in WITH:
        value = getattr(config, name)
        yield value in values, f"with {name} {value}", others
    yield bool(config.eval_dataset), "with eval_dataset", "holdout"
    places = {reward.runs for reward in rewards.choose(config.reward)}
    can_stall = bool(places & {IN_PROCESS, IN_SANDBOX})
    yield not can_stall, "without a reward that can stall", "reward_timeout"
    is_run = IN_SANDBOX in places
    yield not is_run, "without a reward that runs programs", "allow_unsandboxed_code"
    yield IN_LEARNER not in places, "without a reward model", "normalize_reward_model"
    yield config.resume is not None, "with resume", "run_name output_dir"
    yield not config.track, "without track", "project_name"
    yield config.topk == config.num_candidates, "with topk at num_candidates", "select"
    yield (
        not config.has_environment,
        "without environment or tools",
        "environment_options tools max_turns max_episode_tokens max_tool_calls environment_timeout "
        "environment_memory_mb environment_python turn_rewards turn_discount",
    )
    no_critic = config.advantage != "gae"
    yield no_critic, "without advantage gae", "gamma gae_lambda critic_lr value_clip"
    # A rollout has one update, and no function of the user's (which leaves parts unset).
    is_first = config.updates_per_step == 1 and None not in (config.clip, config.ratio)
    yield is_first, "with one update per rollout", f"{CLIPPED} skip_threshold"
    yield adapter is not None, "with an adapter", " ".join(LORA)
    is_alone, is_vllm = config.number_of_actors == 0, config.engine == "vllm"
    has_no_engine = is_alone and is_vllm and config.backend != "unsloth"
    yield has_no_engine, "without actors or backend unsloth", "engine"
    has_gpu = bool(machine.gpus) or config.ray_address is not None  # a cluster has one
    yield not has_gpu, "without a GPU", "actor_gpu_usage learner_gpu_usage offload fit"
    yield config.ray_address is not None, "with ray_address", "fit"


def unused(config: Config, machine: Machine, adapter: Any) -> dict[str, str]:
    """The options that change nothing in such a run -> why."""
    found: dict[str, str] = {}
    for is_so, why, names in conditions(config, machine, adapter):
        if is_so:
            found |= dict.fromkeys(names.split(), why)
    return found


def notes(
    requested: Mapping[str, Any], config: Config, machine: Machine, adapter: Any
) -> list[str]:
    """A line for each option that the user set (name -> value) and that changes nothing."""
    why = unused(config, machine, adapter)
    return [
        f"{name} {plain(value)} has no effect {why[name]}"
        for name, value in requested.items()
        if name in why and wants(name, value, config, adapter)
    ]


def wants(name: str, value: Any, config: Config, adapter: Any) -> bool:
    """Whether a value asks for anything: not what is off, nor what is so anyway."""
    if name == "run_name" and config.resume is not None:  # by which the run was found
        return value != Path(config.resume).resolve().name
    if name in LORA and adapter is not None:
        return value != getattr(adapter, LORA[name])
    if name == "select" and value in ("topk", "all"):
        return False
    return value is not None and value is not False


# What cannot be


def check(config: Config) -> None:
    """Raises UserError where options contradict each other."""
    check_system_prompt(config.system_prompt)
    objective = objective_of(config)
    check_limits(config)
    check_processes(config)
    check_objective(config, objective)


def check_system_prompt(text: str | None) -> None:
    """UserError for a file's name in place of the prompt in it."""
    if text and is_file(expanded(text)):
        raise UserError(
            f'system_prompt {text} is a file: give the text itself, --system_prompt "$(cat {text})"'
        )


def check_limits(config: Config) -> None:
    """Options that must be no larger than another, where they count."""
    off = unused(config, Machine(), None)
    for name, other in NO_MORE_THAN:
        value, most = getattr(config, name), getattr(config, other)
        if name not in off and None not in (value, most) and value > most:
            flag, limit = RUN.flag(name), RUN.flag(other)
            raise UserError(
                f"{name} must be at most {other} ({most}), got {value}: set --{flag} {most} or "
                f"--{limit} {value}"
            )


def check_processes(config: Config) -> None:
    """Options that need others. Raises UserError."""
    for name in SPLITS:
        learners, together = config.number_of_learners, getattr(config, name)
        if learners % together != 0:
            raise UserError(
                f"number_of_learners {learners} is no multiple of {name} {together}: set "
                f"--number_of_learners {max(1, learners // together) * together}"
            )
    excludes = {  # an option -> whether its value excludes those of `NOT_WITH`
        "cluster": config.cluster == "local",
        "backend": config.backend == "unsloth",
        "engine": config.engine == "transformers",
        "offload": config.offload == "model",
        "number_of_actors": config.number_of_actors == 0,
        "learner_chunk_size": config.learner_chunk_size > 0,
        "advantage": config.advantage != "gae",
        **{name: getattr(config, name) > 1 for name in (*SPLITS, "actor_tensor_parallel")},
    }
    for name, other in ((name, other) for name, others in NOT_WITH for other in others.split()):
        is_wrong, value = excludes[other], getattr(config, name)
        if (name, other) == ("context_parallel", "learner_shards"):
            is_wrong = config.context_parallel % config.learner_shards > 0
        if is_wrong and value != OPTIONS[name].default:
            raise UserError(
                f"{name} {value} is not possible with {other} {getattr(config, other)}: change "
                f"--{RUN.flag(other)}, or leave --{RUN.flag(name)} out"
            )


def check_objective(config: Config, objective: Objective) -> None:
    """How many completions there are, what they earn, and what is made of that."""
    candidates = config.num_candidates
    if candidates < 2 and not objective.has_critic:
        raise UserError(
            f"num_candidates must be at least 2 for {config.learner} (rewards are compared within "
            f"a group), got {candidates}: set --num_candidates 8"
        )
    learns_alone = objective.has_critic or objective.trains_without_advantage
    if config.select == "max_variance" and config.topk < 2 and not learns_alone:
        raise UserError(
            "select max_variance with topk 1: one candidate alone has no advantage: set --topk 2"
        )
    chosen = rewards.choose(config.reward)
    if config.environment == SINGLE_TURN and not any(reward.weight for reward in chosen):
        raise UserError("reward: every weight is 0, so nothing would be learnt: set NAME=1")
    dual, kl, weight = objective.clip_dual, objective.kl, objective.kl_coefficient
    if dual and dual <= 1:
        raise UserError(
            f"clip_dual must be over 1, or 0 for off, got {dual}: set --objective.clip_dual 3"
        )
    if kl != "none" and not weight:
        raise UserError(
            f"kl {kl} has no weight (kl_coefficient 0): set --objective.kl_coefficient 0.04"
        )
    if config.offload == "model" and config.learner_generates:
        raise UserError(
            "offload model: a learner that generates needs its model on the GPU: set "
            "--learner_chunk_size 0 and --number_of_actors 1"
        )
    if not config.min_actors and not config.learner_generates:
        raise UserError(
            "min_actors 0: learners generate nothing (learner_chunk_size 0), so a run without "
            "actors would wait forever: set --min_actors 1"
        )

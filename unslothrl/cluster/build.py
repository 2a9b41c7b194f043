"""Builds an actor or a learner inside the process that will run it.

torch, vLLM and Unsloth are imported here and below, never before: Unsloth must be the first of
its kind in a process, and a process that trains needs no vLLM.
"""

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unslothrl import environments, rewards
from unslothrl.actors.episodes import Rules
from unslothrl.config.options import SPLITS, Config
from unslothrl.config.parts import dtype_on, follows_newest, objective_of, versions_in_flight
from unslothrl.data.formats import Columns
from unslothrl.data.tasks import DataOptions
from unslothrl.embedded import BASES, EMBEDDED, adapter_folder
from unslothrl.files import expanded
from unslothrl.planning.footprint import EngineMemory
from unslothrl.planning.place import actor_alone
from unslothrl.planning.placement import ProcessPlan
from unslothrl.rewards.reward import IN_LEARNER, overlong
from unslothrl.rewards.scorer import Scorer
from unslothrl.system.machine import this_card
from unslothrl.system.memory import limit_card_memory
from unslothrl.weights import adapter_use, base_model, starting_adapter
from unslothrl.weights.base_model import load_tokenizer

if TYPE_CHECKING:  # not loaded where no environment runs
    from unslothrl.environments.host import Setup


def build_actor(config: Config, base: Path, plan: ProcessPlan | None = None):
    """-> an `Actor` with an engine and a base of its own; without a `plan` on the GPU here."""
    plan = plan or actor_alone(config)
    if config.engine != "vllm":
        engine: Any = transformers_engine(config, base, peft_backend(config, base), True)
    elif config.gpus_per_actor > 1:  # its workers use the GPUs, this process does not
        from unslothrl.engines import vllm_split

        gpu = plan.gpu
        stages = config.actor_pipeline_parallel
        engine = vllm_split.start(
            base,
            base if stages > 1 else base_model.find(config.model),
            config.actor_tensor_parallel,
            stages=stages,
            **vllm_options(config),
            on_gpu=gpu is not None,
            dtype=dtype_on(config, gpu.capability if gpu else None),
            memory=plan.engine(),
            takes_turns=plan.takes_turns,
        )
    else:
        from unslothrl.engines import vllm

        limit_card_memory()
        engine = vllm.start(
            base,
            **vllm_options(config),
            dtype=dtype_name(config),
            memory=engine_memory(plan),
            takes_turns=plan.takes_turns,
        )
    return actor_of(plan.name, engine, config, base)


def vllm_options(config: Config) -> dict[str, Any]:
    return {
        "context": config.context,
        "rank": config.max_lora_rank,
        "max_num_seqs": config.sequences_at_once,
        "max_loras": versions_in_flight(config),
        "seed": config.seed,
    }


def transformers_engine(config: Config, base: Path, backend: Any, has_own_base: bool):
    from unslothrl.engines.transformers import TransformersEngine

    sequences = config.sequences_at_once
    return TransformersEngine(backend, base, max_num_seqs=sequences, has_own_base=has_own_base)


def engine_memory(plan: ProcessPlan) -> EngineMemory | None:
    """What the process's vLLM is given of the GPU that it finds; None where it has none."""
    return plan.engine(*this_card()) if plan.limits else None


def data_options(config: Config) -> DataOptions:
    """What a run is trained and evaluated on. UserError for a reward that cannot be."""
    chosen = rewards.choose(config.reward)
    folder = starting_adapter.folder(config)
    use = adapter_use.read(expanded(folder)) if folder is not None else None
    # The system prompt of problems that have none: the user's, else what the adapter that training
    # begins with was told, else what the rewards ask for. The embedded base knows problems as they
    # stand, and the embedded problems have columns of their own.
    is_embedded = config.dataset == EMBEDDED
    asked_for = "" if config.model in BASES else rewards.system_prompt(chosen)
    default = "" if is_embedded else asked_for if use is None else use.system_prompt
    columns = Columns() if is_embedded else Columns(config.prompt_column, config.answer_column)
    return DataOptions(
        dataset=config.dataset,
        eval_dataset=config.eval_dataset,
        holdout=config.holdout,
        eval_problems=config.eval_problems,
        max_prompt_tokens=config.max_prompt_tokens,
        seed=config.seed,
        reader=rewards.reader_of(chosen, columns),
        system_prompt=default if config.system_prompt is None else config.system_prompt,
        replaces=config.system_prompt is not None,
    )


def actor_of(name: str, engine, config: Config, base: Path):
    """-> an `Actor` of the run over an engine."""
    from unslothrl.actors.actor import Actor

    return Actor(
        name,
        engine,
        load_tokenizer(base),
        scorer_of(config),
        environment_of(config),
        rules_of(config),
        follows_newest=follows_newest(config),
        overlaps=config.max_staleness > 0,
    )


def environment_of(config: Config) -> "Setup | None":
    """What runs a run's environments; None where an episode is a single turn."""
    return environments.setup_of(
        config.environment,
        config.tools,
        options=environments.options_of(config.environment_options),
        python=config.environment_python or sys.executable,
        deadline_s=config.environment_timeout,
        memory_mb=config.environment_memory_mb,
        max_calls=config.max_tool_calls,
        most_open=config.sequences_at_once,
        allow_unsandboxed=config.allow_unsandboxed_code,
    )


def rules_of(config: Config) -> Rules:
    return Rules(
        config.max_turns or 0,
        config.context,
        config.max_prompt_tokens,
        config.turn_rewards,
        config.turn_discount,
    )


def scorer_of(config: Config) -> Scorer:
    """What scores a run's completions. UserError for a reward that cannot be."""
    cache = config.overlong_cache
    punish = partial(overlong, limit=config.episode_tokens, cache=cache) if cache else None
    return Scorer(
        rewards.choose(config.reward),
        punish,
        config.reward_timeout,
        config.allow_unsandboxed_code,
        steps=(config.max_steps or 0) * config.updates_per_step,
    )


def build_learner(config: Config, base: Path, plan: ProcessPlan):
    """-> a `Learner` whose engine shares its weights: Unsloth's vLLM where there is one."""
    if config.backend == "unsloth":
        memory = engine_memory(plan)
        backend: Any = import_unsloth(config).load(
            base,
            **lora_options(config, base),
            context=config.context,
            memory_share=memory.utilisation if memory else None,
            max_num_seqs=config.sequences_at_once,
        )
    else:
        counts = {name: getattr(config, name) for name in SPLITS}
        ranks = {name: (plan.index % count, count) for name, count in counts.items() if count > 1}
        offload = "model" if plan.takes_turns and ranks else config.offload
        backend = peft_backend(replace(config, offload=offload), base, ranks)
    for each in rewards.choose(config.reward):
        if each.runs == IN_LEARNER:
            backend.add_reward_model(Path(each.function), config.normalize_reward_model)
    if backend.llm is None:
        engine: Any = transformers_engine(config, base, backend, has_own_base=False)
    else:
        from unslothrl.engines.vllm import VllmEngine

        engine = VllmEngine(backend.llm, base, plan.takes_turns)
    from unslothrl.learners.learner import Learner

    actor = actor_of(plan.name, engine, config, base)
    learner = Learner(backend, objective_of(config), actor, config)
    learner.make_room()  # the actors on its GPU start after it
    return learner


def import_unsloth(config: Config):
    """Imports Unsloth, which patches what is imported after it. -> our module over it."""
    if config.learner_has_engine:  # it must be able to sleep, which is settled at import
        os.environ.setdefault("UNSLOTH_VLLM_STANDBY", "1")
    from unslothrl.backends import unsloth

    return unsloth


def peft_backend(config: Config, base: Path, ranks: dict[str, tuple[int, int]] | None = None):
    from unslothrl.backends import peft

    return peft.load(base, **lora_options(config, base), ranks=ranks)


def lora_options(config: Config, base: Path) -> dict:
    """What both backends are given for the LoRA and the base."""
    import torch

    start = adapter_folder(config.adapter)
    return {
        "dtype": getattr(torch, dtype_name(config)),
        "rank": config.max_lora_rank,
        "alpha": config.lora_alpha,
        "dropout": config.lora_dropout,
        "seed": config.seed,
        "start": Path(start) if start else None,
        "name": str(base) if config.model in BASES else adapter_use.base_name(config.model, base),
        "offload": config.offload,
    }


def dtype_name(config: Any) -> str:
    """What the base computes in on this process's GPU, in a run or a stage."""
    import torch

    has_card = torch.cuda.is_available()
    return dtype_on(config, torch.cuda.get_device_capability() if has_card else None)

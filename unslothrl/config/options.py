"""The table of options: flags, TOML keys, limits and help all come from `Config`.

It imports nothing of this package but what a field is, so that every layer may read a config, and
no NumPy, so that `--help` is quick. The first groups, to the objective's, are in option.py.
"""

from dataclasses import Field, dataclass, fields
from functools import partial

from unslothrl.config.option import (
    EnvironmentOptions,
    ObjectiveOptions,
    TaskOptions,
    evaluation,
    hardware,
    lora,
    training,
)

MOST_ALPHA = 65_536  # of a LoRA
MOST_RANK = 512  # that vLLM takes
# Ways to divide a learner's work among several: the first two may go together.
SPLITS = ("learner_shards", "context_parallel", "learner_tensor_parallel", "pipeline_stages")
DEFAULT_NUM_SEQS = 256  # sequences at once of an engine where max_num_seqs is not set
divided = partial(hardware, 1, at_least=1, at_most=64)  # among so many processes or GPUs


@dataclass(frozen=True)
class Config(ObjectiveOptions, EnvironmentOptions, TaskOptions):
    """All options of a run. None means: not set, see the option's help."""

    learner: str = training(
        "pg", "training objective: a name (grpo is the usual choice), or a .py file with OBJECTIVE"
    )
    lr: float = training(2e-5, "learning rate", over=0, at_most=1)
    lr_schedule: str = training(
        "constant", "learning rate schedule", choices=("constant", "linear", "cosine")
    )
    lr_floor: float = training(
        0.0, "share of lr that linear and cosine fall to", at_least=0, at_most=1
    )
    warmup_steps: int = training(
        0, "steps over which the learning rate rises to lr", at_least=0, unit="steps"
    )
    weight_decay: float = training(0.0, "AdamW's weight decay", at_least=0, at_most=1)
    max_grad_norm: float = training(
        1.0, "clip the gradient norm at this value, 0 = off", at_least=0
    )
    train_batch_size: int = training(
        8,
        "micro-batch: sequences per forward pass; affects memory and speed only",
        at_least=1,
        unit="sequences",
    )
    updates_per_rollout: int = training(
        1,
        "parts into which a rollout is split, each for one optimiser step",
        at_least=1,
    )
    epochs_per_rollout: int = training(1, "training passes over each rollout", at_least=1)
    max_staleness: int = training(
        0,
        "policy versions that a rollout may be behind when it is trained on; above 0, actors "
        "generate while the learner updates; 0 = they wait for each other",
        at_least=0,
        at_most=16,
        unit="versions",
    )
    partial_rollouts: bool = training(
        False, "with max_staleness, continue completions in progress under a new version"
    )
    select: str = training(
        "topk",
        "how the topk candidates are chosen",
        choices=("topk", "max_variance", "balanced", "random", "all"),
    )
    shuffle_rewards: bool = training(False, "control experiment: shuffle rewards within each group")
    check_first_batch: bool = training(
        True, "stop a run whose first batch has another gradient in one micro-batch than in several"
    )

    max_lora_rank: int = lora(32, "LoRA rank", at_least=1, at_most=MOST_RANK)
    lora_alpha: int = lora(16, "LoRA alpha", at_least=1, at_most=MOST_ALPHA)
    lora_dropout: float = lora(
        0.0,
        "LoRA dropout, only in the update's forward pass; the ratios then carry its noise",
        at_least=0,
        at_most=0.9,
    )
    adapter: str | None = lora(None, "PEFT adapter folder to start from")
    lora_save_path: str | None = lora(None, "additional folder for the final adapter")

    eval_every: int = evaluation(
        10, "steps between evaluations, 0 = never", at_least=0, unit="steps"
    )
    eval_problems: int = evaluation(
        200, "largest number of problems, 0 = all", at_least=0, unit="problems"
    )
    eval_candidates: int = evaluation(8, "completions per problem", at_least=1, unit="completions")
    eval_temperature: float = evaluation(0.6, "sampling temperature", over=0, at_most=2)
    eval_top_p: float = evaluation(0.95, "nucleus sampling", over=0, at_most=1)
    save_every: int = evaluation(100, "steps between saved adapters", at_least=1, unit="steps")
    checkpoint_every: int | None = evaluation(
        None,
        "steps between checkpoints; default: as many as keep them under 2% of the time",
        at_least=1,
        unit="steps",
    )
    keep_checkpoints: int = evaluation(
        2,
        "newest checkpoints to keep, beside that of the best evaluation",
        at_least=1,
        unit="checkpoints",
    )
    keep_rollouts: int | None = evaluation(
        None, "newest steps whose rollouts are kept; default: all", at_least=1, unit="steps"
    )
    mirror: str | None = evaluation(
        None,
        "where the run's folder is copied to as it grows, as MIRROR/<run_name>: a folder, or a "
        "URL that fsspec knows (s3://, gs://, hf://, sftp://); none ends that in a resumed run",
    )

    number_of_actors: int = hardware(
        2,
        "processes that only generate; 0: the learner generates everything",
        at_least=0,
        at_most=1024,
    )
    min_actors: int = hardware(
        1, "fewest actors with which a run continues while dead ones are being replaced", at_least=0
    )
    number_of_learners: int = hardware(1, "processes that train", at_least=1, at_most=1024)
    learner_shards: int = divided(
        "learners that hold one base together, each a part of it, for a base larger than a GPU; "
        "number_of_learners is a multiple of it"
    )
    context_parallel: int = divided(
        "learners over which each row of tokens is split, for sequences too long for a GPU; "
        "number_of_learners is a multiple of it"
    )
    learner_tensor_parallel: int = divided(
        "learners over which each matrix of the base is split, over a fast link; "
        "number_of_learners is a multiple of it"
    )
    pipeline_stages: int = divided(
        "learners over which the base's layers are divided, over a slow link; "
        "number_of_learners is a multiple of it"
    )
    learner_chunk_size: int = hardware(
        8, "prompts per step for which each learner generates, 0 = none", at_least=0, unit="prompts"
    )
    actor_gpu_usage: float = hardware(
        0.91, "share of its GPU's memory that an actor's engine may use", over=0, at_most=1
    )
    actor_tensor_parallel: int = divided("GPUs of one node over which each actor's vLLM is split")
    actor_pipeline_parallel: int = divided(
        "GPUs of one node among which the layers of each actor's vLLM are divided"
    )
    learner_gpu_usage: float = hardware(
        0.35, "share of its GPU's memory that a learner's engine may use", over=0, at_most=1
    )
    cluster: str = hardware("ray", "local: everything in one process", choices=("ray", "local"))
    ray_address: str | None = hardware(None, "Ray cluster to join; default: start one here")
    engine: str = hardware(
        "auto", "inference engine of the actors", choices=("auto", "vllm", "transformers")
    )
    backend: str = hardware(
        "auto", "training backend of the learner", choices=("auto", "unsloth", "peft")
    )
    dtype: str = hardware(
        "auto",
        "data type in which the models compute",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    offload: str = hardware(
        "none",
        "what the learner may keep in host memory: optimizer its optimiser's state if the GPU is "
        "full, model also the model between updates (with actors that generate everything)",
        choices=("none", "optimizer", "model"),
    )
    fit: str = hardware(
        "auto",
        "how options that are not set are fitted to the GPU: auto lowers them if necessary, "
        "largest chooses the longest completions, fastest the largest batches, off changes nothing",
        choices=("auto", "largest", "fastest", "off"),
    )
    max_num_seqs: int | None = hardware(
        None,
        "sequences that an engine generates at once; default: the engine's choice",
        at_least=1,
        unit="sequences",
    )
    kv_cache_mb: int | None = hardware(
        None,
        "KV cache of each engine; default: what its share of the GPU leaves",
        at_least=1,
        unit="MB",
    )

    @property
    def context(self) -> int:
        """Tokens of the longest prompt with the longest episode."""
        return self.max_prompt_tokens + self.episode_tokens

    @property
    def episode_tokens(self) -> int:
        """Tokens that may come after a prompt."""
        most = self.max_episode_tokens if self.has_environment else None
        return most or self.max_new_tokens

    @property
    def length_option(self) -> str:
        """What bounds everything that comes after a prompt."""
        return "max_episode_tokens" if self.has_environment else "max_new_tokens"

    @property
    def has_environment(self) -> bool:
        """Whether anything answers the policy between its turns."""
        return self.environment != "single_turn" or bool(self.tools)

    @property
    def sequences_at_once(self) -> int:
        """Sequences that an engine generates at the same time."""
        return self.max_num_seqs or DEFAULT_NUM_SEQS

    @property
    def completions_per_step(self) -> int:
        """Completions that a step trains on or selects from, without those drawn again."""
        return self.batch_size * self.num_candidates

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps that each rollout is trained with."""
        return self.updates_per_rollout * self.epochs_per_rollout

    @property
    def gpus_per_actor(self) -> int:
        return max(self.actor_tensor_parallel, self.actor_pipeline_parallel)

    @property
    def learners_per_part(self) -> int:
        """Learners that together compute what one would: the same part of each batch is theirs."""
        return max(self.context_parallel, self.learner_tensor_parallel, self.pipeline_stages)

    @property
    def learners_together(self) -> int:
        """Learners that do each pass together."""
        return max(self.learners_per_part, self.learner_shards)

    @property
    def number_of_processes(self) -> int:
        return self.number_of_actors + self.number_of_learners

    @property
    def learner_generates(self) -> bool:
        """Whether learners generate a share of each rollout, or all of it."""
        return self.number_of_actors == 0 or self.learner_chunk_size > 0

    @property
    def learner_evaluates(self) -> bool:
        """Whether learners draw evaluations too: a figure is of one engine, whoever asks again."""
        return self.learner_generates and (
            self.number_of_actors == 0 or self.engine == "transformers" or self.learner_has_engine
        )

    @property
    def generating_engine(self) -> str:
        """Of rollouts: a PEFT learner without actors draws with transformers."""
        return self.engine if self.number_of_actors or self.learner_has_engine else "transformers"

    @property
    def learner_has_engine(self) -> bool:
        """Whether a learner generates with a vLLM over its own weights; else with transformers."""
        return self.learner_generates and (self.engine, self.backend) == ("vllm", "unsloth")


OPTIONS: dict[str, Field] = {entry.name: entry for entry in fields(Config)}
PARTS = tuple(name for name, entry in OPTIONS.items() if entry.metadata.get("is_part"))

"""The table of options: flags, TOML keys, limits and help all come from `Config`.

It imports nothing of this package but what a field is, so that every layer may read a config. The
first options, to sampling, are in task_options.py.
"""

from dataclasses import Field, dataclass, fields

from unslothrl.config.environment_options import EnvironmentOptions
from unslothrl.config.option import EVALUATION, HARDWARE, LORA, OBJECTIVE, TRAINING, option, part
from unslothrl.config.task_options import TaskOptions

MOST_ALPHA = 65_536  # of a LoRA
MOST_RANK = 512  # that vLLM takes
DEFAULT_NUM_SEQS = 256  # sequences at once of an engine where max_num_seqs is not set


@dataclass(frozen=True)
class Config(EnvironmentOptions, TaskOptions):
    """All options of a run. None means: not set, see the option's help."""

    learner: str = option(
        "pg",
        "training objective: a name (grpo is the usual choice), or a .py file with OBJECTIVE",
        TRAINING,
    )
    lr: float = option(2e-5, "learning rate", TRAINING, over=0, at_most=1)
    lr_schedule: str = option(
        "constant",
        "learning rate schedule",
        TRAINING,
        choices=("constant", "linear", "cosine"),
    )
    lr_floor: float = option(
        0.0, "share of lr that linear and cosine fall to", TRAINING, at_least=0, at_most=1
    )
    warmup_steps: int = option(
        0, "steps over which the learning rate rises to lr", TRAINING, at_least=0, unit="steps"
    )
    weight_decay: float = option(0.0, "AdamW's weight decay", TRAINING, at_least=0, at_most=1)
    max_grad_norm: float = option(
        1.0, "clip the gradient norm at this value, 0 = off", TRAINING, at_least=0
    )
    train_batch_size: int = option(
        8,
        "micro-batch: sequences per forward pass; affects memory and speed only",
        TRAINING,
        at_least=1,
        unit="sequences",
    )
    updates_per_rollout: int = option(
        1,
        "parts into which a rollout is split, each for one optimiser step",
        TRAINING,
        at_least=1,
        at_most=1024,
    )
    epochs_per_rollout: int = option(
        1, "training passes over each rollout", TRAINING, at_least=1, at_most=100
    )
    max_staleness: int = option(
        0,
        "policy versions that a rollout may be behind when it is trained on; above 0, actors "
        "generate while the learner updates; 0 = they wait for each other",
        TRAINING,
        at_least=0,
        at_most=16,
        unit="versions",
    )
    partial_rollouts: bool = option(
        False,
        "with max_staleness, continue completions in progress under a new version",
        TRAINING,
    )
    select: str = option(
        "topk",
        "how the topk candidates are chosen",
        TRAINING,
        choices=("topk", "max_variance", "balanced", "random", "all"),
    )
    shuffle_rewards: bool = option(
        False, "control experiment: shuffle rewards within each group", TRAINING
    )

    advantage: str | None = part(
        "how a reward becomes an advantage",
        choices=("centred", "standardised", "batch_standardised", "leave_one_out", "gae"),
    )
    advantage_std: str | None = part(
        "standard deviation used for standardising: over n, or n - 1",
        choices=("population", "sample"),
    )
    advantage_epsilon: float | None = part(
        "number added to that standard deviation", at_least=0, at_most=1
    )
    ratio: str | None = part(
        "ratio of the policy to the old policy", choices=("token", "sequence", "trajectory", "one")
    )
    clip: str | None = part("how the ratio is clipped", choices=("surrogate", "weight", "none"))
    clip_low: float | None = part("clip the ratio at 1 - this value", at_least=0, at_most=1)
    clip_high: float | None = part("clip the ratio at 1 + this value", at_least=0)
    clip_dual: float | None = part(
        "bound of the loss for negative advantages, over 1; 0 = off", at_least=0
    )
    skip_threshold: float | None = part(
        "leave out sequences whose mean ratio is over this value, 0 = off", at_least=0
    )
    aggregation: str | None = part(
        "what the loss averages over", choices=("token", "sequence", "constant")
    )
    kl: str | None = part(
        "where the KL against the reference is added", choices=("none", "loss", "reward")
    )
    kl_estimator: str | None = part("how the KL is estimated", choices=("k1", "k2", "k3"))
    kl_coefficient: float | None = part("weight of the KL", at_least=0)
    entropy_coefficient: float | None = part("weight of the entropy bonus", at_least=0)
    correction: str | None = part(
        "correction for the difference between sampler and learner",
        choices=("none", "truncated", "masked", "geometric"),
    )
    correction_low: float | None = part(
        "lower bound of the correction (if the learner has none, the usual one)", at_least=0
    )
    correction_high: float | None = part(
        "upper bound of the correction (if the learner has none, the usual one)", over=0
    )
    mask_truncated: bool | None = part("leave truncated completions out of the loss")
    overlong_cache: int | None = option(
        None,
        "length of the range before max_new_tokens in which completions are softly punished, "
        "0 = off; default: the learner's",
        OBJECTIVE,
        at_least=0,
        unit="tokens",
    )
    filter_low: float | None = part(
        "lowest accuracy of a group that is trained on", at_least=0, at_most=1
    )
    filter_high: float | None = part(
        "highest accuracy of a group that is trained on", at_least=0, at_most=1
    )
    max_resample: int | None = part(
        "maximum number of redraws of prompts for groups that were filtered out",
        at_least=0,
        at_most=100,
    )
    gamma: float = option(1.0, "discount factor of gae", OBJECTIVE, over=0, at_most=1)
    gae_lambda: float = option(
        0.95, "lambda of gae: 1 trusts rewards, 0 the critic", OBJECTIVE, at_least=0, at_most=1
    )
    critic_lr: float | None = option(
        None, "learning rate of the critic; default: lr", OBJECTIVE, over=0, at_most=1
    )
    value_clip: float = option(
        0.2, "clip range of the critic's values, 0 = off", OBJECTIVE, at_least=0
    )
    freeze_steps: int = option(
        0, "first steps, in which only the critic is trained", OBJECTIVE, at_least=0, unit="steps"
    )

    max_lora_rank: int = option(
        32,
        f"LoRA rank (vLLM supports at most {MOST_RANK})",
        LORA,
        at_least=1,
        at_most=MOST_RANK,
    )
    lora_alpha: int = option(16, "LoRA alpha", LORA, at_least=1, at_most=MOST_ALPHA)
    lora_dropout: float = option(
        0.0,
        "LoRA dropout, only in the update's forward pass; the ratios then carry its noise",
        LORA,
        at_least=0,
        at_most=0.9,
    )
    adapter: str | None = option(None, "PEFT adapter folder to start from", LORA)
    lora_save_path: str | None = option(None, "additional folder for the final adapter", LORA)

    eval_every: int = option(
        10, "steps between evaluations, 0 = never", EVALUATION, at_least=0, unit="steps"
    )
    eval_problems: int = option(
        200, "largest number of problems, 0 = all", EVALUATION, at_least=0, unit="problems"
    )
    eval_candidates: int = option(
        8, "completions per problem", EVALUATION, at_least=1, unit="completions"
    )
    eval_temperature: float = option(0.6, "sampling temperature", EVALUATION, over=0, at_most=2)
    eval_top_p: float = option(0.95, "nucleus sampling", EVALUATION, over=0, at_most=1)
    save_every: int = option(
        100, "steps between saved adapters", EVALUATION, at_least=1, unit="steps"
    )
    checkpoint_every: int | None = option(
        None,
        "steps between checkpoints; default: as many as keep them under 2% of the time",
        EVALUATION,
        at_least=1,
        unit="steps",
    )
    keep_checkpoints: int = option(
        2,
        "newest checkpoints to keep, beside that of the best evaluation",
        EVALUATION,
        at_least=1,
        unit="checkpoints",
    )
    keep_rollouts: int | None = option(
        None,
        "newest steps whose rollouts are kept; default: all",
        EVALUATION,
        at_least=1,
        unit="steps",
    )
    mirror: str | None = option(
        None,
        "where the run's folder is copied to as it grows, as MIRROR/<run_name>: a folder, or a "
        "URL that fsspec knows (s3://, gs://, hf://, sftp://); none ends that in a resumed run",
        EVALUATION,
    )

    number_of_actors: int = option(
        2,
        "processes that only generate; 0: the learner generates everything",
        HARDWARE,
        at_least=0,
        at_most=1024,
    )
    min_actors: int = option(
        1,
        "fewest actors with which a run continues while dead ones are being replaced",
        HARDWARE,
        at_least=0,
        at_most=1024,
    )
    number_of_learners: int = option(1, "processes that train", HARDWARE, at_least=1, at_most=1024)
    learner_chunk_size: int = option(
        8,
        "prompts per step for which each learner generates, 0 = none",
        HARDWARE,
        at_least=0,
        unit="prompts",
    )
    actor_gpu_usage: float = option(
        0.91, "share of its card that an actor's engine may use", HARDWARE, over=0, at_most=1
    )
    actor_tensor_parallel: int = option(
        1, "cards of one node over which each actor's vLLM is split", HARDWARE, at_least=1,
        at_most=64,
    )  # fmt: skip
    learner_gpu_usage: float = option(
        0.35, "share of its card that a learner's engine may use", HARDWARE, over=0, at_most=1
    )
    cluster: str = option(
        "ray", "local: everything in one process", HARDWARE, choices=("ray", "local")
    )
    ray_address: str | None = option(None, "Ray cluster to join; default: start one here", HARDWARE)
    ray_port: int | None = option(
        None, "port of the Ray cluster started here, so that other machines can join", HARDWARE,
        at_least=1024, at_most=65_535,
    )  # fmt: skip
    ray_worker_ports: str | None = option(
        None, "LOW-HIGH: all other ports of that Ray cluster", HARDWARE
    )
    ray_node_ip: str | None = option(
        None, "this machine's address for the nodes of that Ray cluster", HARDWARE
    )
    ray_temp_dir: str | None = option(
        None, "folder for the logs and sockets of that Ray cluster", HARDWARE
    )
    engine: str = option(
        "auto", "inference engine of the actors", HARDWARE, choices=("auto", "vllm", "transformers")
    )
    backend: str = option(
        "auto", "training backend of the learner", HARDWARE, choices=("auto", "unsloth", "peft")
    )
    dtype: str = option(
        "auto",
        "data type in which the models compute",
        HARDWARE,
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    offload: str = option(
        "none",
        "what the learner may keep in host memory: optimizer its optimiser's state if the card is "
        "full, model also the model between updates (with actors that generate everything)",
        HARDWARE,
        choices=("none", "optimizer", "model"),
    )
    fit: str = option(
        "auto",
        "how options that are not set are fitted to the card: auto lowers them if necessary, "
        "largest chooses the longest completions, fastest the largest batches, off changes nothing",
        HARDWARE,
        choices=("auto", "largest", "fastest", "off"),
    )
    max_num_seqs: int | None = option(
        None,
        "sequences that an engine generates at once; default: the engine's choice",
        HARDWARE,
        at_least=1,
        unit="sequences",
    )
    kv_cache_mb: int | None = option(
        None, "KV cache of each engine; default: what its share of the card leaves", HARDWARE,
        at_least=1, unit="MB",
    )  # fmt: skip

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
    def number_of_processes(self) -> int:
        """Actors and learners together."""
        return self.number_of_actors + self.number_of_learners

    @property
    def learner_generates(self) -> bool:
        """Whether learners generate a share of each rollout, or all of it."""
        return self.number_of_actors == 0 or self.learner_chunk_size > 0

    @property
    def learner_evaluates(self) -> bool:
        """Whether learners that generate draw a share of evaluations too: where they generate with
        what actors do, since a figure is of one engine, whoever asks for it again."""
        return self.learner_generates and (
            self.number_of_actors == 0 or self.engine == "transformers" or self.learner_has_engine
        )

    @property
    def learner_has_engine(self) -> bool:
        """Whether a learner generates with a vLLM over its own weights, given a card. Without one
        it generates with transformers."""
        return self.learner_generates and (self.engine, self.backend) == ("vllm", "unsloth")


OPTIONS: dict[str, Field] = {entry.name: entry for entry in fields(Config)}
PARTS = tuple(name for name, entry in OPTIONS.items() if entry.metadata.get("is_part"))

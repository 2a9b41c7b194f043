"""The table of options: flags, TOML keys, limits and help all come from `Config`.

It imports nothing of this package but what a field is, so that every layer may read a config. The
first options, to sampling, are in task_options.py.
"""

from dataclasses import Field, dataclass, fields

from unslothrl.config.option import EVALUATION, HARDWARE, LORA, OBJECTIVE, TRAINING, option, part
from unslothrl.config.task_options import TaskOptions

MOST_ALPHA = 65_536  # of a LoRA
MOST_RANK = 512  # that vLLM takes
DEFAULT_NUM_SEQS = 256  # sequences at once of an engine where max_num_seqs is not set


@dataclass(frozen=True)
class Config(TaskOptions):
    """All options of a run. None means: not set, see the option's help."""

    learner: str = option(
        "pg",
        "what the learner optimises: a name (grpo is the usual one), or a .py file with OBJECTIVE",
        TRAINING,
    )
    lr: float = option(2e-5, "learning rate", TRAINING, over=0, at_most=1)
    lr_schedule: str = option(
        "constant",
        "schedule of the learning rate",
        TRAINING,
        choices=("constant", "linear", "cosine"),
    )
    lr_floor: float = option(
        0.0, "share of lr at the end of linear and cosine", TRAINING, at_least=0, at_most=1
    )
    warmup_steps: int = option(
        0, "steps in which the learning rate grows to lr", TRAINING, at_least=0, unit="steps"
    )
    weight_decay: float = option(0.0, "AdamW's weight decay", TRAINING, at_least=0, at_most=1)
    max_grad_norm: float = option(
        1.0, "clip the gradient's norm here, 0 = off", TRAINING, at_least=0
    )
    train_batch_size: int = option(
        8,
        "micro-batch: sequences a forward; changes memory and speed only",
        TRAINING,
        at_least=1,
        unit="sequences",
    )
    updates_per_rollout: int = option(
        1,
        "parts that a rollout is trained on one after the other",
        TRAINING,
        at_least=1,
        at_most=1024,
    )
    epochs_per_rollout: int = option(
        1, "times that a rollout is trained on", TRAINING, at_least=1, at_most=100
    )
    max_staleness: int = option(
        0,
        "policy versions that a rollout may be behind when it is trained on: over 0, actors go on "
        "generating while the learner updates; 0 = they wait for each other",
        TRAINING,
        at_least=0,
        at_most=16,
        unit="versions",
    )
    partial_rollouts: bool = option(
        False,
        "with max_staleness, completions that a new version comes in the middle of go on under it",
        TRAINING,
    )
    select: str = option(
        "topk",
        "how the topk candidates are chosen",
        TRAINING,
        choices=("topk", "max_variance", "balanced", "random", "all"),
    )
    shuffle_rewards: bool = option(
        False, "control experiment: shuffle rewards inside each group", TRAINING
    )

    advantage: str | None = part(
        "what a reward is worth",
        choices=("centred", "standardised", "batch_standardised", "leave_one_out", "gae"),
    )
    advantage_std: str | None = part(
        "what standardising divides by: n, or n - 1", choices=("population", "sample")
    )
    advantage_epsilon: float | None = part("added to that", at_least=0, at_most=1)
    ratio: str | None = part(
        "ratio of policy and old policy", choices=("token", "sequence", "trajectory", "one")
    )
    clip: str | None = part("what is clipped", choices=("surrogate", "weight", "none"))
    clip_low: float | None = part("clip the ratio at 1 - this", at_least=0, at_most=1)
    clip_high: float | None = part("clip the ratio at 1 + this", at_least=0)
    clip_dual: float | None = part(
        "bound of the loss where the advantage is negative, 0 = off, else over 1", at_least=0
    )
    skip_threshold: float | None = part(
        "leave out a sequence whose mean ratio is over this, 0 = off", at_least=0
    )
    aggregation: str | None = part(
        "what the loss averages over", choices=("token", "sequence", "constant")
    )
    kl: str | None = part("KL against the reference", choices=("none", "loss", "reward"))
    kl_estimator: str | None = part("how it is estimated", choices=("k1", "k2", "k3"))
    kl_coefficient: float | None = part("its weight", at_least=0)
    entropy_coefficient: float | None = part("weight of an entropy bonus", at_least=0)
    correction: str | None = part(
        "what corrects for another engine's sampling",
        choices=("none", "truncated", "masked", "geometric"),
    )
    correction_low: float | None = part("its lower bound, usual for it where unset", at_least=0)
    correction_high: float | None = part("its upper bound, usual for it where unset", over=0)
    mask_truncated: bool | None = part("leave truncated completions out of the loss")
    overlong_cache: int | None = option(
        None,
        "punish completions softly over the last so many tokens before max_new_tokens, 0 = off; "
        "not set: as the learner's",
        OBJECTIVE,
        at_least=0,
        unit="tokens",
    )
    filter_low: float | None = part(
        "train on groups with at least this accuracy", at_least=0, at_most=1
    )
    filter_high: float | None = part("and at most this", at_least=0, at_most=1)
    max_resample: int | None = part(
        "times to draw prompts again for groups that were filtered out", at_least=0, at_most=100
    )
    gamma: float = option(1.0, "discount, with gae", OBJECTIVE, over=0, at_most=1)
    gae_lambda: float = option(
        0.95, "lambda of gae: 1 trusts rewards, 0 the critic", OBJECTIVE, at_least=0, at_most=1
    )
    critic_lr: float | None = option(
        None, "learning rate of the critic; not set: as lr", OBJECTIVE, over=0, at_most=1
    )
    value_clip: float = option(0.2, "clip of the critic's values, 0 = off", OBJECTIVE, at_least=0)
    freeze_steps: int = option(
        0, "steps in which only the critic is trained", OBJECTIVE, at_least=0, unit="steps"
    )

    max_lora_rank: int = option(
        32,
        f"LoRA rank ({MOST_RANK} is the most that vLLM takes)",
        LORA,
        at_least=1,
        at_most=MOST_RANK,
    )
    lora_alpha: int = option(16, "LoRA alpha", LORA, at_least=1, at_most=MOST_ALPHA)
    lora_dropout: float = option(
        0.0,
        "LoRA dropout, in the update's forward pass alone: ratios then carry its noise",
        LORA,
        at_least=0,
        at_most=0.9,
    )
    adapter: str | None = option(None, "PEFT adapter folder to start from", LORA)
    lora_save_path: str | None = option(None, "folder that also receives the final adapter", LORA)

    eval_every: int = option(
        10, "evaluate every so many steps, 0 = never", EVALUATION, at_least=0, unit="steps"
    )
    eval_problems: int = option(
        200, "at most this many problems, 0 = all", EVALUATION, at_least=0, unit="problems"
    )
    eval_candidates: int = option(
        8, "completions a problem", EVALUATION, at_least=1, unit="completions"
    )
    eval_temperature: float = option(0.6, "temperature", EVALUATION, over=0, at_most=5)
    eval_top_p: float = option(0.95, "nucleus sampling", EVALUATION, over=0, at_most=1)
    save_every: int = option(
        100, "save the adapter every so many steps", EVALUATION, at_least=1, unit="steps"
    )
    checkpoint_every: int | None = option(
        None,
        "write a checkpoint every so many steps; not set: as save_every",
        EVALUATION,
        at_least=1,
        unit="steps",
    )

    number_of_actors: int = option(
        2,
        "processes that only generate; 0: the learner generates all",
        HARDWARE,
        at_least=0,
        at_most=1024,
    )
    min_actors: int = option(
        1,
        "fewest actors that a run goes on with when others have died and are being replaced",
        HARDWARE,
        at_least=0,
        at_most=1024,
    )
    number_of_learners: int = option(1, "processes that train", HARDWARE, at_least=1, at_most=1024)
    learner_chunk_size: int = option(
        8,
        "prompts a step that each learner generates, 0 = none",
        HARDWARE,
        at_least=0,
        unit="prompts",
    )
    actor_gpu_usage: float = option(
        0.91, "share of its card that an actor's engine may take", HARDWARE, over=0, at_most=1
    )
    actor_tensor_parallel: int = option(
        1, "cards of one node that each actor's vLLM is split over", HARDWARE, at_least=1,
        at_most=64,
    )  # fmt: skip
    learner_gpu_usage: float = option(
        0.35, "share of its card that a learner's engine may take", HARDWARE, over=0, at_most=1
    )
    cluster: str = option("ray", "local: all in one process", HARDWARE, choices=("ray", "local"))
    ray_address: str | None = option(None, "Ray cluster to join; not set: start one here", HARDWARE)
    ray_port: int | None = option(
        None, "port of the Ray that is started here, for other machines to join", HARDWARE,
        at_least=1024, at_most=65_535,
    )  # fmt: skip
    ray_worker_ports: str | None = option(None, "LOW-HIGH: all other ports of that Ray", HARDWARE)
    ray_node_ip: str | None = option(None, "this machine's address for its nodes", HARDWARE)
    ray_temp_dir: str | None = option(None, "folder of its logs and sockets", HARDWARE)
    engine: str = option(
        "auto", "what the actors generate with", HARDWARE, choices=("auto", "vllm", "transformers")
    )
    backend: str = option(
        "auto", "what the learner trains with", HARDWARE, choices=("auto", "unsloth", "peft")
    )
    dtype: str = option(
        "auto",
        "what the models compute in",
        HARDWARE,
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    offload: str = option(
        "none",
        "what of the learner may lie in host memory: its optimiser's state where the card is full, "
        "or between updates the model as well (with actors that generate everything)",
        HARDWARE,
        choices=("none", "optimizer", "model"),
    )
    fit: str = option(
        "auto",
        "what is not set fits the card: auto lowers it where it must, largest takes the longest "
        "completions, fastest the largest batches, off leaves it",
        HARDWARE,
        choices=("auto", "largest", "fastest", "off"),
    )
    max_num_seqs: int | None = option(
        None,
        "sequences that an engine generates at once; not set: its own choice",
        HARDWARE,
        at_least=1,
        unit="sequences",
    )
    kv_cache_mb: int | None = option(
        None, "KV cache of each engine; not set: what its GPU share leaves", HARDWARE,
        at_least=1, unit="MB",
    )  # fmt: skip

    @property
    def context(self) -> int:
        """Tokens of the longest prompt with the longest completion."""
        return self.max_prompt_tokens + self.max_new_tokens

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


RETIRED = {"project_name": "runs are logged into their own folder"}  # of earlier versions, and why
OPTIONS: dict[str, Field] = {entry.name: entry for entry in fields(Config)}
PARTS = tuple(name for name, entry in OPTIONS.items() if entry.metadata.get("is_part"))

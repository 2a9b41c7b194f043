"""The options of `unslothrl sft`, `dpo` and `rm`: some are a run's, by the same names."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from unslothrl.config.option import evaluation, hardware, task, training
from unslothrl.config.options import OPTIONS
from unslothrl.config.values import Table

SHARDS = "processes, each on its own GPU, that hold one base together, each a part of it"


def same(name: str, default: Any = dataclasses.MISSING, **changed: str) -> Any:
    """An option of a run, with another default, help or unit where that is given."""
    entry = OPTIONS[name]
    usual = entry.default if default is dataclasses.MISSING else default
    return dataclasses.field(default=usual, metadata={**entry.metadata, **changed})


@dataclass(frozen=True)
class OfflineOptions:
    """What the three have in common. None means: not set, see the option's help."""

    model: str = same("model")
    dataset: str = same(
        "dataset",
        "embedded",
        help="training rows: hub id, file or folder, NAME@SPLIT[:1000], or embedded",
    )
    eval_dataset: tuple[str, ...] = same(
        "eval_dataset",
        help="evaluation rows, one source; default: the training set's test split or held-out rows",
    )
    holdout: float = same("holdout")
    prompt_column: str | None = same("prompt_column")
    system_prompt: str | None = same(
        "system_prompt", help="system prompt, which replaces the data's own; default: the data's"
    )
    max_length: int = task(
        1024, "longest row; longer ones are dropped and counted", at_least=2, unit="tokens"
    )

    run_name: str | None = same("run_name", help="folder of the run; default: <command>-<date>")
    output_dir: str = same("output_dir")
    recipe: str | None = same("recipe")
    resume: str | None = same("resume")
    seed: int = same("seed")
    max_steps: int | None = same("max_steps")
    episodes: int = same("episodes", 1, help="passes over the training rows")
    track: tuple[str, ...] = same("track")
    project_name: str | None = same("project_name")
    mirror: str | None = same("mirror")

    batch_size: int = training(16, "rows per step", at_least=1)
    train_batch_size: int = same(
        "train_batch_size",
        4,
        help="micro-batch: rows per forward pass; affects memory and speed only",
    )
    lr: float = same("lr", 2e-4)
    lr_schedule: str = same("lr_schedule", "linear")
    lr_floor: float = same("lr_floor")
    warmup_steps: int = same("warmup_steps")
    weight_decay: float = same("weight_decay")
    max_grad_norm: float = same("max_grad_norm")
    trl: tuple[str, ...] = training(
        (), "KEY=VALUE of TRL's own config, where nothing here sets it; may be repeated"
    )

    max_lora_rank: int = same("max_lora_rank")
    lora_alpha: int = same("lora_alpha")
    lora_dropout: float = same("lora_dropout", help="LoRA dropout")
    adapter: str | None = same("adapter")
    lora_save_path: str | None = same("lora_save_path")

    eval_every: int = same("eval_every", 50)
    eval_problems: int = same(
        "eval_problems", 500, help="largest number of evaluation rows, 0 = all", unit="rows"
    )
    save_every: int = same("save_every")
    checkpoint_every: int = evaluation(50, "steps between checkpoints", at_least=1, unit="steps")
    keep_checkpoints: int = same("keep_checkpoints")

    backend: str = same(
        "backend", help="training backend: unsloth on a GPU if possible, else peft; auto decides"
    )
    dtype: str = same("dtype")
    fit: str = hardware(
        "auto",
        "what to do if a micro-batch does not fit the GPU: auto takes a smaller one if "
        "train_batch_size is not set, and refuses to start if none fits; off starts all the same",
        choices=("auto", "off"),
    )

    @property
    def micro_batch(self) -> int:
        """Rows of a forward pass: the largest part of a step that `train_batch_size` allows."""
        sizes = range(min(self.train_batch_size, self.batch_size), 0, -1)
        return next(size for size in sizes if self.batch_size % size == 0)


@dataclass(frozen=True)
class SftOptions(OfflineOptions):
    completion_column: str | None = task(None, "column of the reply to learn; default: detected")
    learner_shards: int = same("learner_shards", help=SHARDS)
    packing: bool = training(
        False, "put several rows into one of max_length tokens; they do not see each other"
    )
    assistant_only_loss: bool = training(True, "learn what the assistant says, not what it reads")


@dataclass(frozen=True)
class PreferenceOptions(OfflineOptions):
    chosen_column: str | None = task(None, "column of the better reply; default: detected")
    rejected_column: str | None = task(None, "column of the worse reply; default: detected")


@dataclass(frozen=True)
class DpoOptions(PreferenceOptions):
    lr: float = same("lr", 1e-5)
    learner_shards: int = same("learner_shards", help=SHARDS)
    beta: float = training(
        0.1, "how much the policy is held near its reference", over=0, at_most=100
    )
    loss_type: str = training(
        "sigmoid",
        "TRL's name of the loss on a pair",
        choices=("sigmoid", "hinge", "ipo", "robust", "apo_zero", "apo_down", "sppo_hard"),
    )
    reference: str = training(
        "auto",
        "what holds the reference: adapter a frozen copy of what training begins with, cached its "
        "log-probabilities of every row, auto the smaller, or the copy where a run reads little of "
        "them",
        choices=("auto", "adapter", "cached"),
    )


@dataclass(frozen=True)
class RmOptions(PreferenceOptions):
    lr: float = same("lr", 1e-4)


TABLES = {
    "sft": Table(SftOptions, "sft"),
    "dpo": Table(DpoOptions, "dpo"),
    "rm": Table(RmOptions, "rm"),
}


def shards_of(options: OfflineOptions) -> int:
    """Processes that share the base."""
    return getattr(options, "learner_shards", 1)

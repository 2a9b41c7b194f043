"""TRL's config and trainer for a stage, and its loop."""

import dataclasses
import logging
import os
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
import trl
from datasets import Dataset
from transformers import TrainerCallback

from unslothrl.config.offline_options import DpoOptions, OfflineOptions, RmOptions, SftOptions
from unslothrl.errors import RunError, UserError
from unslothrl.offline import models
from unslothrl.offline.trainers import (
    OF_REFERENCE,
    REFERENCE_IS_COPY,
    DpoTrainer,
    LearntOnly,
    RmTrainer,
    SftTrainer,
)
from unslothrl.planning import stages
from unslothrl.system.memory import peak_memory_mb
from unslothrl.text import json_or_text
from unslothrl.tracking.metrics import is_number
from unslothrl.weights import starting_adapter

TRAINERS: dict[type, Any] = {SftOptions: SftTrainer, DpoOptions: DpoTrainer, RmOptions: RmTrainer}
CONFIGS = {SftOptions: trl.SFTConfig, DpoOptions: trl.DPOConfig, RmOptions: trl.RewardConfig}
FOR_ALL = {  # fields that `--trl` sets; all others are options of ours, or the run's own matter
    "adam_beta1", "adam_beta2", "adam_epsilon", "average_tokens_across_devices",
    "activation_offloading", "dataloader_num_workers", "dataloader_persistent_workers",
    "dataloader_prefetch_factor", "neftune_noise_alpha", "pad_to_multiple_of", "tf32",
    "torch_empty_cache_steps", "use_liger_kernel",
}  # fmt: skip
ALLOWED = {
    SftOptions: {*FOR_ALL, "label_smoothing_factor", "loss_type", "router_aux_loss_coef"},
    DpoOptions: {
        *FOR_ALL, "f_alpha_divergence_coef", "f_divergence_type",
        "label_smoothing", "ld_alpha", "router_aux_loss_coef", "use_weighting",
    },
    RmOptions: {*FOR_ALL, "center_rewards_coefficient", "disable_dropout"},
}  # fmt: skip
SMOOTHED = "robust"  # the one loss on pairs here in which TRL 1.15 reads label_smoothing
FIGURES = {  # TRL's names in its logs -> ours, with what the row is of before it
    "loss": "loss",
    "grad_norm": "grad_norm",
    "skipped_updates": "skipped_updates",
    "learning_rate": "lr",
    "entropy": "entropy",
    "mean_token_accuracy": "token_accuracy",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "rewards/accuracies": "accuracy",
    "rewards/margins": "margin",
    "logps/chosen": "logprob_chosen",
    "logps/rejected": "logprob_rejected",
    "accuracy": "accuracy",
    "margin": "margin",
    "mean_reward": "reward_mean",
}


def config_of(options: OfflineOptions, writing: Path, dtype: torch.dtype = torch.float32) -> Any:
    """What the trainer is told; it writes checkpoints into `writing`. UserError for `--trl`."""
    micro, has_card = options.micro_batch, torch.cuda.is_available()
    ours: dict[str, Any] = {
        "output_dir": str(writing),
        "per_device_train_batch_size": micro,
        "per_device_eval_batch_size": micro,
        "gradient_accumulation_steps": options.batch_size // micro,
        "learning_rate": options.lr,
        "weight_decay": options.weight_decay,
        "max_grad_norm": options.max_grad_norm,
        "num_train_epochs": options.episodes,
        "max_steps": options.max_steps or -1,
        "seed": options.seed,
        "data_seed": options.seed,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not has_card,
        "bf16": has_card and dtype == torch.bfloat16,
        "fp16": has_card and dtype == torch.float16,
        "gradient_checkpointing": has_card and options.backend != models.UNSLOTH,  # it has its own
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "optim": "adamw_8bit" if has_card else "adamw_torch",
        "dataloader_pin_memory": has_card,
        "max_length": None,
    }
    if isinstance(options, SftOptions) and options.packing:
        ours |= {"packing": True, "max_length": options.max_length, "eval_packing": False}
    if isinstance(options, DpoOptions):
        ours |= {
            "beta": options.beta,
            "loss_type": [options.loss_type],
            "precompute_ref_batch_size": micro,
            "remove_unused_columns": False,  # `LearntOnly` reads more of them than TRL's
        }
    return CONFIGS[type(options)](**{**ours, **given_fields(options)})


def given_fields(options: OfflineOptions) -> dict[str, Any]:
    """The fields of TRL's config that the user sets: name -> value, by JSON. UserError."""
    found: dict[str, Any] = {}
    for text in options.trl:
        name, separator, value = text.partition("=")
        if not separator or name not in ALLOWED[type(options)]:
            is_ours = name in {entry.name for entry in dataclasses.fields(options)}
            known = f"KEY=VALUE sets {', '.join(sorted(ALLOWED[type(options)]))}"
            raise UserError(f"trl {text}: {f'use --{name}' if is_ours else known}")
        words = {"true": True, "false": False, "none": None}
        found[name] = words.get(value.lower(), json_or_text(value))
    if isinstance(options, DpoOptions):
        smoothing = found.get("label_smoothing", 0.0)
        if (options.loss_type == SMOOTHED) != bool(smoothing):
            raise UserError(
                f"trl label_smoothing {smoothing}: it is of --loss_type {SMOOTHED}, which needs it "
                "(the share of pairs that are the wrong way round), and the loss is "
                f"{options.loss_type}"
            )
    return found


class Recorder(TrainerCallback):
    """Hands each finished step to the run; decides when to evaluate, save and stop."""

    def __init__(self, run: Any):
        """`run`: an `offline.run.StageRun`."""
        self.run, self.row = run, dict[str, Any]()

    def on_step_begin(self, args, state, control, **_):
        self.step_began = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        step, options = state.global_step, self.run.options
        is_asked = self.run.is_asked()
        ends = is_asked or step >= state.max_steps
        control.should_log = True
        control.should_evaluate = not is_asked and is_due(step, state.max_steps, options.eval_every)
        control.should_save = ends or step % options.checkpoint_every == 0
        control.should_training_stop = ends
        return control

    def on_log(self, args, state, control, logs=None, **_):
        if logs is None or "loss" not in logs or not state.global_step:
            return
        self.row = {
            "step": state.global_step,
            **{f"train/{name}": logs[key] for key, name in FIGURES.items() if key in logs},
            "train/tokens": int(logs.get("num_tokens", 0)),
            "samples_seen": logs["rows_seen"],
            "epoch": state.epoch,
            "timing/step_s": time.perf_counter() - self.step_began,
            "memory/learner_peak_mb": peak_memory_mb(),
        }
        if not control.should_evaluate:
            self._finish(state)

    def on_evaluate(self, args, state, control, metrics=None, **_):
        name = self.run.tables.evaluation_name
        self.row = {"step": state.global_step, **self.row}
        if metrics:
            self.row |= {
                f"eval/{name}/{ours}": metrics[f"eval_{key}"]
                for key, ours in FIGURES.items()
                if f"eval_{key}" in metrics
            }
            self.row["timing/eval_s"] = metrics["eval_runtime"]
        self._finish(state)

    def _finish(self, state) -> None:
        row, self.row = self.row, {}
        self.run.finished(state.global_step, state.max_steps, row)


def is_due(step: int, last: int, eval_every: int) -> bool:
    return bool(eval_every) and (step >= last or step % eval_every == 0)


def trainer_of(run: Any) -> Any:
    """TRL's trainer over the tables of a `StageRun`, its base loaded. UserError; RunError where
    Unsloth has put trainers of its own in the place of TRL's."""
    options, tables = run.options, run.tables
    silence()
    models.install_plain_head()
    if options.backend == models.UNSLOTH:
        logging.getLogger("unsloth").setLevel(logging.ERROR)
        for kind in (trl.SFTTrainer, trl.DPOTrainer, trl.RewardTrainer):
            if not kind.__module__.startswith("trl.") or hasattr(kind.__init__, "__wrapped__"):
                raise RunError(f"Unsloth has replaced TRL's {kind.__name__}: set --backend peft")
    kept = starting_adapter.folder(options) and starting_adapter.kept(run.folder.path)
    start = Path(kept) if kept else None
    if isinstance(options, RmOptions):
        model = models.reward_model(run.base, options, start)
    else:
        model = models.policy(run.base, options, start, run.group)
    config = config_of(options, run.folder.checkpoints.writing, models.of_lora(options)["dtype"])
    more: dict[str, Any] = {}
    if isinstance(options, DpoOptions):
        config.precompute_ref_log_probs = is_reference_cached(options, model, run)
        pad = run.tokenizer.pad_token_id
        pad = run.tokenizer.eos_token_id if pad is None else pad
        more["data_collator"] = LearntOnly(pad, pad_to_multiple_of=config.pad_to_multiple_of)
    trained = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]
    trainer = TRAINERS[type(options)](
        model=model,
        args=config,
        train_dataset=Dataset.from_list(tables.train),
        eval_dataset=Dataset.from_list(tables.evaluation),
        processing_class=run.tokenizer,
        callbacks=[Recorder(run)],
        run=run,
        **more,
    )
    for parameter, value in zip(trained, before, strict=True):
        parameter.data = value  # over 4 bits TRL makes it bfloat16
    trainer.remove_callback(transformers.PrinterCallback)
    # Its default asks the hub about the base in every checkpoint.
    trainer.model.save_pretrained = partial(
        trainer.model.save_pretrained, save_embedding_layers=False
    )
    if isinstance(options, SftOptions) and options.packing:
        run.view.note(f"{len(tables.train)} rows are in {len(trainer.train_dataset)} packs")
    if getattr(config, "precompute_ref_log_probs", False):
        trainer.model.delete_adapter(OF_REFERENCE)  # its log-probabilities are there
    micro_batches = len(trainer.get_train_dataloader())  # of a pass, whose last step may be shorter
    steps = options.episodes * -(-micro_batches // config.gradient_accumulation_steps)
    trainer.args.max_steps = min(steps, options.max_steps or steps)
    return trainer


def silence() -> None:
    """The terminal is the run's."""
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("trl").setLevel(logging.ERROR)  # it warns of packing, which is tested here
    datasets.disable_progress_bars()
    # PEFT looks for the base under the name that an adapter has for it
    warnings.filterwarnings("ignore", "Could not find a config file in", UserWarning)
    os.environ["TQDM_DISABLE"] = "1"


def is_reference_cached(options: DpoOptions, model: Any, run: Any) -> bool:
    """Whether the reference is computed before the first step; a resumed run keeps to it."""
    if options.learner_shards > 1:  # TRL would name the cache by a hash of all weights
        return False
    if run.checkpoint is not None:
        return not (run.checkpoint / REFERENCE_IS_COPY).exists()
    if options.reference != "auto":
        return options.reference == "cached"
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = (len(run.tables.train), len(run.tables.evaluation))
    reference = stages.Reference.of(options, trained, *sizes)
    run.view.note(reference.line())
    return reference.is_cached


def train(trainer: Any, run: Any) -> None:
    """Evaluates before the first step, or what a stop has left out, then trains to the last."""
    checkpoint, last = run.checkpoint and str(run.checkpoint), trainer.args.max_steps
    is_over = checkpoint is not None and run.step >= last  # all but its end was reached
    evaluates = is_due(run.step, last, run.options.eval_every)
    if checkpoint:
        evaluates = evaluates and not any(row["step"] == run.step for row in run.evaluations())
        if evaluates or is_over:
            trainer._load_from_checkpoint(checkpoint)
            trainer.state.global_step = run.step
    if evaluates:
        trainer.evaluate()
        if checkpoint and run.is_best():
            run.folder.checkpoints.mark_best(run.step)
    if is_over or (evaluates and run.is_asked()):
        return
    # which TRL's checkpoints lack; followers add theirs
    trainer._total_train_tokens = reached(run, "train/tokens")
    trainer.rows_seen = reached(run, "samples_seen")
    trainer.train(resume_from_checkpoint=checkpoint)


def reached(run: Any, name: str) -> int:
    """What a metric that only grows has come to."""
    return max((row[name] for row in run.rows() if is_number(row.get(name))), default=0)

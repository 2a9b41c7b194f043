"""A trainer for a stage, and its loop."""

import logging
import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from datasets import Dataset

from unslothrl.config.hardware import half_precision
from unslothrl.config.offline_options import DpoOptions, OfflineOptions, RmOptions, SftOptions
from unslothrl.embedded import EMBEDDED
from unslothrl.offline import models, plain_head, settings
from unslothrl.offline.trainers import (
    OF_REFERENCE,
    REFERENCE_IS_COPY,
    DpoTrainer,
    Recorder,
    RmTrainer,
    SftTrainer,
    check_trainers,
    is_due,
    kept_in_float32,
)
from unslothrl.planning import stages
from unslothrl.system import stopping
from unslothrl.tracking.metrics import is_number
from unslothrl.weights import portable, starting_adapter

TRAINERS: dict[type, Any] = {SftOptions: SftTrainer, DpoOptions: DpoTrainer, RmOptions: RmTrainer}


def trainer_of(run: Any) -> Any:
    """TRL's trainer over the tables of a `StageRun`, its base loaded. UserError."""
    options, tables = run.options, run.tables
    silence()
    plain_head.install()
    if options.backend == models.UNSLOTH:
        logging.getLogger("unsloth").setLevel(logging.ERROR)
        check_trainers()
    name = EMBEDDED if run.use.base == EMBEDDED else portable.base_name(run.use.base, run.base)
    shape = shape_of(options, name, run.folder.path)
    make = models.reward_model if isinstance(options, RmOptions) else models.policy
    model = make(run.base, shape)
    config = settings.config_of(options, run.folder.checkpoints.writing, shape.dtype)
    if isinstance(options, DpoOptions):
        config.precompute_ref_log_probs = is_reference_cached(options, model, run)
    with kept_in_float32(model), settings.refused(options):
        trainer = TRAINERS[type(options)](
            model=model,
            args=config,
            train_dataset=Dataset.from_list(tables.train),
            eval_dataset=Dataset.from_list(tables.evaluation),
            processing_class=run.tokenizer,
            callbacks=[Recorder(run)],
            run=run,
        )
    trainer.remove_callback(transformers.PrinterCallback)
    # Its default asks the hub about the base in every checkpoint.
    trainer.model.save_pretrained = partial(
        trainer.model.save_pretrained, save_embedding_layers=False
    )
    if isinstance(options, SftOptions) and options.packing:
        run.view.note(f"{len(tables.train)} rows are in {len(trainer.train_dataset)} packs")
    if getattr(config, "precompute_ref_log_probs", False):
        trainer.model.delete_adapter(OF_REFERENCE)  # its log-probabilities are there
    steps = options.episodes * steps_of_epoch(trainer)
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


def shape_of(options: OfflineOptions, name: str, run: Path) -> models.Shape:
    """What is put on the base, which published adapters call `name`, in a run's folder."""
    start = starting_adapter.folder(options) and starting_adapter.kept(run)
    start = start or starting_adapter.folder(options)  # of an earlier version, which kept none
    dtype = options.dtype
    if dtype == "auto":
        has_card = torch.cuda.is_available()
        dtype = half_precision(torch.cuda.get_device_capability() if has_card else None)
    return models.Shape(
        dtype=getattr(torch, dtype),
        rank=options.max_lora_rank,
        alpha=options.lora_alpha,
        dropout=options.lora_dropout,
        seed=options.seed,
        start=Path(start) if start else None,
        name=name,
        backend=options.backend,
        context=options.max_length,
    )


def train(trainer: Any, run: Any) -> None:
    """Evaluates before the first step, or what a stop has left out, then trains to the last."""
    checkpoint, last = run.checkpoint and str(run.checkpoint), trainer.args.max_steps
    is_over = checkpoint is not None and run.step >= last  # all but its end was reached
    evaluates = is_due(run.step, last, run.options.eval_every)
    if checkpoint:
        evaluates = evaluates and not any(row["step"] == run.step for _, row in run.evaluations())
        if evaluates or is_over:
            trainer._load_from_checkpoint(checkpoint)
            trainer.state.global_step = run.step
    if evaluates:
        trainer.evaluate()
        if checkpoint and run.is_best():
            run.folder.checkpoints.mark_best(run.step)
    if is_over or (evaluates and stopping.is_asked()):
        return
    trainer._total_train_tokens = reached(run, "train/tokens")  # which TRL's checkpoints lack
    trainer.rows_seen = reached(run, "samples_seen")
    trainer.train(resume_from_checkpoint=checkpoint)


def reached(run: Any, name: str) -> int:
    """What a metric that only grows has come to."""
    return max((row[name] for row in run.rows() if is_number(row.get(name))), default=0)


def steps_of_epoch(trainer: Any) -> int:
    """Optimiser steps in a pass over the rows, the last of which may have fewer rows."""
    return -(-len(trainer.get_train_dataloader()) // trainer.args.gradient_accumulation_steps)


def is_reference_cached(options: DpoOptions, model: Any, run: Any) -> bool:
    """Whether the reference's log-probabilities are computed before the first step. A run goes on
    as it began, whatever its length is now."""
    if run.checkpoint is not None:
        return not (run.checkpoint / REFERENCE_IS_COPY).exists()
    if options.reference != "auto":
        return options.reference == "cached"
    reference = reference_of(options, model, run.tables)
    run.view.note(reference.line())
    return reference.is_cached


def reference_of(options: DpoOptions, model: Any, tables: Any) -> stages.Reference:
    """What a copy of the adapter takes, and its log-probabilities of the run's pairs."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return stages.Reference.of(options, trained, len(tables.train), len(tables.evaluation))

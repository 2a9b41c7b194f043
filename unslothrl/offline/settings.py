"""TRL's own config of a stage, from our options and the user's `--trl KEY=VALUE`."""

import contextlib
import dataclasses
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

from unslothrl.config.offline_options import DpoOptions, OfflineOptions, RmOptions, SftOptions
from unslothrl.errors import UserError
from unslothrl.text import shown

CONFIGS = {SftOptions: trl.SFTConfig, DpoOptions: trl.DPOConfig, RmOptions: trl.RewardConfig}
UNSLOTH = "unsloth"  # whose checkpointing is on already
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
DIVERGENT = ("sigmoid", "hinge", "ipo", "robust")  # which have a divergence to choose


def config_of(options: OfflineOptions, writing: Path, dtype: torch.dtype) -> Any:
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
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not has_card,
        "bf16": has_card and dtype == torch.bfloat16,
        "fp16": has_card and dtype == torch.float16,
        "gradient_checkpointing": has_card and options.backend != UNSLOTH,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "optim": "adamw_8bit" if has_card else "adamw_torch",
        "dataset_num_proc": None,
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
        }
    given = own(options)
    if isinstance(options, DpoOptions):
        check_loss(options.loss_type, given)
    with refused(options):
        return CONFIGS[type(options)](**{**ours, **given})


@contextlib.contextmanager
def refused(options: OfflineOptions) -> Iterator[None]:
    """Inside it what TRL, transformers or torch raise of the user's `--trl` is a UserError."""
    try:
        yield
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        if not options.trl:
            raise
        said = " ".join(str(error).split())
        raise UserError(f"trl {', '.join(options.trl)}: {said:.200}: leave it out") from None


def check(options: OfflineOptions) -> None:
    """UserError for what `--trl` cannot say; without a base or data. Also for what the optimiser
    refuses, which is made of one number."""
    config = config_of(options, Path(options.output_dir), torch.float32)
    with refused(options):
        make, settings = transformers.Trainer.get_optimizer_cls_and_kwargs(config)
        make([torch.nn.Parameter(torch.zeros(1))], **settings)


def own(options: OfflineOptions) -> dict[str, Any]:
    """The fields of TRL's config that the user sets: name -> value, in JSON where it is JSON.
    UserError for one that is not to be set, and for a value of another type, which TRL takes."""
    allowed, hints = ALLOWED[type(options)], typing.get_type_hints(CONFIGS[type(options)])
    found: dict[str, Any] = {}
    for text in options.trl:
        name, separator, value = text.partition("=")
        if not separator or name not in allowed:
            known = ", ".join(sorted(allowed))
            is_ours = name in {entry.name for entry in dataclasses.fields(options)}
            hint = f"use --{name}" if is_ours else f"KEY=VALUE sets {known}"
            raise UserError(f"trl {text}: {hint}")
        found[name] = parsed(value)
        kinds = typing.get_args(hints[name]) or (hints[name],)
        kinds = (*kinds, int) if float in kinds else kinds
        plain = {bool, int, float, str, types.NoneType}
        if set(kinds) <= plain and type(found[name]) not in kinds:
            wanted = " or ".join(sorted(kind.__name__ for kind in kinds))
            raise UserError(f"trl {name} must be {wanted}, got {shown(found[name])}")
    return found


def parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return {"true": True, "false": False, "none": None}.get(value.lower(), value)


def check_loss(loss: str, given: dict[str, Any]) -> None:
    """UserError for fields that the loss on pairs ignores or cannot have."""
    smoothing = given.get("label_smoothing", 0.0)
    if (loss == SMOOTHED) != bool(smoothing):
        raise UserError(
            f"trl label_smoothing {smoothing}: it is of --loss_type {SMOOTHED}, which needs it "
            f"(the share of pairs that are the wrong way round), and the loss is {loss}"
        )
    divergence = given.get("f_divergence_type", "reverse_kl")
    if divergence != "reverse_kl" and loss not in DIVERGENT:
        raise UserError(
            f"trl f_divergence_type: only --loss_type {', '.join(DIVERGENT)} have one, not {loss}"
        )
    if "f_alpha_divergence_coef" in given and divergence != "alpha_divergence":
        raise UserError("trl f_alpha_divergence_coef: it is of f_divergence_type=alpha_divergence")

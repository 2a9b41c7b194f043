"""TRL's own config of a stage, from our options and the user's `--trl KEY=VALUE`."""

import contextlib
import dataclasses
import json
import math
import traceback
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

from unslothrl.config.offline_options import DpoOptions, OfflineOptions, RmOptions, SftOptions
from unslothrl.config.values import KINDS, nearest
from unslothrl.errors import UserError
from unslothrl.offline import trl_fields
from unslothrl.untrusted import shown

CONFIGS = {SftOptions: trl.SFTConfig, DpoOptions: trl.DPOConfig, RmOptions: trl.RewardConfig}
CACHED = "cached"
UNSLOTH = "unsloth"  # whose checkpointing is on already
SAID = {**KINDS, type(None): "none"}
SIMPLE = {bool, int, float, str, type(None)}  # what can be told without a look into TRL


def config_of(options: OfflineOptions, writing: Path, dtype: torch.dtype) -> Any:
    """What the trainer is told; it writes checkpoints into `writing`. UserError for `--trl`."""
    micro = options.micro_batch
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
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available() and dtype == torch.bfloat16,
        "fp16": torch.cuda.is_available() and dtype == torch.float16,
        "gradient_checkpointing": torch.cuda.is_available() and options.backend != UNSLOTH,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "optim": "adamw_8bit" if torch.cuda.is_available() else "adamw_torch",
        "dataset_num_proc": None,
        "dataloader_pin_memory": torch.cuda.is_available(),
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
    kind = CONFIGS[type(options)]
    given = own(options, kind, ours)
    trl_fields.check_values(options, given, torch.cuda.is_available())
    with refused(options):
        return kind(**{**ours, **given})


@contextlib.contextmanager
def refused(options: OfflineOptions, package: str = "") -> Iterator[None]:
    """Inside it what TRL, transformers or torch raise of the user's `--trl` is a UserError; with
    `package` only what was raised in it, or in what it called."""
    try:
        yield
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        modules = (
            str(f.f_globals.get("__name__")) for f, _ in traceback.walk_tb(error.__traceback__)
        )
        if not options.trl or not any(name.startswith(package) for name in modules):
            raise
        said = " ".join(str(error).split())
        raise UserError(f"trl {', '.join(options.trl)}: {said:.200}: leave it out") from None


def check(options: OfflineOptions) -> None:
    """UserError for what `--trl` cannot say; without a base or data. Also for what the optimiser
    refuses, which is made of one number."""
    config = config_of(options, Path(options.output_dir), torch.float32)
    if not options.trl:
        return
    with refused(options):
        make, settings = transformers.Trainer.get_optimizer_cls_and_kwargs(config)
        make([torch.nn.Parameter(torch.zeros(1))], **settings)


def own(options: OfflineOptions, kind: type, ours: dict[str, Any]) -> dict[str, Any]:
    """The fields of TRL's config that the user sets: name -> value, in JSON where it is JSON.
    UserError for one that it lacks, or that is not to be set: see `trl_fields`."""
    names = {each.name for each in dataclasses.fields(kind) if each.init}
    found: dict[str, Any] = {}
    for text in options.trl:
        name, separator, value = text.partition("=")
        if not separator:
            raise UserError(f"trl {text}: write KEY=VALUE, such as --trl neftune_noise_alpha=5")
        if name not in names:
            near = nearest(name, sorted(names))
            hint = f"did you mean {near}?" if near else f"see the fields of {kind.__name__}"
            raise UserError(f"trl {name}: {kind.__name__} has no such field: {hint}")
        trl_fields.check_name(name, type(options), ours)
        found[name] = typed(name, parsed(value), kind)
    return found


def typed(name: str, value: Any, kind: type) -> Any:
    """The value of a field of TRL's, which does not check it. UserError for one of another type."""
    hint = typing.get_type_hints(kind).get(name)
    types_ = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"trl {name} must be finite, got {value}: set --trl {name}=VALUE")
    if isinstance(value, int) and not isinstance(value, bool) and float in types_:
        return value
    if not set(types_) <= SIMPLE or type(value) in types_:
        return value
    wanted = " or ".join(SAID[each] for each in types_ if each is not None)
    raise UserError(f"trl {name} must be {wanted}, got {shown(value)}: set --trl {name}=VALUE")


def parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return {"true": True, "false": False, "none": None}.get(value.lower(), value)

"""Which fields of TRL's configs `--trl` sets, and why not the others."""

import importlib.util
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from unslothrl.config.offline_options import DpoOptions, OfflineOptions, RmOptions, SftOptions
from unslothrl.errors import UserError
from unslothrl.untrusted import shown

FOR_ALL = {
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

REASONS = (  # why not, words that begin the names of the fields
    (
        "nothing of a run is sent by TRL: copy it with --mirror, track it with --track, push an "
        "adapter with `unslothrl export`",
        "hub_ push_to_hub trackio_ project report_to run_name",
    ),
    (
        "rows are token ids before TRL reads them: see --max_length and the options of columns",
        "dataset_ chat_template_path completion_only_loss eos_token pad_token truncation_mode "
        "shuffle_dataset length_column_name remove_unused_columns label_names train_sampling",
    ),
    ("rows are packed whole, or not at all: use --packing", "packing_ padding_free eval_packing"),
    (
        "checkpoints are the run's own: use --checkpoint_every, --keep_checkpoints and --resume",
        "save_ load_best_ metric_for_best greater_is_better resume_from ignore_data_skip "
        "restore_callback enable_jit_checkpoint output_dir",
    ),
    (
        "evaluations are the run's own: use --eval_every, --eval_dataset and --eval_problems",
        "eval_ do_ batch_eval prediction_loss_only include_for per_device_eval",
    ),
    (
        "metrics are the run's own, of every step: see metrics.jsonl in its folder",
        "log_ logging_ disable_tqdm include_num_input skip_memory debug",
    ),
    (
        "the base and the LoRA are made before TRL gets them: see --model, --dtype and --backend",
        "model_init_kwargs trust_remote_code bf16 fp16 use_cache use_cpu gradient_checkpointing",
    ),
    (
        "the optimiser is AdamW with the settings of --lr, --weight_decay and adam_*",
        "optim",
    ),
    (
        "the learning rate of a step is that of --lr, --lr_schedule, --lr_floor and --warmup_steps",
        "learning_rate lr_scheduler warmup_ratio",
    ),
    (
        "a stage trains on one card, in one process, as its backend does",
        "accelerator_config ddp_ deepspeed fsdp local_rank parallelism_config torch_compile "
        "full_determinism liger_kernel_config dataloader_multiprocessing dataloader_in_order",
    ),
    ("a smaller micro-batch is taken with --train_batch_size or --fit", "auto_find_batch_size"),
    (
        "every row is trained on and evaluated, also those of the last batch",
        "dataloader_drop_last",
    ),
    ("the reference stays what training begins with", "sync_ref_model ref_model_ precompute_ref"),
    ("the reference would be computed with dropout, too", "disable_dropout"),
    ("there is one loss: use --loss_type", "loss_weights discopop_tau"),
    ("this loss has no smoothing of labels", "label_smoothing_factor"),
)

CHOICES = {
    "loss_type": ("nll", "dft"),
    "f_divergence_type": ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"),
}
RANGES = {  # name -> (least, most)
    "dataloader_num_workers": (0, 64),
    "dataloader_prefetch_factor": (1, 1024),
    "label_smoothing_factor": (0, 0.999),
    "ld_alpha": (0, 1),
    "neftune_noise_alpha": (0, 1e3),
    "pad_to_multiple_of": (1, 4096),
    "torch_empty_cache_steps": (1, 1e9),
}
SMOOTHED = "robust"  # the one loss on pairs here in which TRL 1.15 reads label_smoothing
DIVERGENT = ("sigmoid", "hinge", "ipo", "robust")  # which have a divergence to choose


def check_name(name: str, kind: type[OfflineOptions], ours: Mapping[str, Any]) -> None:
    """UserError for a field of TRL's that is not to be set. `ours`: what the options set."""
    if name in {entry.name for entry in fields(kind)}:
        raise UserError(f"trl {name}: it is an option: use --{name}")
    if name in ALLOWED[kind] and name not in ours:
        return
    reason = reason_of(name) or "this is not TRL's to say here: use the option for it"
    raise UserError(f"trl {name}: {reason}: leave it out")


def reason_of(name: str) -> str:
    """Why a field is not to be set, "" where nothing is known of it."""
    found = [reason for reason, words in REASONS if name.startswith(tuple(words.split()))]
    return found[0] if found else ""


def check_values(options: OfflineOptions, given: Mapping[str, Any], has_card: bool) -> None:
    """UserError for a value that TRL would refuse late, or that has no effect."""
    for name, value in given.items():
        if name in CHOICES and value not in CHOICES[name]:
            raise UserError(
                f"trl {name} must be one of {', '.join(CHOICES[name])}, got {shown(value)}: set "
                f"--trl {name}={CHOICES[name][0]}"
            )
        if name in RANGES and value is not None and not in_range(value, *RANGES[name]):
            least, most = RANGES[name]
            raise UserError(
                f"trl {name} must be from {least:g} to {most:g}, got {shown(value)}: set "
                f"--trl {name}=VALUE"
            )
    if given.get("activation_offloading") and not has_card:
        raise UserError("trl activation_offloading: there is no card to offload from: leave it out")
    if given.get("use_liger_kernel") and importlib.util.find_spec("liger_kernel") is None:
        raise UserError(
            "trl use_liger_kernel: liger-kernel is not installed: leave it out, or install it with "
            "`pip install liger-kernel`"
        )
    if given.get("loss_type") == "dft" and given.get("label_smoothing_factor"):
        raise UserError("trl label_smoothing_factor: the loss dft ignores it: leave it out")
    if isinstance(options, DpoOptions):
        check_loss(options.loss_type, given)


def in_range(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and least <= value <= most


def check_loss(loss: str, given: Mapping[str, Any]) -> None:
    """UserError for fields that the loss on pairs ignores or cannot have."""
    smoothing = given.get("label_smoothing", 0.0)
    if loss == SMOOTHED and not 0 < smoothing < 0.5:
        raise UserError(
            f"loss_type {loss}: label_smoothing must be over 0 and under 0.5, got {smoothing} (it "
            "is the share of pairs that are the wrong way round): set --trl label_smoothing=0.1"
        )
    if loss != SMOOTHED and smoothing:
        raise UserError(
            f"trl label_smoothing: the loss {loss} ignores it: leave it out, or set --loss_type "
            f"{SMOOTHED}"
        )
    divergence = given.get("f_divergence_type", "reverse_kl")
    if divergence != "reverse_kl" and loss not in DIVERGENT:
        raise UserError(
            f"trl f_divergence_type: the loss {loss} has none to choose: leave it out, or set "
            f"--loss_type to one of {', '.join(DIVERGENT)}"
        )
    if "f_alpha_divergence_coef" in given and divergence != "alpha_divergence":
        raise UserError(
            "trl f_alpha_divergence_coef: it is that of f_divergence_type=alpha_divergence alone: "
            "leave it out"
        )

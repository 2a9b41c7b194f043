"""Whether a folder holds a plain LoRA that every engine can load and train.

Looked at before a base is loaded: the settings, the weights' header, and every weight, a few
megabytes at a time. What PEFT, vLLM and Unsloth would read differently, or only warn about, is
refused.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from unslothrl.config.options import MOST_ALPHA
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file, is_folder, leads_out
from unslothrl.planning import shapes
from unslothrl.planning.shapes import Shape
from unslothrl.types import LORA_TARGETS
from unslothrl.untrusted import Unreadable, is_utf8, read_object, shown
from unslothrl.weights import safetensors_header
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE
from unslothrl.weights.safetensors_header import Tensor

EXAMPLE = "runs/<run>/adapters/v000030"
MOST_RANK = 512  # of vLLM
LARGEST_WEIGHT = 65_504  # float16's: what a T4 serves
MOST_CONFIG = 1 << 20  # bytes
MOST_WEIGHTS = 16 << 30  # bytes, where the base's sizes are not known
PIECE = 4 << 20  # bytes of a tensor that are looked at together

DTYPES = {"F32": 4, "F16": 2, "BF16": 2}  # bytes
NAME = re.compile(
    r"base_model\.model\.model\.layers\.(0|[1-9][0-9]{0,3})\."
    r"(?:self_attn\.(?=[qkvo]_)|mlp\.(?=gate_|up_|down_))([a-z]+_proj)\.lora_([AB])\.weight"
)
READ = (  # settings with a check of their own, or that change nothing
    "peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora",
    "init_lora_weights", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping",
    "peft_version",
)  # fmt: skip
USUAL = {"bias": "none", "megatron_core": "megatron.core", "qalora_group_size": 16}


@dataclass(frozen=True)
class Lora:
    """What an adapter's settings say."""

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    base: str | None  # what it calls its base


def check(name: str, base: Path) -> Lora:
    """-> what the adapter in the folder `name` is. UserError where it cannot be used on the model
    in the folder `base`: settings, names and shapes of its tensors, every weight."""
    try:
        shape = shapes.read(read_object(base / "config.json", MOST_CONFIG))
    except (KeyError, TypeError, ValueError, ArithmeticError):
        shape = None  # a kind of model whose sizes are not known
    lora = check_settings(name)
    path = expanded(name) / WEIGHTS_FILE
    tensors = header_of(name, path)
    check_tensors(name, lora, tensors, shape)
    check_values(name, path, tensors)
    return lora


def check_format(name: str) -> Lora:
    """What `check` can say before a base is at hand, without the weights."""
    lora = check_settings(name)
    check_tensors(name, lora, header_of(name, expanded(name) / WEIGHTS_FILE), None)
    return lora


def refuse(name: str, what: str) -> NoReturn:
    raise UserError(f"adapter {name}: {what}")


def check_settings(name: str) -> Lora:
    """-> what adapter_config.json says. UserError for what is no plain LoRA."""
    folder = expanded(name)
    if not is_folder(folder):
        refuse(name, "no such folder: check the path")
    for path in folder.iterdir():
        if leads_out(path, folder):
            refuse(name, f"{path.name} is a link that leads out of the folder: copy the file there")
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        if not is_file(folder / file):
            refuse(name, f"no {file} in it: give a folder in PEFT's format, e.g. {EXAMPLE}")
    try:
        settings = read_object(folder / CONFIG_FILE, MOST_CONFIG)
    except Unreadable as error:
        refuse(name, f"{CONFIG_FILE} is damaged ({error}): export it again")
    refuse_what_is_not_plain(name, settings)
    lora = Lora(
        rank=settings.get("r"),  # type: ignore[arg-type]  # checked below
        alpha=settings.get("lora_alpha"),  # type: ignore[arg-type]
        dropout=settings.get("lora_dropout") or 0.0,
        targets=targets_of(name, settings.get("target_modules")),
        base=settings.get("base_model_name_or_path"),
    )
    if type(lora.rank) is not int or not 1 <= lora.rank <= MOST_RANK:
        refuse(name, f"rank r {shown(lora.rank)} must be a whole number from 1 to {MOST_RANK}")
    if not is_number(lora.alpha) or not 0 < lora.alpha <= MOST_ALPHA:
        refuse(name, f"lora_alpha {shown(lora.alpha)} must be over 0 and at most {MOST_ALPHA}")
    if not is_number(lora.dropout) or not 0 <= lora.dropout < 1:
        refuse(name, f"lora_dropout {shown(lora.dropout)} must be at least 0 and under 1")
    if lora.base is not None and not (isinstance(lora.base, str) and is_utf8(lora.base)):
        refuse(name, f"base_model_name_or_path must be text, got {shown(lora.base)}")
    return lora


def is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) < 2**53 and math.isfinite(value)


def refuse_what_is_not_plain(name: str, settings: Mapping[str, Any]) -> None:
    """UserError for every setting that some engine ignores and another obeys."""
    advice = "only a plain LoRA on q, k, v, o, gate, up and down can be served: give one"
    if settings.get("peft_type") != "LORA":
        refuse(name, f"peft_type {shown(settings.get('peft_type'))} is not LORA: {advice}")
    if settings.get("task_type") not in (None, "CAUSAL_LM"):
        refuse(name, f"task_type {shown(settings['task_type'])} is not CAUSAL_LM: {advice}")
    initial = settings.get("init_lora_weights", True)
    if not isinstance(initial, bool) and initial not in ("gaussian", "orthogonal"):
        refuse(
            name, f"init_lora_weights {shown(initial)} changes the base when it is loaded: {advice}"
        )
    for key in ("use_rslora", "inference_mode"):
        if not isinstance(settings.get(key, False), bool):
            refuse(
                name, f"{key} must be true or false, got {shown(settings[key])}: export it again"
            )
    if not isinstance(settings.get("revision") or "", str):
        refuse(name, f"revision must be text, got {shown(settings['revision'])}: export it again")
    for key, value in settings.items():
        if key not in READ and value and value != USUAL.get(key):
            refuse(name, f"it has {shown(key)[1:-1]} {shown(value)}: {advice}")


def targets_of(name: str, targets: Any) -> tuple[str, ...]:
    is_list = isinstance(targets, list) and all(isinstance(target, str) for target in targets)
    if not is_list or not targets:
        refuse(
            name,
            f"target_modules must be a list of {', '.join(LORA_TARGETS)}, got {shown(targets)}: "
            "write their names into it",
        )
    extra = sorted(set(targets) - set(LORA_TARGETS))
    if extra:
        refuse(name, f"it has targets besides the usual seven ({shown(', '.join(extra))[1:-1]})")
    return tuple(target for target in LORA_TARGETS if target in targets)


def header_of(name: str, path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. UserError where it is none, or is cut."""
    try:
        return safetensors_header.read(path)
    except Unreadable as error:
        refuse(name, f"{WEIGHTS_FILE} {error}: export it again")


def check_tensors(
    name: str, lora: Lora, tensors: Mapping[str, Tensor], shape: Shape | None
) -> None:
    """UserError unless there are A [rank, in] and B [out, rank] for every target of every layer."""
    if not tensors:
        refuse(name, f"{WEIGHTS_FILE} holds no tensors: export it again")
    size = max(tensor.end for tensor in tensors.values())
    if shape is None and size > MOST_WEIGHTS:
        refuse(name, f"{WEIGHTS_FILE} has {size:,} bytes, more than any LoRA: export it again")
    present: set[tuple[int, str, str]] = set()
    for key, tensor in tensors.items():
        parts = NAME.fullmatch(key)
        if parts is None or parts[2] not in lora.targets:
            refuse(name, f"tensor {shown(key)} is not of its target_modules: export it again")
        if tensor.dtype not in DTYPES:
            refuse(name, f"tensor {key} is {tensor.dtype}: save it as float32, float16 or bfloat16")
        layer, target, half = int(parts[1]), parts[2], parts[3]
        present.add((layer, target, half))
        check_size(name, key, tensor, lora.rank, expected(lora.rank, target, half, shape))
    layers = shape.layers if shape else 1 + max(layer for layer, _, _ in present)
    wanted = {(i, target, half) for i in range(layers) for target in lora.targets for half in "AB"}
    for layer, target, half in sorted(present ^ wanted):
        has = "lacks" if (layer, target, half) in wanted else "has"
        refuse(
            name,
            f"{WEIGHTS_FILE} {has} lora_{half} for {target} of layer {layer} ({layers} layers are "
            "expected): give a complete adapter of this base",
        )


def expected(rank: int, target: str, half: str, shape: Shape | None) -> tuple[int | None, ...]:
    """The shape of a tensor; None for what is not known."""
    inner: tuple[int | None, int | None] = (None, None)
    if shape is not None:
        inner = shape.linears()[LORA_TARGETS.index(target)]
    return (rank, inner[0]) if half == "A" else (inner[1], rank)


def check_size(
    name: str, key: str, tensor: Tensor, rank: int, wanted: tuple[int | None, ...]
) -> None:
    fits = len(tensor.shape) == 2 and all(
        size == want if want is not None else size > 0
        for size, want in zip(tensor.shape, wanted, strict=True)
    )
    if not fits:
        written = " x ".join("any" if want is None else str(want) for want in wanted)
        got = " x ".join(map(str, tensor.shape)) or "a single number"
        refuse(
            name,
            f"tensor {key} is {got:.60}, not {written} (rank {rank} on this base): give an adapter "
            "of this base",
        )


def check_values(name: str, path: Path, tensors: Mapping[str, Tensor]) -> None:
    """UserError for a weight that is not a number, infinite, or larger than float16 holds."""
    with path.open("rb") as file:
        for key, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
            file.seek(tensor.begin)
            for begin in range(tensor.begin, tensor.end, PIECE):
                data = file.read(min(PIECE, tensor.end - begin))
                bad = first_unusable(data, tensor.dtype)
                if bad is not None:
                    refuse(
                        name,
                        f"tensor {key} holds {bad:g}: its training diverged, give an earlier one",
                    )


def first_unusable(data: bytes, dtype: str) -> float | None:
    """The first weight that is not finite or over LARGEST_WEIGHT, None where there is none."""
    import numpy as np

    if dtype == "BF16":  # the upper half of a float32
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(data, "<f4" if dtype == "F32" else "<f2")
    usable = np.abs(values) <= LARGEST_WEIGHT  # false for what is not a number
    return None if usable.all() else float(values[np.argmin(usable)])

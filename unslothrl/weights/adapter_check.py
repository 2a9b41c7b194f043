"""Whether a folder holds a plain LoRA that every engine can load and train.

Looked at before a base is loaded. What PEFT, vLLM and Unsloth would read differently, or only warn
about, is refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from unslothrl.config.options import MOST_ALPHA
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file, is_folder, leads_out, read_object
from unslothrl.rewards.model import HEAD_FILE, head_of
from unslothrl.text import shown
from unslothrl.weights import base_parts, shapes
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE
from unslothrl.weights.base_model import in_order
from unslothrl.weights.shapes import Shape

EXAMPLE = "runs/<run>/adapters/v000030"
MOST_RANK = 512  # of vLLM
LARGEST_WEIGHT = 65_504  # float16's: what a T4 serves
PLAIN: dict[str, tuple] = {  # settings -> what they may be
    "peft_type": ("LORA",),
    "task_type": (None, "CAUSAL_LM"),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal"),  # the base stays as it is
    "use_rslora": (True, False, None),
    "inference_mode": (True, False, None),
    "bias": ("none", None),
    "megatron_core": ("megatron.core", None),
    "qalora_group_size": (16, None),
}
READ = (  # settings with a check of their own, or that change nothing
    "r", "lora_alpha", "lora_dropout", "target_modules", "base_model_name_or_path", "revision",
    "auto_mapping", "peft_version",
)  # fmt: skip


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
    in the folder `base`, by its settings, tensors, every weight, and a reward model's head."""
    import torch
    from safetensors.torch import load_file

    lora, shape, path = check_settings(name), shapes.shape_of(str(base)), expanded(name)
    with base_parts.reading_tensors(f"adapter {name}", path / WEIGHTS_FILE):
        tensors = load_file(path / WEIGHTS_FILE)
    if shape is not None:
        check_shapes(name, lora, shape, {key: tuple(each.shape) for key, each in tensors.items()})
        if is_file(path / HEAD_FILE) and (size := head_of(path)) != shape.hidden:
            refuse(name, f"its head reads {size} numbers, and the base gives {shape.hidden}")
    for key, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            refuse(name, f"tensor {key} is {tensor.dtype}: save it as float32, float16 or bfloat16")
        largest = tensor.abs().max().item()
        if not largest <= LARGEST_WEIGHT:  # nor is it not a number
            refuse(name, f"tensor {key} holds {largest:g}: its training diverged, give an earlier")
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
    settings = read_object(folder / CONFIG_FILE)
    for key, value in {"peft_type": None, **settings}.items():
        if (key in PLAIN and value not in PLAIN[key]) or (value and key not in {*PLAIN, *READ}):
            advice = "only a plain LoRA on linear layers can be served"
            refuse(name, f"it has {shown(key)[1:-1]} {shown(value)}: {advice}")
    rank: Any = settings.get("r")
    alpha: Any = settings.get("lora_alpha")
    dropout: Any = settings.get("lora_dropout") or 0.0
    targets: Any = settings.get("target_modules")
    base = settings.get("base_model_name_or_path")
    is_list = isinstance(targets, list) and targets and all(map(is_name, targets))
    for is_right, key, wanted in (
        (type(rank) is int and 1 <= rank <= MOST_RANK, "r", f"whole, from 1 to {MOST_RANK}"),
        (type(alpha) in (int, float) and 0 < alpha <= MOST_ALPHA, "lora_alpha",
         f"over 0 and at most {MOST_ALPHA}"),
        (type(dropout) in (int, float) and 0 <= dropout < 1, "lora_dropout", "from 0 and under 1"),
        (is_list, "target_modules", "a list of names of linear layers, such as q_proj"),
        (base is None or isinstance(base, str), "base_model_name_or_path", "text"),
    ):  # fmt: skip
        if not is_right:
            refuse(name, f"{key} must be {wanted}, got {shown(settings.get(key))}")
    return Lora(rank, alpha, dropout, tuple(in_order(targets)), base)


def is_name(target: Any) -> bool:
    return isinstance(target, str) and target.isidentifier()


def check_shapes(name: str, lora: Lora, shape: Shape, found: dict[str, tuple[int, ...]]) -> None:
    """UserError unless there are A [rank, in] and B [out, rank] for every target of every layer."""
    wanted, linears = {}, shape.linears()
    if unknown := sorted(set(lora.targets) - {path.rpartition(".")[2] for path in linears}):
        refuse(name, f"it has targets that no layer of the base is called ({', '.join(unknown)})")
    for path, (inner, outer) in linears.items():
        if path.rpartition(".")[2] in lora.targets:
            module = f"base_model.model.model.{path}"
            wanted[f"{module}.lora_A.weight"] = (lora.rank, inner)
            wanted[f"{module}.lora_B.weight"] = (outer, lora.rank)
    for key in sorted(wanted.keys() ^ found.keys()):
        has = "lacks" if key in wanted else "has"
        expected = f"{shape.layers} layers of {', '.join(lora.targets)}"
        refuse(name, f"{WEIGHTS_FILE} {has} tensor {shown(key, 120)}: {expected} are expected")
    for key, size in wanted.items():
        if found[key] != size:
            refuse(name, f"tensor {key} is {found[key]}, not {size}: it is of another base")

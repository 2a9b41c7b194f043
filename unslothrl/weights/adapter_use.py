"""What it takes to use an adapter besides its weights: unslothrl.json, which lies beside them.

PEFT, vLLM and Unsloth ignore the file. Where it is, an adapter answers the same wherever its folder
is copied to. The folder is complete: it also has the tokenizer, and the base itself where no hub
has that.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unslothrl import __version__
from unslothrl.checkpoints import store
from unslothrl.config.options import Config
from unslothrl.embedded import BASES
from unslothrl.errors import UserError
from unslothrl.files import Unreadable, exists, expanded, is_file, is_folder, read_object
from unslothrl.text import shown
from unslothrl.weights.adapter import CONFIG_FILE, Beside, with_base
from unslothrl.weights.base_parts import tokenizer_files

USE_FILE = "unslothrl.json"
FORMAT = 1  # of the file
MOST_NEW_TOKENS = 1 << 20
MODEL = ("config.json", "generation_config.json")
BASE_FOLDER = "base"  # in an adapter's folder: the embedded base
POLICY, REWARD_MODEL = "policy", "reward_model"  # kinds of adapters


@dataclass(frozen=True)
class Use:
    """What the run told the model and how it was evaluated."""

    base: str  # hub id, folder, or embedded
    system_prompt: str  # "": none
    chat_template: str | None = None  # None: the base's own
    temperature: float = 0.6
    top_p: float = 0.95
    max_new_tokens: int = 1200
    base_hash: str = ""  # of the 4-bit weights that it was trained over; "": not known
    kind: str = POLICY
    stages: tuple[str, ...] = ()  # that have trained it, the oldest first, a line each
    base_parts: dict[str, str] = field(default_factory=dict)  # see there; {}: not recorded


def of_run(config: Config, system_prompt: str, tokenizer: Any) -> Use:
    return replace(
        of_base(config.model, system_prompt, tokenizer),
        temperature=config.eval_temperature,
        top_p=config.eval_top_p,
        max_new_tokens=config.max_new_tokens,
    )


def of_base(model: str, system_prompt: str, tokenizer: Any) -> Use:
    """How adapters over a base are used where nothing has been drawn from them yet."""
    is_folder = model not in BASES and exists(model)
    template = tokenizer.chat_template  # some models have several, by name
    return Use(
        base=str(expanded(model).resolve()) if is_folder else model,
        system_prompt=system_prompt,
        chat_template=template if isinstance(template, str) else None,
    )


def to_json(use: Use) -> str:
    """The content of unslothrl.json."""
    head = {"format": FORMAT, "unslothrl": __version__}
    return json.dumps({**head, **asdict(use)}, indent=2, ensure_ascii=False) + "\n"


def read(folder: Path) -> Use | None:
    """What lies beside an adapter's weights, None where nothing does. UserError if damaged."""
    path = folder / USE_FILE
    if not exists(str(path)):
        return None
    values = read_object(path)
    try:
        if values.get("format") != FORMAT:
            found = shown(values.get("format"))
            raise Unreadable(f"its format is {found}, this version reads {FORMAT}")
        known = {name: values[name] for name in values if name in Use.__dataclass_fields__}
        return store.decoded(Use, known)
    except (ValueError, TypeError) as error:  # the latter where something is missing
        raise UserError(
            f"adapter {folder}: {USE_FILE} is damaged ({error}): copy it again, or remove it"
        ) from None


def check_policy(folder: Path) -> None:
    """UserError for an adapter that was not trained to answer."""
    use = read(folder)
    if use is not None and use.kind == REWARD_MODEL:
        raise UserError(f"adapter {folder} is a reward model: use it with --reward rm:{folder}")


def beside(use: Use, base: Path, card: Callable[[int], str] | None = None) -> Beside:
    """What lies beside every adapter over the checkpoint `base`: PEFT alone can load it."""
    files = {path.name: path for path in tokenizer_files(base)}
    if use.base in BASES:
        kept = [path for path in base.iterdir() if path.name in MODEL or path in files.values()]
        kept += base.glob("*.safetensors")
        files |= {f"{BASE_FOLDER}/{path.name}": path for path in kept}
    return Beside(
        contents={USE_FILE: to_json(use).encode()},
        files=files,
        base=BASE_FOLDER if use.base in BASES else None,
        card=card,
    )


def check_target(folder: Path) -> None:
    """UserError for a folder in which `copy_adapter` could replace files that are no adapter's."""
    is_new = not exists(str(folder)) or (is_folder(folder) and not any(folder.iterdir()))
    if not is_new and not is_file(folder / CONFIG_FILE):
        raise UserError(f"lora_save_path {folder} is a file, or holds other files: set a new one")


def copy_adapter(source: Path, target: Path) -> None:
    """A saved adapter's folder in another place, into a folder that may be there already."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    if (target / BASE_FOLDER).is_dir():
        base = str((target / BASE_FOLDER).absolute())
        config = with_base((target / CONFIG_FILE).read_text("utf-8"), base)
        (target / CONFIG_FILE).write_text(config, encoding="utf-8")


def base_name(base: str, folder: Path) -> str:
    """What PEFT's settings call the base of an adapter that lies in `folder`."""
    if base in BASES:
        return str(folder.absolute() / BASE_FOLDER)
    return str(expanded(base).resolve()) if exists(base) else base

"""What makes an adapter's folder complete wherever it is copied to: the tokenizer, how it is used,
and the base itself where no hub has it."""

import shutil
from collections.abc import Callable
from pathlib import Path

from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_file, is_folder
from unslothrl.weights import adapter_use
from unslothrl.weights.adapter import CONFIG_FILE, Beside, with_base
from unslothrl.weights.adapter_use import Use
from unslothrl.weights.base_parts import tokenizer_files

MODEL = ("config.json", "generation_config.json")
BASE_FOLDER = "base"  # in an adapter's folder: the embedded base


def beside(use: Use, base: Path, card: Callable[[int], str] | None = None) -> Beside:
    """What lies beside every adapter that was trained over the checkpoint `base`. The folder then
    loads with PEFT alone."""
    files = {path.name: path for path in tokenizer_files(base)}
    if use.base == EMBEDDED:
        kept = [path for path in base.iterdir() if path.name in MODEL or path in files.values()]
        kept += base.glob("*.safetensors")
        files |= {f"{BASE_FOLDER}/{path.name}": path for path in kept}
    return Beside(
        texts={adapter_use.USE_FILE: adapter_use.to_json(use)},
        files=files,
        base=BASE_FOLDER if use.base == EMBEDDED else None,
        card=card,
    )


def check_target(folder: Path) -> None:
    """UserError for a folder in which `copy_adapter` could replace files that are no adapter's."""
    if is_folder(folder) and any(folder.iterdir()) and not is_file(folder / CONFIG_FILE):
        raise UserError(f"lora_save_path {folder}: the folder holds other files: set a new one")


def copy_adapter(source: Path, target: Path) -> None:
    """A saved adapter's folder in another place, into a folder that may be there already."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    if (target / BASE_FOLDER).is_dir():
        base = str((target / BASE_FOLDER).absolute())
        config = with_base((target / CONFIG_FILE).read_text("utf-8"), base)
        (target / CONFIG_FILE).write_text(config, encoding="utf-8")


def base_name(base: str, folder: Path) -> str:
    """What PEFT's settings call the base of an adapter that lies in `folder`."""
    if base == EMBEDDED:
        return str(folder.absolute() / BASE_FOLDER)
    return str(expanded(base).resolve()) if exists(base) else base


def is_hub_id(base: str) -> bool:
    """Whether a base is known to everybody by its name."""
    is_name = base.count("/") == 1 and not base.startswith((".", "/", "~"))
    return is_name and base != EMBEDDED and not exists(base)

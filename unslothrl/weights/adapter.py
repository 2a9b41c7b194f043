"""Adapter versions on disk: PEFT's format, written whole or not at all."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from unslothrl.files import replace_folder, write_whole
from unslothrl.types import Adapter

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """What the versions of a run have in common."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # (PEFT's name, shape), in order
    config: str  # the content of adapter_config.json


def write_adapter(adapter: Adapter, parent: Path, beside: Mapping[str, str] = EMPTY) -> Path:
    """Writes `parent`/v000012 for version 12 and returns it; replaces what stood there.

    `beside` has the names and texts of further files.
    """
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / f"v{adapter.version:06d}"
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=".writing-"))
    try:
        temporary.chmod(0o755)
        write_whole(temporary / CONFIG_FILE, adapter.config.encode())
        write_whole(temporary / WEIGHTS_FILE, adapter.weights)
        for name, text in beside.items():
            write_whole(temporary / name, text.encode())
        replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target

"""Adapter versions on disk: PEFT's format, written whole or not at all."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unslothrl.files import replace_folder, write_whole
from unslothrl.policy_version import Adapter

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
CARD_FILE = "README.md"


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """What the versions of a run have in common."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # (PEFT's name, shape), in order
    config: str  # the content of adapter_config.json


@dataclass(frozen=True)
class Beside:
    """What lies in the folder of every adapter of a run besides its settings and weights."""

    texts: Mapping[str, str] = field(default_factory=dict)  # name -> content
    files: Mapping[str, Path] = field(default_factory=dict)  # name, folder/name -> its source
    contents: Mapping[str, bytes] = field(default_factory=dict)  # name -> content
    base: str | None = None  # the folder among them that has the adapter's base
    card: Callable[[int], str] | None = None  # the model card of a version


NOTHING = Beside()


def write_adapter(
    adapter: Adapter, parent: Path, beside: Beside = NOTHING, earlier: Path | None = None
) -> Path:
    """Writes `parent`/v000012 for version 12 and returns it; replaces what stood there.

    What does not change is linked from `earlier`, another version's folder with the same files, so
    that a tokenizer of megabytes is on the disk once for a run.
    """
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / f"v{adapter.version:06d}"
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=".writing-"))
    try:
        temporary.chmod(0o755)
        config = adapter.config
        if beside.base is not None:
            config = with_base(config, str(target.absolute() / beside.base))
        write_whole(temporary / CONFIG_FILE, config.encode())
        write_whole(temporary / WEIGHTS_FILE, adapter.weights)
        for name, source in beside.files.items():
            link_or_copy(source, earlier and earlier / name, temporary / name)
        for name, text in beside.texts.items():
            write_whole(temporary / name, text.encode())
        for name, content in beside.contents.items():
            write_whole(temporary / name, content)
        if beside.card is not None:
            write_whole(temporary / CARD_FILE, beside.card(adapter.version).encode())
        replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def with_base(config: str, base: str) -> str:
    """The content of adapter_config.json, with another name of the base."""
    settings = {**json.loads(config), "base_model_name_or_path": base}
    return json.dumps(settings, indent=2, sort_keys=True)


def link_or_copy(source: Path, linked: Path | None, target: Path) -> None:
    """`target` becomes another name of the file `linked` where there is one and the disk can do
    that, else a copy of `source`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if linked is not None:
        with contextlib.suppress(OSError):
            os.link(linked, target)
            return
    write_whole(target, source.read_bytes())

"""Which adapter a command is given, a folder of its own or a run's, and the base under it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.config.parts import half_precision
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file, is_folder, newest_numbered
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.tracking.run_folder import ADAPTERS, CONFIG
from unslothrl.weights import adapter_check, adapter_use, base_model, base_parts
from unslothrl.weights.adapter_use import Use
from unslothrl.weights.base_model import Stage

BASE, ADAPTER = "base", "adapter"  # policies


@dataclass(frozen=True)
class Found:
    """An adapter, the run that it is of, if it lies in one, and what its folder says of its use."""

    folder: Path
    run: Path | None
    use: Use | None

    @property
    def title(self) -> str:
        name = self.folder.name
        return name if self.run is None else f"{self.run.resolve().name} {name}"


def find(adapter: str, any_kind: bool = False) -> Found:
    """An adapter's folder, or that of a run, whose newest adapter is taken. UserError, also for a
    reward model unless it may be `any_kind`."""
    folder, run = expanded(adapter), None
    if is_folder(folder / ADAPTERS) or is_file(folder / CONFIG):
        run, newest = folder, newest_numbered(folder / ADAPTERS, "v")
        if newest is None:
            raise UserError(f"adapter {adapter}: this run has saved none yet")
        folder = newest
    elif is_file(folder.resolve().parent.parent / CONFIG):
        run = folder.resolve().parent.parent
    adapter_check.check_settings(str(folder))
    if not any_kind:
        adapter_use.check_policy(folder)
    return Found(folder, run, adapter_use.read(folder))


def base_of(found: Found, model: str | None) -> str:
    """What its base is called: `model`, else what its files say. UserError where nothing does."""
    settings = adapter_check.check_settings(str(found.folder))
    name = model or (settings.base if found.use is None else found.use.base)
    if not name:
        raise UserError(f"adapter {found.folder}: it does not name its base: set --model")
    return name


def base_under(found: Found, model: str, stage: Stage = base_model.say) -> Path:
    """The 4-bit checkpoint of `model`. UserError where an adapter does not fit on it, or was
    trained over another one. `stage`: see `base_model.prepare`."""
    adapter_check.check(str(found.folder), base_model.find(model, weights=False))
    recorded = {} if found.use is None else found.use.base_parts
    if changed := base_parts.differing(recorded, base_parts.of(base_model.find(model))):
        raise UserError(
            f"model {model} is not the base that adapter {found.folder} was trained on, by its "
            f"{changed}: set --model to a copy of that"
        )
    return base_model.prepare(model, stage)


@dataclass(frozen=True)
class Source(Found):
    """An adapter with its base."""

    name: str  # the base's: a hub id, a folder, embedded
    base: Path  # the 4-bit checkpoint

    def tokenizer(self, needs_template: bool = False) -> Any:
        """With the chat template of its run."""
        tokenizer = base_model.load_tokenizer(self.base, needs_template=needs_template)
        if self.use is not None and self.use.chat_template is not None:
            tokenizer.chat_template = self.use.chat_template
        return tokenizer


def source_of(found: Found, model: str | None) -> Source:
    """The adapter with its base. UserError where they do not fit together."""
    name = base_of(found, model)
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    return Source(found.folder, found.run, found.use, name, base_under(found, name))


def half_here() -> Any:
    """The 16-bit type of torch that this machine computes in."""
    import torch

    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    return getattr(torch, half_precision(capability))

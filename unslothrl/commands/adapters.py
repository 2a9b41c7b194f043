"""Which adapter a command is given, a folder of its own or a run's, and the base under it."""

from dataclasses import dataclass
from pathlib import Path

from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file, is_folder, newest_numbered
from unslothrl.tracking.run_folder import ADAPTERS, CONFIG
from unslothrl.weights import adapter_check, adapter_use, base_model, base_parts
from unslothrl.weights.base_model import Stage


@dataclass(frozen=True)
class Found:
    """An adapter, and the run that it is of, if it lies in one."""

    folder: Path
    run: Path | None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def title(self) -> str:
        return self.name if self.run is None else f"{self.run.resolve().name} {self.name}"


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
    adapter_check.check_format(str(folder))
    if not any_kind:
        adapter_use.check_policy(folder)
    return Found(folder, run)


def base_of(found: Found, model: str | None) -> str:
    """What an adapter's base is called: `model`, else what lies beside its weights says. UserError
    where nothing does."""
    use = adapter_use.read(found.folder)
    settings = adapter_check.check_settings(str(found.folder))
    name = model or (use.base if use is not None else settings.base)
    if not name:
        raise UserError(f"adapter {found.folder}: it does not name its base: set --model")
    return name


def base_under(found: Found, model: str, stage: Stage | None = None) -> Path:
    """The 4-bit checkpoint of `model`. UserError where an adapter does not fit on it, or was
    trained over another one. `stage`: see `base_model.prepare`."""
    adapter_check.check(str(found.folder), base_model.find(model, weights=False))
    use, source = adapter_use.read(found.folder), base_model.find(model)
    recorded = {} if use is None else use.base_parts
    if changed := base_parts.differing(recorded, base_parts.of(source)):
        raise UserError(
            f"model {model} is not the base that adapter {found.folder} was trained on, by its "
            f"{changed}: set --model to a copy of that"
        )
    return base_model.prepare(model, stage)

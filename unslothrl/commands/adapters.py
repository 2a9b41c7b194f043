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
    check = (lambda folder: None) if any_kind else adapter_use.check_policy
    folder = expanded(adapter)
    if is_folder(folder / ADAPTERS) or is_file(folder / CONFIG):
        newest = newest_numbered(folder / ADAPTERS, "v")
        if newest is None:
            raise UserError(f"adapter {adapter}: this run has saved none yet")
        adapter_check.check_format(str(newest))
        check(newest)
        return Found(newest, folder)
    adapter_check.check_format(adapter)
    check(folder)
    run = folder.resolve().parent.parent
    return Found(folder, run if (run / CONFIG).is_file() else None)


def base_of(found: Found, model: str | None) -> str:
    """What an adapter's base is called: `model`, else what lies beside its weights says. UserError
    where nothing does."""
    use = adapter_use.read(found.folder)
    settings = adapter_check.check_settings(str(found.folder))
    name = model or (use.base if use is not None else settings.base)
    if not name:
        raise UserError(f"adapter {found.folder}: it does not name its base: set --model")
    return name


def base_under(found: Found, model: str, stage: Stage | None = None) -> tuple[Path, list[str]]:
    """-> (the 4-bit checkpoint of `model`, notes). UserError where an adapter does not fit on it,
    or was trained over another one. `stage`: see `base_model.prepare`."""
    adapter_check.check(str(found.folder), base_model.find(model, weights=False))
    use, source = adapter_use.read(found.folder), base_model.find(model)
    if use is None:
        return base_model.prepare(model, stage), []
    if changed := base_parts.differing(use.base_parts, base_parts.of(source)):
        raise another(model, found, changed)
    base = base_model.prepare(model, stage)
    if use.base_parts:
        return base, []
    notes = [
        f"adapter {found.folder}: an earlier version trained it, which recorded "
        f"{'only the 4-bit weights' if use.base_hash else 'nothing'} of its base: the rest is not "
        "compared"
    ]
    if use.base_hash and four_bit_hash(base) != use.base_hash:
        if model != use.base or base == source:
            raise another(model, found, base_parts.WEIGHTS)
        notes.append(f"base {model}: its 4-bit weights are not those that the adapter was trained "
                     "over, by a little where another kind of machine has quantised it, by much "
                     "where it is another model")  # fmt: skip
    return base, notes


def four_bit_hash(base: Path) -> str:
    from unslothrl.weights.published import PackedWeights  # and torch

    return base_model.fingerprint(PackedWeights(base).in_order())


def another(model: str, found: Found, changed: str) -> UserError:
    return UserError(
        f"model {model} is not the base that adapter {found.folder} was trained on, by its "
        f"{changed}: set --model to a copy of that"
    )

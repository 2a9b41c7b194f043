"""From what the user gave to a config that can run.

Later layers win: the defaults, the tiny-cpu recipe where the base is the embedded one, the config
of the run that is resumed, `--recipe FILE.toml`, the flags. What none of the last three gives may
be changed by `planning.fit` so that it fits the machine.
"""

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unslothrl import option_rules, rewards
from unslothrl.algorithms import objectives
from unslothrl.config.checks import check
from unslothrl.config.options import OPTIONS, Config
from unslothrl.config.parts import objective_of, with_objective, without_parts_of
from unslothrl.config.reading import (
    EMBEDDED_RECIPE,
    RECIPES,
    read_recipe,
    read_toml,
    read_value,
)
from unslothrl.data import sources
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_file
from unslothrl.planning import fit
from unslothrl.planning.machine import Machine
from unslothrl.weights import adapter_check
from unslothrl.weights.adapter_check import Lora

PATHS = ("adapter", "lora_save_path", "output_dir", "resume")  # written with ~ or without

LORA_SHAPE = ("model", "adapter", "max_lora_rank", "lora_alpha")  # what a checkpoint hangs on


@dataclass(frozen=True)
class Resolved:
    """A config that can run: `given` names what the user set, `notes` what was changed to fit."""

    config: Config
    given: frozenset[str]
    notes: tuple[str, ...]


def resolve(flags: Mapping[str, Any], machine: Machine | None = None) -> Resolved:
    """The config of a run from its flags (name -> value, as text or typed). Raises UserError.

    What can be checked without looking at the machine is checked first; without `machine`, it is
    then looked at.
    """
    flags = {name: read_value(name, value) for name, value in flags.items()}
    recipe = {} if flags.get("recipe") is None else read_recipe(flags["recipe"])
    said = _said(flags, recipe)
    user = _user_layers(flags, recipe)
    given = frozenset(user) - {"recipe", "resume"}
    defaults = Config()
    check_paths(replace(defaults, **user))
    objectives.load(replace(defaults, **user).learner)
    rewards.choose(replace(defaults, **user).reward)
    machine = machine or Machine.detect()
    if fit.needs_hub(given, machine):
        machine = machine.look_for_hub()
    model, dataset = fit.default_task(machine)
    layers = {"model": model, "dataset": dataset, **user}
    if layers["model"] == EMBEDDED:
        tiny = read_recipe(EMBEDDED_RECIPE)
        if "episodes" in given and layers["dataset"] != EMBEDDED:
            del tiny["max_steps"]  # the user counts in episodes
        layers = {**layers, **tiny, **user}
    config, adapter = with_adapter(replace(defaults, **layers), said)
    config, notes = fit.fit(config, given, machine)
    if "topk" not in given:
        config = replace(config, topk=min(config.topk, config.num_candidates))
    config = with_objective(config)
    check(config)
    facts = option_rules.Facts(config, objective_of(config), machine, adapter)
    named = name_run(config)
    if config.run_name not in (None, named.run_name) and config.resume is None:
        notes = [*notes, f"run_name {config.run_name} -> {named.run_name}: it is taken"]
    return Resolved(named, given, (*notes, *option_rules.notes(said, facts)))


def _said(flags: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the user asked for: the flags, and what a recipe of the user's own changes.

    The config.toml of a run is a recipe too, and names every option.
    """
    if flags.get("recipe") in RECIPES:
        recipe = {}
    changed = without_parts_of(recipe)
    changed = {name: v for name, v in changed.items() if v != OPTIONS[name].default}
    return {**changed, **flags}


def with_adapter(config: Config, said: Mapping[str, Any]) -> tuple[Config, Lora | None]:
    """-> (the config with the LoRA's shape of the adapter that it starts from, that adapter)."""
    if config.adapter is None:
        return config, None
    found = adapter_check.check_settings(config.adapter)
    if said.get("max_lora_rank", found.rank) < found.rank:
        raise UserError(
            f"max_lora_rank {said['max_lora_rank']}: adapter {config.adapter} has rank "
            f"{found.rank}: set --max_lora_rank {found.rank}, or leave it out"
        )
    return replace(config, max_lora_rank=found.rank, lora_dropout=found.dropout), found


def _user_layers(flags: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Resumed run < recipe < flags, joined."""
    if flags.get("learner", recipe.get("learner")) != recipe.get("learner"):
        recipe = without_parts_of(recipe)
    user = {**recipe, **flags}
    if user.get("resume") is not None:
        folder = expanded(user["resume"])
        if not is_file(folder / "config.toml"):
            raise UserError(
                f"resume must be a run's folder, got {user['resume']} (it has no config.toml): "
                "set --resume runs/<run_name>"
            )
        before = read_toml(folder / "config.toml")
        _check_unchanged(before, user)
        if user.get("learner", before.get("learner")) != before.get("learner"):
            before = without_parts_of(before)
        where = {"run_name": folder.resolve().name, "output_dir": str(folder.parent)}
        user = {**before, **user, **where}
    if objectives.is_file(user.get("learner") or ""):
        user["learner"] = str(expanded(user["learner"]).absolute())  # workers read it too
    if "reward" in user:
        user["reward"] = tuple(map(_absolute_reward, user["reward"]))
    return {
        name: str(expanded(value)) if name in PATHS and value is not None else value
        for name, value in user.items()
    }


def _absolute_reward(text: str) -> str:
    """A reward of the user's own by its whole path: workers read it too."""
    file, separator, rest = text.partition(".py:")
    return str(expanded(file).absolute()) + separator + rest if separator else text


def _check_unchanged(before: Mapping[str, Any], user: Mapping[str, Any]) -> None:
    """Raises UserError where a resumed run would need another checkpoint than its own."""
    for name in LORA_SHAPE:
        if name in user and user[name] != before.get(name):
            raise UserError(
                f"{name} {user[name]}: the run that is resumed has {before.get(name, 'none')}, and "
                f"its checkpoint is of that: leave --{name} out, or start a new run"
            )
    learner, was = user.get("learner"), before.get("learner", Config.learner)
    if learner and objectives.load(learner).has_critic != objectives.load(was).has_critic:
        raise UserError(
            f"learner {learner}: the run that is resumed has {was}, and only one of them has a "
            "critic: leave --learner out, or start a new run"
        )


def check_paths(config: Config) -> None:
    """Raises UserError for a local file or folder that is not there, or not what it must be."""
    if _is_path(config.model) and not exists(config.model):
        raise UserError(f"model {config.model}: no such file or folder: check the path")
    named = [text for text in sources.eval_sources(config).values() if text is not None]
    for name, text in [("dataset", config.dataset), *(("eval_dataset", text) for text in named)]:
        source = sources.parse(text)
        if source.is_local and not exists(source.name):
            raise UserError(f"{name} {source.name}: no such file or folder: check the path")
    if config.adapter is not None:
        adapter_check.check_format(config.adapter)
    for name in ("output_dir", "lora_save_path"):
        value = getattr(config, name)
        if value is not None and exists(value) and not Path(value).is_dir():
            raise UserError(f"{name} {value} is a file: set --{name} to a folder")
    if config.run_name is not None and not re.fullmatch(r"[\w][\w.+=@-]{0,99}", config.run_name):
        raise UserError(
            "run_name must be at most 100 letters, digits and . _ - + = @, got "
            f"{config.run_name[:120]!r}: set --run_name and put folders into --output_dir"
        )


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~"))


def name_run(config: Config) -> Config:
    """The config with a run name whose folder is still free, unless it continues a run."""
    if config.resume is not None:
        return config
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    wanted = config.run_name or f"{Path(config.learner).stem}-{now}"
    name, number = wanted, 1
    while exists(str(Path(config.output_dir) / name)):
        number += 1
        name = f"{wanted}-{number}"
    return replace(config, run_name=name)

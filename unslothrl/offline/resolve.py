"""The options of a stage, from recipe, flags and the run that is resumed."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unslothrl.config.checks import check_system_prompt
from unslothrl.config.offline_options import TABLES, OfflineOptions, RmOptions, SftOptions
from unslothrl.config.reading import COMMAND, RECIPES, read_recipe, read_toml
from unslothrl.config.resolve import (
    check_folders,
    check_source,
    check_start,
    in_full,
    newest_of_run,
)
from unslothrl.config.values import Table, read_value, toml_value
from unslothrl.data import sources
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_file
from unslothrl.mirror import address
from unslothrl.planning import fit, stages
from unslothrl.planning.machine import Machine
from unslothrl.redaction import redacted_values
from unslothrl.rewards import model as judge
from unslothrl.runs import resume
from unslothrl.tracking.run_folder import CONFIG, free_name
from unslothrl.weights import adapter_check, adapter_use, starting_adapter

MAY_CHANGE = {  # in a resume: where it is, its length, what it writes
    "resume", "recipe", "output_dir", "run_name", "max_steps", "episodes", "track", "project_name",
    "save_every", "checkpoint_every", "keep_checkpoints", "mirror", "lora_save_path",
    "train_batch_size", "fit",
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """What is to be run: the command's name, its options, and what the user set of them."""

    command: str
    options: OfflineOptions
    recipe: dict[str, Any]
    notes: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()  # what the user set, or the run that is resumed has


def resolve(
    command: str,
    flags: Mapping[str, Any],
    fetch: resume.Fetch | None = None,
    machine: Machine | None = None,
) -> Stage:
    """`fetch`: see `resuming.found`. Without `machine` this one is looked at, where no model is
    given. Raises UserError."""
    table = TABLES[command]
    notes: list[str] = []
    flags = {name: read_value(name, value, table=table) for name, value in flags.items()}
    recipe = {} if flags.get("recipe") is None else read_recipe(flags["recipe"], table)
    user = in_full({**recipe, **flags})
    asked = {**user, COMMAND: command}  # two commands may be given the same options
    output_dir = str(expanded(str(user.get("output_dir", OfflineOptions.output_dir))))
    user |= resume.found(asked, output_dir, notes, fetch)
    if user.get("mirror") is not None:
        user["mirror"] = address.canonical("mirror", user["mirror"])
    if user.get("resume"):
        same = resume.as_begun(user["resume"], user) - MAY_CHANGE
        user = {name: value for name, value in user.items() if name not in same}
    if user.get("adapter") is not None:
        user["adapter"] = newest_of_run(user["adapter"])
    if user.get("resume") is not None:
        path = config_file(user["resume"])
        resume.check_command(path, command)
        before = read_toml(path, table)
        check_unchanged(before, user)
        user = {**before, **user, **place_of(user["resume"])}
    user = starting_adapter.with_base(user, notes)
    if user.get("dataset", EMBEDDED) == EMBEDDED:  # whose rows are its own base's
        user.setdefault("model", EMBEDDED)
    options = table.config(**user)
    if "model" not in user:
        options = with_model(options, machine or Machine.detect(), notes)
    requested = requested_options(flags, recipe, table)
    options = with_adapter(options, requested, notes)
    notes += notes_on_dropout(options, requested)
    if requested.get("lr_floor") and options.lr_schedule == "constant":
        notes.append(f"lr_floor {requested['lr_floor']} has no effect: lr_schedule is constant")
    check(options)
    if options.resume is None:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        name = free_name(options.output_dir, options.run_name or f"{command}-{now}")
        if options.run_name not in (None, name):
            notes.append(f"run_name {options.run_name} -> {name}: it is taken")
        options = replace(options, run_name=name)
    notes = list(dict.fromkeys(notes))
    return Stage(command, options, resume.recipe_of(asked), tuple(notes), frozenset(user))


def requested_options(
    flags: Mapping[str, Any], recipe: Mapping[str, Any], table: Table
) -> dict[str, Any]:
    """What the user asked for: the flags, and what a recipe of the user's own changes."""
    if flags.get("recipe") in RECIPES:
        recipe = {}
    changed = {n: value for n, value in recipe.items() if value != table.options[n].default}
    return {**changed, **flags}


def with_model(options: OfflineOptions, machine: Machine, notes: list[str]) -> OfflineOptions:
    """The options with the model that RL takes on a machine; `notes` gets why."""
    machine = machine.look_for_hub() if machine.gpus else machine
    model, _ = fit.default_task(machine)
    if model == options.model:
        return options
    if not machine.gpus:
        why = "there is no card"
    elif machine.online is False:
        why = "the Hugging Face hub does not answer"
    else:
        why = f"fits {stages.gb(machine.gpus[0].memory_mb)}"
    notes.append(f"model {options.model} -> {model}: {why}")
    return replace(options, model=model)


def fitted(stage: Stage, machine: Machine) -> Stage:
    """The stage with a micro-batch that fits the card. UserError where none does."""
    found = stages.fit(stage.options, stage.given, machine)
    if found.refusal:
        raise UserError(found.refusal)
    return replace(stage, options=found.options, notes=(*stage.notes, *found.notes))


def config_file(folder: str) -> Path:
    path = expanded(folder) / CONFIG
    if not path.is_file():
        raise UserError(
            f"resume must be a run's folder, got {folder} (it has no {CONFIG}): "
            "set --resume runs/<run_name>"
        )
    return path


def place_of(folder: str) -> dict[str, str]:
    """Where the run lies now: it may have been moved."""
    path = expanded(folder).absolute()
    return {"output_dir": str(path.parent), "run_name": path.name, "resume": str(path)}


def check_unchanged(before: Mapping[str, Any], user: Mapping[str, Any]) -> None:
    """UserError where a resume would not go on with the same training."""
    for name, value in user.items():
        was = before.get(name)
        if name == "model" and resume.base_parts_at(user["resume"]):
            continue  # a copy of it may lie elsewhere: its content is compared
        if name not in MAY_CHANGE and redacted_values(value) != was:
            raise UserError(
                f"{name} {value}: the run that is resumed has {'none' if was is None else was}: "
                f"leave --{name} out, or start a new run from its adapter with --adapter"
            )


def with_adapter(
    options: OfflineOptions, requested: Mapping[str, Any], notes: list[str]
) -> OfflineOptions:
    """With the LoRA's shape of the adapter that it begins with; `notes` gets a line for what that
    changes. UserError where another was asked for."""
    folder = starting_adapter.folder(options)
    if folder is None or options.resume is not None:  # which goes on as it began
        return options
    lora = adapter_check.check_format(folder)
    has: dict[str, Any] = {"max_lora_rank": lora.rank, "lora_dropout": lora.dropout}
    if lora.alpha == int(lora.alpha):
        has["lora_alpha"] = int(lora.alpha)
    may_differ = {"lora_dropout"} if isinstance(options, RmOptions) else set()
    for name, value in has.items():
        if name in requested and requested[name] != value:
            if name in may_differ:
                continue
            raise UserError(
                f"{name} {requested[name]}: adapter {options.adapter} has {value}: leave --{name} "
                f"out, or set --{name} {value}"
            )
        if getattr(options, name) != value:
            notes.append(f"{name} {getattr(options, name)} -> {value}, as adapter {folder} has")
            options = replace(options, **{name: value})
    return options


def notes_on_dropout(options: OfflineOptions, requested: Mapping[str, Any]) -> list[str]:
    """Where it was asked for, and TRL turns it off."""
    if isinstance(options, SftOptions) or not requested.get("lora_dropout"):
        return []
    said = f"lora_dropout {requested['lora_dropout']} has no effect: TRL trains pairs without it"
    if not isinstance(options, RmOptions):
        return [said]
    is_on = any(text.replace(" ", "").lower() == "disable_dropout=false" for text in options.trl)
    return [] if is_on else [f"{said}, unless you set --trl disable_dropout=false"]


def check(options: OfflineOptions) -> None:
    """What can be seen before anything is loaded. UserError."""
    if options.model != EMBEDDED and options.dataset == EMBEDDED:
        raise UserError(f"dataset {EMBEDDED}: these problems are for its own model: set --dataset")
    if options.model.startswith((".", "/", "~")) and not exists(options.model):
        raise UserError(f"model {options.model}: no such file or folder: check the path")
    check_source("dataset", options.dataset)
    evals = sources.eval_sources(options.eval_dataset)
    if len(evals) != 1:
        raise UserError("eval_dataset: it is given more than once: give one source")
    for source in evals.values():
        check_source("eval_dataset", source or options.dataset)
    folder = starting_adapter.folder(options)
    if folder is not None:
        check_start(options)
        if not isinstance(options, RmOptions):
            adapter_use.check_policy(expanded(folder))
        elif is_file(expanded(folder) / judge.HEAD_FILE):
            judge.head_of(expanded(folder))
    check_system_prompt(options.system_prompt)
    check_folders(options.output_dir, options.lora_save_path, options.run_name, options.resume)


def to_toml(stage: Stage, facts: tuple[str, ...] = ()) -> str:
    """All options as a recipe that reads back as the same; see `config.writing`."""
    lines = [
        f"# All options of this run of unslothrl {stage.command}, as resolved. Usable as a recipe,",
        "# --recipe FILE.toml, from any folder: only output_dir is relative to where it is used.",
        *(f"# {fact}" for fact in facts),
        "",
        f"{COMMAND} = {toml_value(stage.command)}",
    ]
    table = TABLES[stage.command]
    for group in dict.fromkeys(entry.metadata["group"] for entry in table.options.values()):
        lines.append(f"\n# {group}")
        for name, entry in table.options.items():
            if entry.metadata["group"] == group and name != "resume":
                value = redacted_values(getattr(stage.options, name))
                lines.append(
                    f"# {name} is not set" if value is None else f"{name} = {toml_value(value)}"
                )
    return "\n".join(lines) + "\n"

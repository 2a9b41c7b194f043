"""The options of a stage, from recipe, flags and the run that is resumed (see `runs.resolve`), and
its backend, which is decided before anything is loaded.

Unsloth patches what is imported after it. It is therefore imported here, before transformers, peft
and trl, and without the trainers of its own that it would put in the place of TRL's: their defaults
and their loss differ, and TRL's run over its model as they are.
"""

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unslothrl.config.offline_options import (
    TABLES,
    OfflineOptions,
    RmOptions,
    SftOptions,
    shards_of,
)
from unslothrl.config.rules import check_system_prompt
from unslothrl.data import sources
from unslothrl.embedded import BASES, EMBEDDED
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.planning import fit, stages
from unslothrl.planning.stages import PEFT, UNSLOTH
from unslothrl.rewards import model as judge
from unslothrl.runs import resume
from unslothrl.runs.resolve import Layers, Resolved, check_files, layers_of, named, shape_of
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.weights import base_model, starting_adapter

AUTO = "auto"
OWN_TRAINERS = "UNSLOTH_ALLOW_CPU"  # set, Unsloth leaves TRL's (unsloth/models/rl.py, PatchFastRL)


def resolve(
    command: str, flags: Mapping[str, Any], machine: Machine | None = None, fetches: bool = False
) -> Resolved:
    """See `runs.resolve.resolve`. Raises UserError."""
    table = TABLES[command]
    layers = layers_of(table, flags, fetches)
    user, notes = layers.user, layers.notes
    if (dataset := user.get("dataset", EMBEDDED)) in BASES:  # whose rows are its own base's
        user.setdefault("model", dataset)
    options = table.config(**user)
    if "model" not in user:
        options = with_model(options, machine or Machine.detect(), notes)
    options = with_adapter(options, layers)
    if layers.requested.get("lr_floor") and options.lr_schedule == "constant":
        notes.append(f"lr_floor {options.lr_floor} has no effect: lr_schedule is constant")
    check(options)
    options = named(options, command, notes)
    recipe = resume.recipe_of(table, layers.asked)
    return Resolved(options, frozenset(user), tuple(dict.fromkeys(notes)), recipe, command)


def with_model(options: OfflineOptions, machine: Machine, notes: list[str]) -> OfflineOptions:
    """The options with the model that RL takes on a machine; `notes` gets why."""
    machine = machine.look_for_hub() if machine.gpus else machine
    model = fit.default_task(machine)["model"]
    if model != options.model:
        why = f"fits {stages.gb(machine.gpus[0].memory_mb)}" if machine.gpus else "there is no GPU"
        why = "the Hugging Face hub does not answer" if machine.online is False else why
        notes.append(f"model {options.model} -> {model}: {why}")
    return replace(options, model=model)


def with_adapter(options: OfflineOptions, layers: Layers) -> OfflineOptions:
    """With the LoRA's shape of the adapter that it begins with, and notes on what that changes."""
    asked, is_rm = layers.requested.get("lora_dropout"), isinstance(options, RmOptions)
    for name, value in shape_of(options).items():
        if getattr(options, name) == value or (is_rm and asked and name == "lora_dropout"):
            continue
        layers.notes.append(
            f"{name} {getattr(options, name)} -> {value}, as adapter {options.adapter} has"
        )
        options = replace(options, **{name: value})
    keeps = is_rm and any("disable_dropout=false" in text.lower() for text in options.trl)
    if asked and not isinstance(options, SftOptions) and not keeps:
        unless = ", unless you set --trl disable_dropout=false" if is_rm else ""
        layers.notes.append(
            f"lora_dropout {asked} has no effect: TRL trains pairs without it{unless}"
        )
    return options


def fitted(stage: Resolved, machine: Machine) -> Resolved:
    """The stage with a micro-batch that fits the card. UserError where none does."""
    found = stages.fit(stage.options, stage.given, machine)
    if found.refusal:
        raise UserError(found.refusal)
    return stage.with_options(found.options, *found.notes)


def check(options: OfflineOptions) -> None:
    """What can be seen before anything is loaded. UserError."""
    if options.model != EMBEDDED and options.dataset == EMBEDDED:
        raise UserError(f"dataset {EMBEDDED}: these problems are for its own model: set --dataset")
    if len(sources.eval_sources(options.eval_dataset)) != 1:
        raise UserError("eval_dataset: it is given more than once: give one source")
    check_files(options)
    if shards_of(options) > 1 and getattr(options, "reference", "") == "cached":
        raise UserError("reference cached is not possible with learner_shards: leave it out")
    folder = starting_adapter.folder(options)
    if isinstance(options, RmOptions) and folder and is_file(expanded(folder) / judge.HEAD_FILE):
        judge.head_of(expanded(folder))
    check_system_prompt(options.system_prompt)


def with_backend(stage: Resolved, machine: Machine) -> Resolved:
    """With unsloth or peft as its backend, and a note that says why. UserError."""
    options = stage.options
    if options.backend == PEFT or (options.backend == AUTO and not machine.gpus):
        return stage.with_options(replace(options, backend=PEFT))
    if obstacle := obstacle_of(options, machine):
        if options.backend == UNSLOTH:
            raise UserError(f"backend unsloth: {obstacle}; or set --backend peft")
        note = f"backend auto -> peft: {obstacle}"
        return stage.with_options(replace(options, backend=PEFT), note)
    slow = "backend unsloth: without a GPU it is for tests only, and very slow"
    notes = () if machine.gpus else (slow,)
    return stage.with_options(replace(options, backend=UNSLOTH), *notes)


def obstacle_of(options: OfflineOptions, machine: Machine) -> str:
    """Why Unsloth cannot train this, with what to do; "" where it can. UserError."""
    if shards_of(options) > 1:
        return "its kernels take whole weights: leave --learner_shards out"
    if "unsloth" not in machine.packages and importlib.util.find_spec("unsloth") is None:
        return f"Unsloth is not installed: {fit.install_command(machine)}"
    if options.dtype == "float32":
        return "its fused layers compute in 16 bits: leave --dtype float32 out"
    from unslothrl.backends import KINDS

    config = base_model.read_config(base_model.find(options.model, False))
    if (kind := config.get("model_type")) not in KINDS:
        return (
            f"its fused layers are for {', '.join(KINDS)}, and {options.model} is {kind}: "
            "choose a base of these kinds"
        )
    is_windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    if getattr(options, "packing", False) and is_windowed:
        return f"packing is not exact in the sliding window of {options.model}: leave --packing out"
    return ""


def import_first(backend: str, view: Any) -> None:
    if backend != UNSLOTH:
        return
    view.stage("importing Unsloth")
    with variables.kept(OWN_TRAINERS):
        os.environ[OWN_TRAINERS] = "1"
        importlib.import_module("unslothrl.backends.unsloth")

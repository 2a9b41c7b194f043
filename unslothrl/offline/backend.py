"""Which backend a stage trains with, decided before anything is loaded.

Unsloth patches what is imported after it. It is therefore imported here, before transformers, peft
and trl, and without the trainers of its own that it would put in the place of TRL's: their defaults
and their loss differ, and TRL's run over its model as they are.
"""

import importlib
import importlib.util
import os
from dataclasses import replace
from typing import Any

from unslothrl.backends.patches import KINDS
from unslothrl.config.offline_options import OfflineOptions
from unslothrl.errors import UserError
from unslothrl.offline.resolve import Stage
from unslothrl.planning.fit import install_command
from unslothrl.system.machine import Machine
from unslothrl.system.packages import installed, requirements_of, unmet
from unslothrl.weights import base_model

AUTO, UNSLOTH, PEFT = "auto", "unsloth", "peft"
RELATED = ("unsloth", "unsloth-zoo", "trl", "peft", "transformers", "torch", "torchao")
OWN_TRAINERS = "UNSLOTH_ALLOW_CPU"  # set, Unsloth leaves TRL's (unsloth/models/rl.py, PatchFastRL)


def chosen(stage: Stage, machine: Machine) -> Stage:
    """The stage with unsloth or peft as its backend, and a note that says why where that is not as
    expected. UserError where Unsloth is asked for and cannot be."""
    options, notes = stage.options, list(stage.notes)
    backend = PEFT
    if options.backend == UNSLOTH or (options.backend == AUTO and machine.gpus):
        obstacle = obstacle_of(options, machine)
        if obstacle and options.backend == UNSLOTH:
            raise UserError(f"backend unsloth: {obstacle}; or set --backend peft")
        if obstacle:
            notes.append(f"backend auto -> peft: {obstacle}")
        else:
            backend = UNSLOTH
            if not machine.gpus:
                notes.append("backend unsloth: without a GPU it is for tests only, and very slow")
    return replace(stage, options=replace(options, backend=backend), notes=tuple(notes))


def obstacle_of(options: OfflineOptions, machine: Machine) -> str:
    """Why Unsloth cannot train this, with what to do; "" where it can. UserError where there is no
    such model."""
    if "unsloth" not in machine.packages and importlib.util.find_spec("unsloth") is None:
        return f"Unsloth is not installed: {install_command(machine)}"
    found = {name: version for name, version in installed().items() if name in RELATED}
    wanted = {name: requirements_of(name) for name in ("unsloth", "unsloth-zoo") if name in found}
    for what, remedy in unmet(found, wanted):
        return f"{what}: {remedy}"
    if options.dtype == "float32":
        return "its fused layers compute in 16 bits: leave --dtype float32 out"
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
    """Imports Unsloth where it is the backend."""
    if backend != UNSLOTH:
        return
    view.stage("importing Unsloth")
    before = os.environ.get(OWN_TRAINERS, "")
    os.environ[OWN_TRAINERS] = "1"
    importlib.import_module("unslothrl.backends.unsloth")
    os.environ[OWN_TRAINERS] = before

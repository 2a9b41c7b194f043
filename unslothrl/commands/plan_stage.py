"""`unslothrl plan sft`, `plan dpo` and `plan rm`: what a stage would take on a card."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TextIO

from unslothrl.commands.plan import (
    NOT_MEASURED,
    duration,
    gb,
    with_cards,
    written,
)
from unslothrl.config.offline_options import (
    DpoOptions,
    OfflineOptions,
    PreferenceOptions,
    SftOptions,
)
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.offline.resolve import Stage, resolve
from unslothrl.planning import shapes, speed, stages
from unslothrl.planning.engine_memory import usable_mb
from unslothrl.planning.gpu_names import gpus_of
from unslothrl.planning.machine import Gpu, Machine
from unslothrl.planning.shapes import Shape
from unslothrl.planning.stages import Reference
from unslothrl.tracking import calling

LEAST_GB_MB = 10  # below which a part is given in MB
OF_THE_PLAN = {"model", "fit", "run_name", "output_dir", "recipe", "resume"}  # not repeated


def forecast(
    command: str,
    given: Mapping[str, Any],
    cards: str | None,
    as_json: bool,
    out: TextIO | None = None,
) -> None:
    """Prints the plan of a stage with these options. UserError where they cannot be, or the model's
    sizes are not known."""
    out = out or sys.stdout
    machine = Machine.detect()
    if cards is not None:
        machine = with_cards(machine, gpus_of(cards))
    report = report_of(resolve(command, given, machine=machine), machine)
    print(json.dumps(report) if as_json else "\n".join(lines(report)), file=out)


def report_of(stage: Stage, machine: Machine) -> dict[str, Any]:
    """The plan as JSON has it."""
    shape = shapes.shape_of(stage.options.model)
    if shape is None:
        raise UserError(f"model {stage.options.model}: {shapes.why_unknown(stage.options.model)}")
    stages.in_context(stage.options, stage.given, shape)
    fitted = stages.fit(stage.options, stage.given, machine)
    options, gpu = fitted.options, machine.gpus[0] if machine.gpus else None
    pairs = pairs_of(options)
    needs = stages.needs(options, shape, gpu, pairs)
    stores = stages.stores_of(options, shape, needs, machine)
    on_card = gpu is None or needs.needed_mb() <= usable_mb(gpu)
    return {
        "command": stage.command,
        "model": options.model,
        "max_length": options.max_length,
        "rows": kind_of_rows(options),
        "max_lora_rank": options.max_lora_rank,
        "micro_batch": options.micro_batch,
        "fits": on_card and all(store.fits for store in stores),
        "card": gpu
        and {
            "name": gpu.name,
            "usable_mb": round(usable_mb(gpu)),
            "needed_mb": round(needs.needed_mb()),
            "fits": on_card,
        },
        "parts_mb": {name: round(mb, 1) for name, mb in needs.card.items()},
        "host_mb": {name: round(mb, 1) for name, mb in needs.host.items()},
        "stores": [store.to_json() for store in stores],
        "reference": reference_line(options, shape, pairs),
        "changed_to_fit": list(fitted.notes),
        "would_fit_with": gpu and (stages.remedy(options, stage.given, shape, gpu) or None),
        "step_seconds": gpu and speed.stage_seconds(options, shape, gpu),
        "batch_size": options.batch_size,
        "settings": settings(stage, options, shape, gpu),
        "note": NOT_MEASURED if shape.is_counted else f"{shapes.A_GUESS}; {NOT_MEASURED}",
    }


def kind_of_rows(options: OfflineOptions) -> str:
    if isinstance(options, PreferenceOptions):
        return "pairs, each two rows"
    return "packed rows" if isinstance(options, SftOptions) and options.packing else "padded rows"


def pairs_of(options: OfflineOptions) -> tuple[int, int] | None:
    """Those of the data to train and to evaluate on, as far as that is known without reading it."""
    if options.dataset != EMBEDDED or options.eval_dataset:
        return None
    from unslothrl.offline.tables import EMBEDDED_EVAL_ROWS, EMBEDDED_ROWS

    return EMBEDDED_ROWS, min(EMBEDDED_EVAL_ROWS, options.eval_problems or EMBEDDED_EVAL_ROWS)


def reference_line(
    options: OfflineOptions, shape: Shape, pairs: tuple[int, int] | None
) -> str | None:
    """What DPO's reference takes in either form; None of another stage."""
    if not isinstance(options, DpoOptions):
        return None
    weights = shape.lora_weights(options.max_lora_rank)
    reference = Reference.of(options, weights, *(pairs or (0, 0)))
    if pairs is not None and options.reference == "auto":
        return reference.line()
    sizes = f"a copy of the adapter {reference.copy_mb:.2f} MB, cached 8 bytes a pair"
    if options.reference != "auto":
        return f"reference: {options.reference} ({sizes})"
    most = 2**20 * reference.copy_mb / (2 * stages.NUMBER)
    if options.max_steps:
        most = min(most, stages.WASTED * options.max_steps * options.batch_size)
    return f"reference: cached for fewer than {most:,.0f} pairs, else a copy ({sizes})"


def settings(
    stage: Stage, options: OfflineOptions, shape: Shape, gpu: Gpu | None
) -> dict[str, dict[str, Any] | None]:
    """The longest rows, and the largest micro-batch at the given length, that fit."""
    if gpu is None:
        return {"largest": None, "fastest": None}
    found = {
        "largest": stages.longest(options, shape, gpu),
        "fastest": stages.with_micro_batch(options, shape, gpu, stages.LARGEST_MICRO_BATCH),
    }
    if "max_length" in stage.given:  # what was given stays
        del found["largest"]
    if "train_batch_size" in stage.given:
        del found["fastest"]
    return {
        name: None
        if setting is None or not stages.fits(setting, shape, gpu)
        else of_setting(stage, setting, shape, gpu)
        for name, setting in found.items()
    }


def of_setting(stage: Stage, setting: OfflineOptions, shape: Shape, gpu: Gpu) -> dict[str, Any]:
    setting = replace(setting, train_batch_size=setting.micro_batch)
    names = ["model", *sorted({"max_length", "train_batch_size", *stage.given} - OF_THE_PLAN)]
    flags = {name: getattr(setting, name) for name in names}
    parts = [part for name, value in flags.items() if value is not None
             for part in written(name, value)]  # fmt: skip
    return {
        "max_length": setting.max_length,
        "train_batch_size": setting.train_batch_size,
        "needed_mb": round(stages.needs(setting, shape, gpu).needed_mb()),
        "command": f"{calling.program()} {stage.command} {' '.join(parts)}",
    }


def size(mb: float) -> str:
    return gb(mb) if mb >= LEAST_GB_MB else f"{mb:.1f} MB"


def lines(report: dict[str, Any]) -> list[str]:
    """The plan for people."""
    text = [
        f"{report['command']} of {report['model']}: {report['rows']} of up to "
        f"{report['max_length']} tokens, rank {report['max_lora_rank']}, micro-batch "
        f"{report['micro_batch']} ({report['note']})",
        *report["changed_to_fit"],
        "",
    ]
    card = report["card"]
    if card is None:
        text.append("no card: the process uses the host's memory")
    else:
        verdict = "fits" if card["fits"] else "DOES NOT FIT"
        of = f"{gb(card['needed_mb'])} of {gb(card['usable_mb'])} usable"
        text.append(f"{card['name']}: {verdict}: {of}")
        if report["would_fit_with"]:
            lower = report["would_fit_with"].items()
            text.append("would fit with " + " ".join(f"--{name} {value}" for name, value in lower))
    parts = {**report["parts_mb"], "together": sum(report["parts_mb"].values())}
    text += [f"    {name:<26} {size(mb):>11}" for name, mb in parts.items()]
    text += ["", report["reference"]] if report["reference"] else []
    text.append("")
    for store in report["stores"]:
        has = "" if store["has_mb"] is None else f" of {gb(store['has_mb'])}"
        verdict = "" if store["fits"] else ": TOO LITTLE"
        text.append(f"{store['name']}: {gb(store['needed_mb'])}{has}{verdict}")
    if report["step_seconds"]:
        low, high = map(duration, report["step_seconds"])
        what = "pairs" if report["rows"].startswith("pairs") else "rows"
        text += ["", f"a step of {report['batch_size']} {what}: {low} to {high} (a rough estimate "
                 "from the speed of such cards)"]  # fmt: skip
    for name, best in report["settings"].items() if card else ():
        text.append("")
        if best is None:
            text.append(f"{name}: nothing fits with the options that are set")
        else:
            text += [f"{name} ({gb(best['needed_mb'])}):", f"    {best['command']}"]
    return text

"""`unslothrl plan`: what a run would take on a GPU, and the settings that fit it best; and
`unslothrl recipes`: which recipes fit. As JSON, or as text for people."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unslothrl.commands.planned import NOT_MEASURED, Report, plan_of
from unslothrl.config.offline_options import TABLES
from unslothrl.config.options import Config
from unslothrl.config.parts import half_precision
from unslothrl.config.toml_files import RECIPES, command_of
from unslothrl.embedded import BASES
from unslothrl.errors import UserError
from unslothrl.planning.fit import with_engines
from unslothrl.planning.footprint import LEAST_SEQS
from unslothrl.planning.gpus import gpus_of
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.system.machine import Machine
from unslothrl.text import aligned, counted
from unslothrl.tracking import origin
from unslothrl.weights import shapes

CONTEXTS = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
FOUND = {  # what a search is for
    "largest": "with the longest completions or rows that fit, in the smallest batches",
    "fastest": "in the largest batches that fit at these lengths",
}
PHASES = ("generating", "updating", "training")  # SFT, DPO and RM have the last alone


def forecast(command: str, given: Mapping[str, Any], cards: str | None, as_json: bool) -> None:
    """Prints the plan of a run of `command`, train, sft, dpo or rm, with these options; of all
    known models where `train` has none.

    UserError where a run with them would be refused, or the model's sizes are not known.
    """
    machine = machine_with(cards)
    if not given and command not in TABLES:
        report = table(machine)
        text = table_lines(report)
    else:
        report = {**plan_of(command, given, machine), "assumed": cards is not None}
        text = lines(report)
    print(json.dumps(report) if as_json else "\n".join(text))


def machine_with(cards: str | None) -> Machine:
    """This machine; with `cards` as if it had these GPUs. UserError for one that is not known."""
    if cards is None:
        return Machine.detect()
    packages = frozenset({"vllm", "unsloth", "ray"})
    return Machine.detect(tuple(gpus_of(cards)), packages=packages, online=True)


def lines(report: Report) -> list[str]:
    """The plan for people: first whether it fits, and how long it takes."""
    text = [*verdict(report), "", f"{report['title']} ({report['note']})"]
    text += [*report["changed_to_fit"], *report.get("warnings", [])]
    for gpu in report["cards"]:
        takes = f"takes {gb(gpu['needed_mb'])} of {gb(gpu['usable_mb'])} usable"
        text += ["", f"{gpu['name']}: {takes}, with a KV cache as large as there is room for"]
        text += [line for process in gpu["processes"] for line in process_lines(process)]
    if without := report["processes_without_a_card"]:
        text += ["", "no GPU: everything is in the host's memory"]
        text += [line for process in without for line in process_lines(process)]
    text.append("")
    if report["download_mb"]:
        text.append(f"download: {gb(report['download_mb'])} of model, if it is not there yet")
    for store in report["stores"]:
        is_elsewhere = store["has_mb"] is None or report.get("assumed")
        of = "" if is_elsewhere else f" of {gb(store['has_mb'])}"
        too_little = "" if store["fits"] else ": TOO LITTLE"
        text.append(f"{store['name']}: {gb(store['needed_mb'])}{of}{too_little}")
    if exchange := report.get("exchange"):
        text.append(f"each learner receives {exchange['received_gb']} GB a step of the others:")
        links = exchange["seconds_by_link"].items()
        text += aligned([[f"    {link}", f"{seconds} s"] for link, seconds in links], True)
    if report["command"]:
        text += ["", "to start it:", f"    {report['command']}"]
    for name, best in report["settings"].items():
        if best is None:
            has_gpu = bool(report["cards"])
            found = "nothing fits with the options that are set" if has_gpu else "needs a GPU"
            text += ["", f"{FOUND[name]}: {found}"]
        else:
            takes = gb(best["needed_mb"])
            if best.get("step_seconds"):
                takes += f", a step takes {span(best['step_seconds'])}"
            other = "or " if report["command"] else ""
            text += ["", f"{other}{FOUND[name]} ({takes}):", f"    {best['command']}"]
    return text


def verdict(report: Report) -> list[str]:
    """Whether it fits, with what is needed and to spare, and the time of the run."""
    does_not, assumed = "DOES NOT FIT", report.get("assumed")  # GPUs, which are elsewhere
    text = [
        f"{store['name']}: needs {gb(store['needed_mb'])}; this machine has {gb(store['has_mb'])}"
        if assumed
        else f"{does_not}: {store['name']} of {gb(store['has_mb'])}, and {gb(store['needed_mb'])} "
        "needed"
        for store in report["stores"]
        if not store["fits"]
    ]
    if not text and not report["cards"]:
        text = ["fits"]
    for gpu in report["cards"]:
        said = "fits" if gpu["fits"] else does_not
        least, spare = gpu["usable_mb"] - gpu["spare_mb"], gpu["spare_mb"]
        use = ", for a larger KV cache" if "exchange" in report else ""  # of RL
        rest = f", {gb(spare)} to spare{use}" if spare >= 0 else ""
        needs = f"needs at least {gb(least)} of {gb(gpu['usable_mb'])}"
        text.append(f"{said}: {gpu['name']} {needs}{rest}")
    if not report["fits"] and (lower := report["would_fit_with"]):
        flags = " ".join(f"--{name} {value}" for name, value in lower.items())
        text.append(f"would fit with {flags}")
    if text and not report["cards"] and text[0].startswith(f"{does_not}: host memory"):
        text.insert(0, "this machine has no GPU: `--gpu 12` plans for one of 12 GB")
    steps, rows = report["steps"], report["problems"]
    on = f"{steps:,} step{'s' * (steps > 1)}" if steps else ""
    if steps and rows:
        on += f" on {rows:,} rows of {report['dataset']}"
    if on and not report["step_seconds"]:
        text.append(f"{on}; their time is estimated for GPUs only: see how long the first takes")
    if report["step_seconds"]:
        is_known = all(gpu.get("is_known") for gpu in report["cards"])
        by_size = "" if is_known else ", by GPUs of its size"
        whole = "; how many a run has depends on the data, or --max_steps"
        if steps:
            whole = f", {on} {span(report['step_seconds'], steps)}"
        text.append(
            f"a step of {report['step']} takes {span(report['step_seconds'])}{whole} "
            f"(roughly{by_size})"
        )
        if count := report.get("evaluations"):
            seconds = span(report["evaluation_seconds"], count if steps else 1)
            of = f"{report['evaluated']:,} completions"
            text.append(
                f"{counted(count, 'evaluation')} of {of} each: {seconds} on top"
                if steps
                else f"an evaluation of {of} takes {seconds} on top"
            )
    return text


def span(seconds: Sequence[float], times: int = 1) -> str:
    """(90, 7000) -> "2 to 117 min", in the unit of the first."""
    low, high = (each * times for each in seconds)
    size, unit = next(
        x for x in ((3600, "h"), (60, "min"), (1, "s")) if high >= 2 * x[0] or x[0] == 1
    )
    return f"{low / size:,.1f} to {high / size:,.0f} {unit}"


def process_lines(process: Mapping[str, Any]) -> list[str]:
    """A line for each part, with what it takes in each phase."""
    phases = {name: process[name] for name in PHASES if name in process}
    count = process["cards"]
    title = process["name"] + (f", each of its {count} GPUs" if count > 1 else "")
    rows = [[f"  {title}", *phases]]
    for part in dict.fromkeys(part for phase in phases.values() for part in phase):
        cells = (f"{phase[part]:,.1f} MB" if part in phase else "-" for phase in phases.values())
        rows.append([f"    {part}", *cells])
    rows.append(["    together", *(gb(sum(phase.values())) for phase in phases.values())])
    return aligned(rows, are_numbers=True)


# Known models


def table(machine: Machine) -> Report:
    """GB that known models need by context on the smallest GPU; None: does not fit. UserError."""
    if not machine.gpus:
        raise UserError("plan: this machine has no GPU: set --gpu GB, or --model NAME")
    gpu = min(machine.gpus, key=lambda gpu: gpu.memory_mb)
    alone = replace(machine, gpus=(gpu,))
    rows = {
        name: {str(tokens): at_context(shape, tokens, alone) for tokens in CONTEXTS}
        for name, shape in shapes.KNOWN.items()
    }
    return {"card": gpu.name, "what": "GB by context", "models": rows, "note": NOT_MEASURED}


def at_context(shape: shapes.Shape, tokens: int, machine: Machine) -> float | None:
    """GB that a run takes whose prompts and completions have so many tokens; None: too many. It is
    the main job alone, one sequence a micro-batch, `LEAST_SEQS` generated at once."""
    if shape.context is not None and tokens > shape.context:
        return None
    old = half_precision(machine.gpus[0].capability) == "float16"
    config = Config(learner="grpo", number_of_actors=0, engine="transformers" if old else "vllm",
                    backend="unsloth", train_batch_size=1, max_num_seqs=LEAST_SEQS)  # fmt: skip
    config = replace(config, max_new_tokens=tokens - config.max_prompt_tokens)
    resources = Resources.of_machine(config, machine)
    config = with_engines(config, frozenset(), shape, resources)
    (found,) = place(config, resources, shape=shape).cards
    return round(found.needed_mb() / 1024, 1) if found.fits else None


def table_lines(models: Report) -> list[str]:
    fitting = {name: cells for name, cells in models["models"].items() if any(cells.values())}
    rows = [[name, *(str(gb or "-") for gb in cells.values())] for name, cells in fitting.items()]
    text = [f"{models['card']}: {models['what']} ({models['note']})", ""]
    text += aligned([["", *map(str, CONTEXTS)], *rows], are_numbers=True)
    if others := [name for name in models["models"] if name not in fitting]:
        text += ["", f"too large: {', '.join(others)}"]
    program = origin.program()
    more = f"more: {program} plan --model OWNER/NAME --gpu GB"
    return [*text, "", more, f"to begin with: {program} recipes --gpu GB"]


def gb(mb: float) -> str:
    return f"{mb / 1024:.2f} GB"


# Recipes, and which fit

LARGER = 1.1  # times a GPU, a recipe is made for a larger one: a T4 of 16 GB has 15


def list_recipes(card: str | None, as_json: bool) -> None:
    """Prints a line for each recipe that fits, those for such a machine first. UserError."""
    machine = machine_with(card)
    found = [recipe_report(name, machine) for name in RECIPES]
    has_gb = max((gpu.memory_mb / 1024 for gpu in machine.gpus), default=0.0)
    found.sort(key=lambda r: (not r["fits"], r["made_for_gb"] > LARGER * has_gb, -r["made_for_gb"]))
    print(json.dumps(found) if as_json else "\n".join(recipe_lines(found, has_gb)))


def recipe_report(name: str, machine: Machine) -> Report:
    """A recipe with its header, and whether it fits by the planner of a run on `machine`."""
    command = command_of(name)
    header = RECIPES[name].read_text("utf-8").partition("\n\n")[0].splitlines()
    facts = {line[2:10].strip(): line[13:] for line in header}
    made_for = re.search(r"GPU.*?(\d+) GB|T4, (\d+) GB|with (\d+) and", facts["Hardware"])
    time, needs, fits = facts["Time"].partition(",")[0].partition(" (")[0], "", False
    with contextlib.suppress(UserError):  # of one that cannot be placed
        report = plan_of(command, {"recipe": name}, machine)
        fits = report["fits"] and bool(machine.gpus or report["model"] in BASES)
        if report["step_seconds"]:
            time = span(report["step_seconds"], report["steps"] or 1)
            time = time if report["steps"] else f"{time} a step"
        needs = " and ".join(gb(gpu["usable_mb"] - gpu["spare_mb"]) for gpu in report["cards"])
    return {
        "name": name,
        "command": command,
        "header": [line[2:] for line in header if line != "#"],
        "made_for_gb": int(made_for[made_for.lastindex or 1]) if made_for else 0,
        "task": facts["Task"],
        "needs": needs,
        "time": time,
        "fits": fits,
    }


def recipe_lines(found: Sequence[Report], has_gb: float) -> list[str]:
    """Those that fit, without those for a CPU where there is a GPU; and the others' names."""
    rows = [["recipe", "needs", "takes", "what it trains"]]
    for each in found:
        if each["fits"] and not (has_gb and not each["made_for_gb"]):
            size = each["made_for_gb"]
            more = f" (made for {size} GB)" if size > LARGER * has_gb else ""
            needs, time = each["needs"] or "-", each["time"] or "-"
            rows.append([each["name"], needs, time, f"{each['task']}{more}"])
    text = aligned(rows)
    if others := [each["name"] for each in found if not each["fits"]]:
        text += ["", f"{'too large' if has_gb else 'need a GPU'}: {', '.join(others)}"]
    return [*text, "", f"details: {origin.program()} plan --recipe NAME"]

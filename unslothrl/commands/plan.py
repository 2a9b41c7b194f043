"""`unslothrl plan`: what a run would take on a GPU, and the settings that fit it best; as JSON, or
as text for people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unslothrl.commands.planned import NOT_MEASURED, Plan, of_run, of_stage
from unslothrl.config.hardware import half_precision
from unslothrl.config.offline_options import TABLES
from unslothrl.config.options import Config
from unslothrl.planning import setting_search as search
from unslothrl.planning.fit import with_engines
from unslothrl.planning.footprint import LEAST_SEQS
from unslothrl.planning.gpu_names import gpus_of, of_size
from unslothrl.planning.place import place
from unslothrl.planning.placement import CardPlan, Resources
from unslothrl.system.machine import Gpu, Machine
from unslothrl.tracking import calling
from unslothrl.weights import shapes

SIZES_GB = (8, 12, 16, 24, 48, 80)
CONTEXTS = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
LEAST_GB_MB = 10  # below which a part is given in MB


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
        is_stage = command in TABLES
        plan = of_stage(command, given, machine) if is_stage else of_run(given, machine)
        report, text = plan.report, lines(plan)
    print(json.dumps(report) if as_json else "\n".join(text))


def machine_with(cards: str | None) -> Machine:
    """This machine; with `cards` as if it had these GPUs. UserError for one that is not known."""
    machine = Machine.detect()
    return machine if cards is None else with_gpus(machine, gpus_of(cards))


def with_gpus(machine: Machine, gpus: Sequence[Gpu]) -> Machine:
    """The machine as if it had these GPUs and all that a GPU needs."""
    packages = machine.packages | {"vllm", "unsloth", "ray"}
    return replace(machine, gpus=tuple(gpus), packages=packages, online=True, gpu_problem=None)


def lines(plan: Plan) -> list[str]:
    """The plan for people."""
    report = plan.report
    text = [f"{plan.title} ({report['note']})", *report["changed_to_fit"]]
    if "parts_mb" in report:  # a stage, which is one process
        own = [{"name": report["command"], "": report["parts_mb"]}]
        gpus = [{**report["card"], "processes": own}] if report["card"] else []
        without = [] if gpus else own
    else:
        gpus, without = report["cards"], report["processes_without_a_card"]
    for gpu in gpus:
        verdict = "fits" if gpu["fits"] else "DOES NOT FIT"
        of = f"{gb(gpu['needed_mb'])} of {gb(gpu['usable_mb'])} usable"
        text += ["", f"{gpu['name']}: {verdict}: {of}"]
        if not gpu["fits"] and (lower := report["would_fit_with"]):
            flags = " ".join(f"--{name} {value}" for name, value in lower.items())
            text.append(f"would fit with {flags}")
        text += [line for process in gpu["processes"] for line in process_lines(process)]
    if without:
        text += ["", "no GPU: everything is in the host's memory"]
        text += [line for process in without for line in process_lines(process)]
    text += ["", *map(store_line, report["stores"])]
    if report.get("reference"):
        text += ["", report["reference"]]
    if report["step_seconds"]:
        low, high = map(duration, report["step_seconds"])
        text += ["", f"a step of {plan.step}: {low} to {high} (a rough estimate from the speed of "
                 "such GPUs)"]  # fmt: skip
    for name, best in report["settings"].items():
        if best is None:
            found = "nothing fits with the options that are set" if gpus else "needs a GPU"
            text += ["", f"{name}: {found}"]
        else:
            text += ["", f"{name} ({gb(best['needed_mb'])}):", f"    {best['command']}"]
    return text


def process_lines(process: Mapping[str, Any]) -> list[str]:
    """A line for each part, with what it takes in each phase; a stage has one, without a name."""
    phases = {name: process[name] for name in ("generating", "updating", "") if name in process}
    count = process.get("cards", 1)
    title = process["name"] + (f", each of its {count} GPUs" if count > 1 else "")
    text = [f"  {title:<28}" + "".join(f" {name:>11}" for name in phases)]
    for part in dict.fromkeys(part for phase in phases.values() for part in phase):
        cells = [size(phase[part]) if part in phase else "-" for phase in phases.values()]
        text.append(f"    {part:<26}" + "".join(f" {cell:>11}" for cell in cells))
    sums = "".join(f" {gb(sum(phase.values())):>11}" for phase in phases.values())
    return [*text, f"    {'together':<25} {sums}"]


def store_line(store: Mapping[str, Any]) -> str:
    """/dev/shm fits where it is too small: the disk takes its place."""
    needed, has = store["needed_mb"], store["has_mb"]
    line = f"{store['name']}: {gb(needed)}" + ("" if has is None else f" of {gb(has)}")
    if has is None or needed <= has:
        return line
    return f"{line}: TOO LITTLE" + (", the disk takes its place" if store["fits"] else "")


# Known models


def table(machine: Machine) -> dict[str, Any]:
    """Known models by context on this machine's smallest GPU (GB needed; None: does not fit);
    without one, the longest context of each on GPUs of common sizes."""
    gpu = min(machine.gpus, key=lambda gpu: gpu.memory_mb) if machine.gpus else None
    rows: dict[str, dict[str, float | None]] = {}
    for name, shape in shapes.KNOWN.items():
        if gpu is not None:
            alone = replace(machine, gpus=(gpu,))
            rows[name] = {str(tokens): at_context(shape, tokens, alone) for tokens in CONTEXTS}
        else:
            machines = {str(gb): with_gpus(machine, [of_size(gb)]) for gb in SIZES_GB}
            rows[name] = {gb: longest(shape, with_gb) for gb, with_gb in machines.items()}
    what = "GB by context" if gpu else "longest context by GPU in GB"
    return {"card": gpu and gpu.name, "what": what, "models": rows, "note": NOT_MEASURED}


def smallest(machine: Machine) -> Config:
    """The main job alone on a GPU, one sequence a micro-batch, `LEAST_SEQS` generated at once."""
    config = Config(learner="grpo", number_of_actors=0, engine="vllm", backend="unsloth",
                    train_batch_size=1, max_num_seqs=LEAST_SEQS)  # fmt: skip
    old = bool(machine.gpus) and half_precision(machine.gpus[0].capability) == "float16"
    return replace(config, engine="transformers") if old else config


def at_context(shape: shapes.Shape, tokens: int, machine: Machine) -> float | None:
    """GB that a run takes whose prompts and completions have so many tokens; None: too many."""
    config = smallest(machine)
    if shape.context is not None and tokens > shape.context:
        return None
    config = replace(config, max_new_tokens=tokens - config.max_prompt_tokens)
    found = placed_alone(config, shape, machine)
    return round(found.needed_mb() / 1024, 1) if found.fits else None


def placed_alone(config: Config, shape: shapes.Shape, machine: Machine) -> CardPlan:
    """The plan of the only GPU, which the learner has to itself."""
    resources = Resources.of_machine(config, machine)
    config = with_engines(config, frozenset(), shape, resources)
    (found,) = place(config, resources, shape=shape).cards
    return found


def longest(shape: shapes.Shape, machine: Machine) -> float | None:
    """Tokens of the longest context that fits; None where not even 64 tokens do."""
    largest = search.largest(
        smallest(machine),
        lambda config: placed_alone(config, shape, machine).fits,
        shape.context,
    )
    return None if largest is None else largest.context


def table_lines(models: dict[str, Any]) -> list[str]:
    """The table for people."""
    names = list(next(iter(models["models"].values())))
    gpu = models["card"] or "this machine has no GPU"
    text = [f"{gpu}: {models['what']} ({models['note']})", ""]
    text.append(f"{'':<16}" + "".join(f" {name:>8}" for name in names))
    fitting = {name: cells for name, cells in models["models"].items() if any(cells.values())}
    for model, cells in fitting.items():
        values = ["-" if v is None else f"{v:,}" for v in cells.values()]
        text.append(f"{model:<16}" + "".join(f" {value:>8}" for value in values))
    if others := [name for name in models["models"] if name not in fitting]:
        text += ["", f"too large: {', '.join(others)}"]
    return [*text, "", f"more: {calling.program()} plan --model NAME --card GB"]


def duration(seconds: float) -> str:
    """In the unit that leaves one to three digits."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1, seconds):.0f} s"


def gb(mb: float) -> str:
    return f"{mb / 1024:.2f} GB"


def size(mb: float) -> str:
    return gb(mb) if mb >= LEAST_GB_MB else f"{mb:g} MB"

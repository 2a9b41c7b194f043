"""`unslothrl plan`: what a run would take on a card, and the settings that fit it best."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

from unslothrl.config.hardware import half_precision, versions_in_flight
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.planning import setting_search as search
from unslothrl.planning import shapes, speed
from unslothrl.planning.fit import with_engines
from unslothrl.planning.forecast import Forecast, forecast_of
from unslothrl.planning.gpu_names import gpus_of, of_size
from unslothrl.planning.machine import Gpu, Machine
from unslothrl.planning.memory import LEAST_SEQS
from unslothrl.planning.place import place
from unslothrl.planning.placement import CardPlan, Placement, ProcessPlan, Resources
from unslothrl.planning.setting_search import FREE
from unslothrl.resolve import resolve
from unslothrl.tracking import calling

CARDS_GB = (8, 12, 16, 24, 48, 80)
STEP = 64  # tokens that a length is searched by
CONTEXTS = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
RECOMMENDED = "grpo"  # the learner, where none is given
NOT_MEASURED = "an estimate, not measured on a card yet"


def forecast(
    given: Mapping[str, Any], cards: str | None, as_json: bool, out: TextIO | None = None
) -> None:
    """Prints the plan of a run with these options; of all known models where there are none.

    UserError where a run with them would be refused, or the model's sizes are not known.
    """
    out = out or sys.stdout
    machine = Machine.detect()
    if cards is not None:
        machine = with_cards(machine, gpus_of(cards))
    if not given:
        models = table(machine)
        print(json.dumps(models) if as_json else "\n".join(table_lines(models)), file=out)
        return
    resolved = resolve(given, machine)
    if resolved.config.learner == Config.learner and not given.keys() & {"learner", "recipe"}:
        resolved = resolve({**given, "learner": RECOMMENDED}, machine)
    config = resolved.config
    shape = shapes.shape_of(config.model)
    if shape is None:
        raise UserError(f"model {config.model}: {shapes.why_unknown(config.model)}")
    needs = forecast_of(config, shape, machine)
    report = {
        "model": config.model,
        **needs.to_json(),
        "changed_to_fit": list(resolved.notes),
        "step_seconds": speed.step_seconds(config, shape, needs.placement),
        "judging_seconds": speed.judging_seconds(config, shape, needs.placement),
        "would_fit_with": remedy(config, resolved.given, shape, machine, needs),
        "settings": settings(config, resolved.given, shape, machine),
        "note": NOT_MEASURED if shape.is_counted else f"{shapes.A_GUESS}; {NOT_MEASURED}",
    }
    print(json.dumps(report) if as_json else "\n".join(lines(config, needs, report)), file=out)


def with_cards(machine: Machine, cards: Sequence[Gpu]) -> Machine:
    """The machine as if it had these cards and all that a card needs."""
    packages = machine.packages | {"vllm", "unsloth", "ray"}
    return replace(machine, gpus=tuple(cards), packages=packages, online=True, gpu_problem=None)


def settings(
    config: Config, given: frozenset[str], shape: shapes.Shape, machine: Machine
) -> dict[str, Any]:
    """The largest and the fastest setting that fit: their options and their flags. What was given
    stays."""
    resources = Resources.of_machine(config, machine)

    def placed(tried: Config) -> Placement:
        tried = search.kept(tried, config, given)
        tried = with_engines(tried, given, shape, resources)
        return place(tried, resources, shape=shape)

    def fits(tried: Config) -> bool:
        return all(card.fits for card in placed(tried).cards)

    best_of: dict[str, Any] = {}
    for name, find in (("largest", search.largest), ("fastest", search.fastest)):
        best = find(config, fits, shape.context) if machine.gpus else None
        if best is None:
            best_of[name] = None
            continue
        best = search.kept(best, config, given)
        changed = {n: getattr(best, n) for n in sorted(FREE | given - {"model", "learner", "fit"})}
        changed = {n: v for n, v in changed.items() if v is not None}
        best_of[name] = {
            **changed,
            "needed_mb": round(max(card.needed_mb() for card in placed(best).cards)),
            "command": command(best, changed),
        }
    return best_of


def remedy(
    config: Config,
    given: frozenset[str],
    shape: shapes.Shape,
    machine: Machine,
    needs: Forecast,
) -> dict[str, int] | None:
    """The longest completion, or episode, with which a run that does not fit its cards would, all
    else as it is; None where it fits, or no length of `search.LEAST_NEW_TOKENS` or more does."""
    if all(card.fits for card in needs.placement.cards):
        return None
    resources = Resources.of_machine(config, machine)

    def fits(tokens: int) -> bool:
        tried = with_engines(search.with_length(config, tokens), given, shape, resources)
        return all(card.fits for card in place(tried, resources, shape=shape).cards)

    found = STEP * search.most_that_fit(
        (config.episode_tokens - 1) // STEP, lambda count: fits(STEP * count)
    )
    return {config.length_option: found} if found >= search.LEAST_NEW_TOKENS else None


def command(config: Config, options: Mapping[str, Any]) -> str:
    """What to paste into a shell."""
    flags = {"learner": config.learner, "model": config.model, **options, "fit": "off"}
    return f"{calling.program()} train " + " ".join(
        part for name, value in flags.items() for part in written(name, value)
    )


def written(name: str, value: Any) -> list[str]:
    """An option as flags; several where it holds several values."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no_{name}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{name} {shlex.quote(str(each))}" for each in values]


def lines(config: Config, needs: Forecast, report: dict[str, Any]) -> list[str]:
    """The plan for people."""
    text = [f"{config.model}: {config.max_prompt_tokens} + {lengths(config)}, rank "
            f"{config.max_lora_rank}, micro-batch {config.train_batch_size}, "
            f"{config.sequences_at_once} sequences generated at once{under(config)}, "
            f"{config.engine}, "
            f"{config.backend} ({report['note']})", *report["changed_to_fit"]]  # fmt: skip
    for card in needs.placement.cards:
        verdict = "fits" if card.fits else "DOES NOT FIT"
        of = f"{gb(card.needed_mb())} of {gb(card.usable_mb)} usable"
        text += ["", f"{card.gpu.name}: {verdict}: {of}"]
        if not card.fits and (lower := report["would_fit_with"]):
            text += [f"would fit with --{name} {value}" for name, value in lower.items()]
        text += [line for process in card.processes for line in process_lines(process)]
    if needs.without_card:
        text += ["", "no card: the processes use the host's memory"]
        text += [line for process in needs.without_card for line in process_lines(process)]
    text.append("")
    for store in needs.stores:
        has = "" if store.has_mb is None else f" of {gb(store.has_mb)}"
        verdict = "" if store.holds else ": TOO LITTLE"
        verdict += f", {store.instead} takes its place" if verdict and store.instead else ""
        text.append(f"{store.name}: {gb(store.needed_mb)}{has}{verdict}")
    if report["step_seconds"] is not None:
        low, high = map(duration, report["step_seconds"])
        what = "episodes" if config.has_environment else "completions"
        how = f"a rough estimate from the speed of such cards{waits(config)}"
        text += ["", f"a step of {config.batch_size} x {config.num_candidates} {what}: {low} "
                 f"to {high} ({how})"]  # fmt: skip
    if report["judging_seconds"] is not None:
        low, high = map(duration, report["judging_seconds"])
        text.append(f"of that, the learner scoring with the reward model: {low} to {high}")
    for name, best in report["settings"].items():
        text.append("")
        if best is None:
            has_card = bool(needs.placement.cards)
            text.append(
                f"{name}: "
                + ("nothing fits with the options that are set" if has_card else "needs a card")
            )
        else:
            text += [f"{name} ({gb(best['needed_mb'])}):", f"    {best['command']}"]
    return text


def lengths(config: Config) -> str:
    """What comes after a prompt."""
    if not config.has_environment:
        return f"{config.max_new_tokens} tokens"
    most = "" if config.max_turns is None else f"up to {config.max_turns} "
    longest = min(config.max_new_tokens, config.episode_tokens)
    return (
        f"{config.episode_tokens} tokens in {most}turns of up to {longest}, observations included"
    )


def waits(config: Config) -> str:
    turns = speed.turns_of(config)
    return f"; at most {turns} turns, {speed.WAIT_S:g} s each for the environment" if turns else ""


def under(config: Config) -> str:
    """How many policy versions are in flight, where it is more than the newest."""
    versions = versions_in_flight(config)
    return "" if versions == 1 else f" under {versions} policy versions"


def process_lines(process: ProcessPlan) -> list[str]:
    """A line for each part, with what it takes in both phases."""
    assert process.needs is not None  # the model's sizes are known
    phases = (process.needs.generating, process.needs.updating)
    cards = len(process.cards)
    name = process.name + (f", each of its {cards} cards" if cards > 1 else "")
    text = [f"  {name:<28} {'generating':>11} {'updating':>11}"]
    for part in dict.fromkeys([*phases[0], *phases[1]]):
        values = [phase.get(part) for phase in phases]
        text.append(
            f"    {part:<26}" + "".join(f" {'-' if v is None else gb(v):>11}" for v in values)
        )
    sums = "".join(f" {gb(sum(phase.values())):>11}" for phase in phases)
    return [*text, f"    {'together':<25} {sums}"]


def table(machine: Machine) -> dict[str, Any]:
    """Known models by context on this machine's smallest card (GB needed; None: does not fit);
    without one, the longest context of each on cards of common sizes."""
    card = min(machine.gpus, key=lambda gpu: gpu.memory_mb) if machine.gpus else None
    rows: dict[str, dict[str, float | None]] = {}
    for name, shape in shapes.KNOWN.items():
        if card is not None:
            alone = replace(machine, gpus=(card,))
            rows[name] = {str(tokens): at_context(shape, tokens, alone) for tokens in CONTEXTS}
        else:
            machines = {str(gb): with_cards(machine, [of_size(gb)]) for gb in CARDS_GB}
            rows[name] = {gb: longest(shape, with_gb) for gb, with_gb in machines.items()}
    what = "GB by context" if card else "longest context by card in GB"
    return {"card": card and card.name, "what": what, "models": rows, "note": NOT_MEASURED}


def smallest(machine: Machine) -> Config:
    """The main job alone on a card, one sequence a micro-batch, `LEAST_SEQS` drawn at once."""
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
    card = placed_alone(config, shape, machine)
    return round(card.needed_mb() / 1024, 1) if card.fits else None


def placed_alone(config: Config, shape: shapes.Shape, machine: Machine) -> CardPlan:
    """The plan of the only card, which the learner has to itself."""
    resources = Resources.of_machine(config, machine)
    config = with_engines(config, frozenset(), shape, resources)
    (card,) = place(config, resources, shape=shape).cards
    return card


def longest(shape: shapes.Shape, machine: Machine) -> float | None:
    """Tokens of the longest context that fits; None where not even 64 tokens do."""

    def fits(config: Config) -> bool:
        return placed_alone(config, shape, machine).fits

    largest = search.largest(smallest(machine), fits, shape.context)
    return None if largest is None else largest.context


def table_lines(models: dict[str, Any]) -> list[str]:
    """The table for people."""
    card = models["card"] or "this machine has no card"
    names = list(next(iter(models["models"].values())))
    text = [f"{card}: {models['what']} ({models['note']})", ""]
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

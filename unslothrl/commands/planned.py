"""The plan of a run, and of a stage before it: what `plan` prints and `recipes` judges by."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unslothrl.config.names import off
from unslothrl.config.offline_options import (
    TABLES,
    DpoOptions,
    OfflineOptions,
    PreferenceOptions,
    SftOptions,
)
from unslothrl.config.options import Config
from unslothrl.config.parts import versions_in_flight
from unslothrl.config.values import RUN
from unslothrl.errors import UserError
from unslothrl.offline.resolve import Stage
from unslothrl.offline.resolve import resolve as resolve_stage
from unslothrl.planning import forecast, stages
from unslothrl.planning import setting_search as search
from unslothrl.planning.fit import with_engines
from unslothrl.planning.footprint import usable_mb
from unslothrl.planning.forecast import forecast_of
from unslothrl.planning.place import place
from unslothrl.planning.placement import Placement, Resources
from unslothrl.planning.setting_search import FREE
from unslothrl.planning.stages import Reference
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Gpu, Machine
from unslothrl.tracking import calling
from unslothrl.weights import shapes
from unslothrl.weights.shapes import Shape

STEP = 64  # tokens that a length is searched by
RECOMMENDED = "grpo"  # the learner, where none is given
OF_THE_ROWS = ("model", "max_length", "max_lora_rank", "micro_batch", "batch_size")
OF_THE_PLAN = {"model", "fit", "run_name", "output_dir", "recipe", "resume"}  # not repeated
NOT_MEASURED = "an estimate, not measured on a GPU yet"


Report = dict[str, Any]  # as JSON has it


def plan_of(command: str, given: Mapping[str, Any], machine: Machine) -> Report:
    """What a run takes. UserError where it would be refused, or the model's sizes are not known."""
    return of_stage(command, given, machine) if command in TABLES else of_run(given, machine)


def shape_of(model: str) -> Shape:
    """UserError where it is not known."""
    found = shapes.shape_or_reason(model)
    if isinstance(found, str):
        raise UserError(f"model {model}: {found}")
    return found


def note(shape: Shape) -> str:
    return NOT_MEASURED if shape.is_counted else f"{shapes.A_GUESS}; {NOT_MEASURED}"


# Reinforcement learning


def of_run(given: Mapping[str, Any], machine: Machine) -> Report:
    if not given.keys() & {"learner", "recipe", "resume"}:
        given = {**given, "learner": RECOMMENDED}
    resolved = resolve(given, machine)
    config = resolved.config
    shape = shape_of(config.model)
    needs = forecast_of(config, shape, machine)
    trial = Trial(config, resolved.given, shape, machine)
    seconds = forecast.seconds_of(config, shape, needs.placement)
    versions = versions_in_flight(config)
    under = "" if versions == 1 else f" under {versions} policy versions"
    title = (
        f"{config.model}: {config.max_prompt_tokens} + {lengths(config)}, rank "
        f"{config.max_lora_rank}, micro-batch {config.train_batch_size}, "
        f"{config.sequences_at_once} sequences generated at once{under}, {config.engine}, "
        f"{config.backend}"
    )
    what = "episodes" if config.has_environment else "completions"
    step = f"{config.batch_size} x {config.num_candidates} {what}"
    if turns := forecast.turns_of(config):
        step += f" of at most {turns} turns, {forecast.WAIT_S:g} s each for the environment"
    return {
        "title": title,
        "step": step,
        "model": config.model,
        **needs.to_json(),
        "changed_to_fit": list(resolved.notes),
        **seconds,
        "would_fit_with": trial.remedy(needs.placement),
        "settings": {
            "largest": trial.setting(search.largest),
            "fastest": trial.setting(search.fastest),
        },
        "note": note(shape),
    }


def lengths(config: Config) -> str:
    """What comes after a prompt."""
    if not config.has_environment:
        return f"{config.max_new_tokens} tokens"
    most = "" if config.max_turns is None else f"up to {config.max_turns} "
    longest = min(config.max_new_tokens, config.episode_tokens)
    return (
        f"{config.episode_tokens} tokens in {most}turns of up to {longest}, observations included"
    )


class Trial:
    """Other options of a run, tried on a machine; what was given stays."""

    def __init__(self, config: Config, given: frozenset[str], shape: Shape, machine: Machine):
        self.config, self.given, self.shape = config, given, shape
        self.resources = Resources.of_machine(config, machine)

    def placed(self, tried: Config) -> Placement:
        tried = with_engines(tried, self.given, self.shape, self.resources)
        return place(tried, self.resources, shape=self.shape)

    def fits(self, tried: Config) -> bool:
        return all(card.fits for card in self.placed(tried).cards)

    def kept(self, tried: Config) -> Config:
        return search.kept(tried, self.config, self.given)

    def setting(self, find: Any) -> dict[str, Any] | None:
        """The options and flags of the largest or the fastest setting that fits."""
        if not self.resources.gpus:
            return None
        found = find(self.config, lambda tried: self.fits(self.kept(tried)), self.shape.context)
        if found is None:
            return None
        best = self.kept(found)
        names = sorted(FREE | self.given - {"model", "learner", "fit"})
        changed = {name: value for name in names if (value := getattr(best, name)) is not None}
        flags = {"learner": best.learner, "model": best.model, **changed, "fit": "off"}
        return {
            **changed,
            "needed_mb": round(max(card.needed_mb() for card in self.placed(best).cards)),
            "command": command("train", flags),
        }

    def remedy(self, placement: Placement) -> dict[str, int] | None:
        """The longest completion, or episode, with which a run that does not fit would, all else
        as it is; None where it fits, or no length of `search.LEAST_NEW_TOKENS` or more does."""
        if all(card.fits for card in placement.cards):
            return None
        found = STEP * search.most_that_fit(
            (self.config.episode_tokens - 1) // STEP,
            lambda count: self.fits(search.with_length(self.config, STEP * count)),
        )
        return {self.config.length_option: found} if found >= search.LEAST_NEW_TOKENS else None


def command(name: str, options: Mapping[str, Any]) -> str:
    """What to paste into a shell."""
    words = [calling.program(), name]
    for option, value in options.items():
        flag = RUN.spellings(option)[0] if option in RUN else option
        if isinstance(value, bool):
            words.append(f"--{flag if value else off(flag)}")
        elif value is not None:
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--{flag} {shlex.quote(str(each))}" for each in values]
    return " ".join(words)


# SFT, DPO and reward models


def of_stage(name: str, given: Mapping[str, Any], machine: Machine) -> Report:
    stage = resolve_stage(name, given, machine=machine)
    shape = shape_of(stage.options.model)
    fitted = stages.fit(stage.options, stage.given, machine)
    options, gpu = fitted.options, machine.gpus[0] if machine.gpus else None
    needs = stages.needs(options, shape, gpu)
    stores = stages.stores_of(options, shape, needs, machine)
    fits = gpu is None or needs.needed_mb() <= usable_mb(gpu)
    process = {
        "name": stage.command,
        "training": {part: round(mb, 1) for part, mb in needs.card.items()},
        "host": {part: round(mb, 1) for part, mb in needs.host.items()},
    }
    cards = [
        {
            "name": each.name,
            "usable_mb": round(usable_mb(each)),
            "needed_mb": round(needs.needed_mb()),
            "fits": fits,
            "processes": [process],
        }
        for each in machine.gpus[:1]
    ]
    rows = kind_of_rows(options)
    title = (
        f"{stage.command} of {options.model}: {rows} of up to {options.max_length} tokens, rank "
        f"{options.max_lora_rank}, micro-batch {options.micro_batch}"
    )
    return {
        "title": title,
        "step": f"{options.batch_size} {'pairs' if 'pairs' in rows else 'rows'}",
        "command": stage.command,
        **{name: getattr(options, name) for name in OF_THE_ROWS},
        "rows": rows,
        "fits": fits and all(store.fits for store in stores),
        "cards": cards,
        "processes_without_a_card": [] if cards else [process],
        "stores": [store.to_json() for store in stores],
        "reference": reference_line(options, shape),
        "changed_to_fit": list(fitted.notes),
        "would_fit_with": gpu and (stages.remedy(options, stage.given, shape, gpu) or None),
        "step_seconds": gpu and forecast.stage_seconds(options, shape, gpu),
        "settings": stage_settings(stage, options, shape, gpu),
        "note": note(shape),
    }


def kind_of_rows(options: OfflineOptions) -> str:
    if isinstance(options, PreferenceOptions):
        return "pairs, each two rows"
    return "packed rows" if isinstance(options, SftOptions) and options.packing else "padded rows"


def reference_line(options: OfflineOptions, shape: Shape) -> str | None:
    """What DPO's reference takes in either form; None of another stage."""
    if not isinstance(options, DpoOptions):
        return None
    copy_mb = Reference(shape.lora_weights(options.max_lora_rank), 0).copy_mb
    sizes = f"a copy of the adapter {copy_mb:.2f} MB, cached 8 bytes a pair"
    if options.reference != "auto":
        return f"reference: {options.reference} ({sizes})"
    most = 2**20 * copy_mb / (2 * stages.NUMBER)
    if options.max_steps:
        most = min(most, stages.WASTED * options.max_steps * options.batch_size)
    return f"reference: cached for fewer than {most:,.0f} pairs, else a copy ({sizes})"


def stage_settings(
    stage: Stage, options: OfflineOptions, shape: Shape, gpu: Gpu | None
) -> dict[str, dict[str, Any] | None]:
    """The longest rows, and the largest micro-batch at the given length, that fit; what was given
    stays."""
    if gpu is None:
        return {"largest": None, "fastest": None}
    found: dict[str, OfflineOptions | None] = {}
    if "max_length" not in stage.given:
        found["largest"] = stages.longest(options, shape, gpu)
    if "train_batch_size" not in stage.given:
        most = stages.LARGEST_MICRO_BATCH
        found["fastest"] = stages.with_micro_batch(options, shape, gpu, most)
    names = ["model", *sorted({"max_length", "train_batch_size", *stage.given} - OF_THE_PLAN)]
    settings: dict[str, dict[str, Any] | None] = dict.fromkeys(found)
    for which, setting in found.items():
        if setting is not None and stages.fits(setting, shape, gpu):
            setting = replace(setting, train_batch_size=setting.micro_batch)
            flags = {name: getattr(setting, name) for name in names}
            settings[which] = {
                "max_length": setting.max_length,
                "train_batch_size": setting.train_batch_size,
                "needed_mb": round(stages.needs(setting, shape, gpu).needed_mb()),
                "command": command(stage.command, flags),
            }
    return settings

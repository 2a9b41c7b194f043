"""The plan of a run, and of a stage before it: what `plan` prints and `recipes` judges by."""

import itertools
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from unslothrl import rewards
from unslothrl.config.offline_options import TABLES, OfflineOptions, PreferenceOptions
from unslothrl.config.options import SPLITS, Config
from unslothrl.config.parts import versions_in_flight
from unslothrl.config.values import RUN, off
from unslothrl.data import sources
from unslothrl.data.formats import Columns, UnusableRow, attempt
from unslothrl.data.rendering import numbered
from unslothrl.embedded import BASES
from unslothrl.errors import UserError
from unslothrl.files import exists
from unslothrl.offline.resolve import resolve as resolve_stage
from unslothrl.planning import fit, forecast, stages
from unslothrl.planning import setting_search as search
from unslothrl.planning.footprint import MB
from unslothrl.planning.forecast import Forecast, forecast_of
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.runs.resolve import Resolved, resolve
from unslothrl.system.machine import Gpu, Machine
from unslothrl.tracking import origin
from unslothrl.training.trial import sentences
from unslothrl.weights import shapes
from unslothrl.weights.shapes import Shape

RECOMMENDED = "grpo"  # the learner, where none is given
OF_THE_PLAN = {"model", "learner", "fit", "recipe", "resume"}  # not repeated in what to paste
NOT_MEASURED = "estimated"
DIVIDE = (*SPLITS, "number_of_learners", "learner_chunk_size", "number_of_actors",
          "actor_pipeline_parallel")  # fmt: skip

Report = dict[str, Any]  # as JSON has it


def plan_of(command: str, given: Mapping[str, Any], machine: Machine) -> Report:
    """What a run takes. UserError where it would be refused, or the model's sizes are not known."""
    return of_stage(command, given, machine) if command in TABLES else of_run(given, machine)


def of_model(model: str) -> tuple[Shape, Report]:
    """-> (its sizes, what a plan says of it). UserError where they are not known."""
    shape = shapes.shape_or_reason(model)
    if isinstance(shape, str):
        raise UserError(f"model {model}: {shape}")
    note = NOT_MEASURED if shape.own is None else f"{shapes.A_GUESS}; {NOT_MEASURED}"
    if model in shapes.KNOWN:
        note += f"; to train it, name its repository on the hub: OWNER/{model}"
    # a checkpoint in 4 bits, or one that is quantised here
    size = shape.weight_bytes() if "4bit" in model else shape.parameters() * shapes.HALF
    return shape, {
        "model": model,
        "download_mb": 0 if model in BASES or exists(model) else round(size / MB),
        "note": note,
    }


# Reinforcement learning


def of_run(given: Mapping[str, Any], machine: Machine) -> Report:
    if not given.keys() & {"learner", "recipe", "resume"}:
        given = {**given, "learner": RECOMMENDED}
    resolved = resolve(given, machine)
    config = resolved.config
    shape, facts = of_model(config.model)
    needs = forecast_of(config, shape, machine)
    tried = (config, resolved.given, shape, machine)
    cards, rows = needs.placement.cards, forecast.rows_of(config)
    fits = all(card.fits for card in cards)
    seconds = forecast.seconds_of(config, shape, cards)
    versions = versions_in_flight(config)
    under = "" if versions == 1 else f" under {versions} policy versions"
    step = f"{config.batch_size} x {config.num_candidates} completions"
    if turns := forecast.turns_of(config):
        step += f" of at most {turns} turns, {forecast.WAIT_S:g} s each for the environment"
    return {
        "title": f"{config.model}: {config.max_prompt_tokens} + {config.episode_tokens} tokens, "
        f"rank {config.max_lora_rank}, micro-batch {config.train_batch_size}, "
        f"{config.sequences_at_once} sequences generated at once{under}, "
        f"{config.generating_engine}, {config.backend}",
        "step": step,
        **facts,
        **needs.to_json(),
        "changed_to_fit": list(resolved.notes),
        "warnings": of_answers(config),
        **seconds,
        "dataset": config.dataset,
        "problems": rows and rows[0],
        "steps": forecast.steps_of(config, rows),
        **(forecast.evaluations_of(config, shape, cards, rows) if cards else {}),
        "would_fit_with": None if fits else remedy(*tried),
        "command": to_start(RUN.command, given, needs, config.model),
        "settings": {} if "recipe" in given else settings_of(*tried),
        "exchange": forecast.exchange(config, shape),
    }


def of_answers(config: Config) -> list[str]:
    """What a run would warn of in the first answers of a file."""
    if config.dataset in BASES or not sources.parse(config.dataset).is_local:
        return []
    chosen, splits = rewards.choose(config.reward), forecast.splits_of(config.dataset)
    reader = rewards.reader_of(chosen, Columns(config.prompt_column, config.answer_column))
    rows = itertools.islice(numbered(splits[sources.train_of(splits)]), 50)
    read = [attempt(reader.record, row) for _, row in rows]
    return sentences(chosen, [each for each in read if not isinstance(each, UnusableRow)])


def settings_of(
    config: Config, given: frozenset[str], shape: Shape, machine: Machine
) -> dict[str, dict[str, Any] | None]:
    """The largest and the fastest setting that fits, as `--fit` finds it; what was given stays."""
    found: dict[str, dict[str, Any] | None] = {}
    for which in ("fastest",) if config.length_option in given else ("largest", "fastest"):
        best, _ = fit.fit(replace(config, fit=which), given, machine)
        cards = place(best, Resources.of_machine(best, machine), shape=shape).cards
        found[which] = None
        if cards and all(card.fits for card in cards):
            mb = max(card.needed_mb() for card in cards)
            first = {"learner": best.learner, "model": best.model}
            names = search.FREE | given
            if best.learners_together > 1 or best.gpus_per_actor > 1:  # what no GPU holds alone
                names |= {name for name in DIVIDE if getattr(best, name) != getattr(Config(), name)}
            line = setting(RUN.command, best, names, mb, first, {"fit": "off"})
            found[which] = line | forecast.seconds_of(best, shape, cards)
    return found


def remedy(
    config: Config, given: frozenset[str], shape: Shape, machine: Machine
) -> dict[str, int] | None:
    """The longest completion, or episode, with which a run that does not fit would, all else as it
    is; None where no length of `search.LEAST_NEW_TOKENS` or more does."""
    resources = Resources.of_machine(config, machine)

    def fits(tokens: int) -> bool:
        tried = search.with_length(config, tokens)
        tried = fit.with_engines(tried, given, shape, resources)
        return all(card.fits for card in place(tried, resources, shape=shape).cards)

    found = search.longest_that_fits(config.episode_tokens - 1, fits)
    return {config.length_option: found} if found >= search.LEAST_NEW_TOKENS else None


def setting(
    command: str,
    best: Config | OfflineOptions,
    names: Set[str],
    needed_mb: float,
    first: Mapping[str, Any],
    last: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """The options `names` as `best` has them, and what to paste into a shell for them."""
    options = {name: getattr(best, name) for name in sorted(names - OF_THE_PLAN)}
    chosen = {name: value for name, value in options.items() if value is not None}
    line = pasted(command, {**first, **chosen, **last})
    return {**chosen, "needed_mb": round(needed_mb), "command": line}


def to_start(command: str, given: Mapping[str, Any], needs: Forecast, model: str) -> str | None:
    """What to paste for a run that fits; its GPUs may be on another machine than this one."""
    cards = needs.placement.cards
    fits = all(card.fits for card in cards) if cards else needs.fits
    return pasted(command, given) if fits and model not in shapes.KNOWN else None


def pasted(command: str, options: Mapping[str, Any]) -> str:
    """What to paste into a shell for a run with these options."""
    words: list[str] = []
    for option, value in options.items():
        flag = RUN.flag(option) if option in RUN.options else option
        if isinstance(value, bool):
            words.append(f"--{flag if value else off(flag)}")
        else:
            for each in value if isinstance(value, tuple) else (value,):
                words += [f"--{flag}", str(each)]
    return origin.command(command, *words)


# SFT, DPO and reward models


def of_stage(name: str, given: Mapping[str, Any], machine: Machine) -> Report:
    stage = resolve_stage(name, given, machine=machine)
    shape, facts = of_model(stage.options.model)
    fitted = stages.fit(stage.options, stage.given, machine)
    options, gpu = fitted.options, machine.gpus[0] if machine.gpus else None
    rows, needs = forecast.rows_of(options), stages.forecast_of(options, shape, machine)
    read = "pairs, each two rows" if isinstance(options, PreferenceOptions) else "rows"
    return {
        "title": f"{name} of {options.model}: {read} of up to {options.max_length} tokens, rank "
        f"{options.max_lora_rank}, micro-batch {options.micro_batch}",
        "step": f"{options.batch_size} {read.partition(',')[0]}",
        **facts,
        **needs.to_json(),
        "changed_to_fit": list(fitted.notes),
        "command": to_start(name, given, needs, options.model),
        "would_fit_with": gpu and (stages.remedy(options, stage.given, shape, gpu) or None),
        "dataset": options.dataset,
        "problems": rows and rows[0],
        "steps": forecast.steps_of(options, rows),
        "step_seconds": gpu and forecast.stage_seconds(options, shape, gpu),
        "settings": {} if "recipe" in given else stage_settings(stage, options, shape, gpu),
    }


def stage_settings(
    stage: Resolved, options: OfflineOptions, shape: Shape, gpu: Gpu | None
) -> dict[str, dict[str, Any] | None]:
    """The longest rows, and the largest micro-batch at the given length, that fit."""
    if gpu is None:
        return {"largest": None, "fastest": None}
    found: dict[str, OfflineOptions | None] = {}
    if "max_length" not in stage.given:
        found["largest"] = stages.longest(options, shape, gpu)
    if "train_batch_size" not in stage.given:
        most = replace(options, train_batch_size=stages.LARGEST_MICRO_BATCH)
        found["fastest"] = stages.with_micro_batch(most, shape, gpu)
    names = {"max_length", "train_batch_size"} | stage.given
    settings: dict[str, dict[str, Any] | None] = dict.fromkeys(found)
    for which, tried in found.items():
        if tried is not None and stages.fits(tried, shape, gpu):
            tried = replace(tried, train_batch_size=tried.micro_batch)
            mb = stages.needs(tried, shape, gpu).peak_mb()
            settings[which] = setting(stage.command, tried, names, mb, {"model": tried.model})
    return settings

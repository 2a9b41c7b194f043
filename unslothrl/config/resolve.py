"""From what the user gave to a config that can run.

Later layers win: the defaults, the tiny-cpu recipe where the base is the embedded one, the config
of the run that is resumed, `--recipe FILE.toml`, the flags. What none of the last three gives may
be changed by `planning.fit` so that it fits the machine.
"""

import datetime
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unslothrl import environments, option_rules, rewards
from unslothrl.algorithms import objectives
from unslothrl.config.changes import changed
from unslothrl.config.checks import check
from unslothrl.config.options import OPTIONS, Config
from unslothrl.config.parts import objective_of, with_objective, without_parts_of
from unslothrl.config.reading import (
    EMBEDDED_RECIPE,
    RECIPES,
    read_recipe,
    read_toml,
)
from unslothrl.config.values import RUN, read_value
from unslothrl.data import sources
from unslothrl.embedded import EMBEDDED, EMBEDDED_TURNS
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_file, newest_numbered
from unslothrl.mirror import address
from unslothrl.planning import fit
from unslothrl.planning.machine import Machine
from unslothrl.redaction import is_hidden, redacted_values
from unslothrl.rewards import model as reward_model
from unslothrl.runs import resume
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import free_name
from unslothrl.weights import adapter_check, adapter_use, portable, starting_adapter
from unslothrl.weights.adapter_check import Lora

PATHS = ("adapter", "lora_save_path", "output_dir", "ray_temp_dir", "resume")  # may begin with ~
IN_FULL = ("adapter", "lora_save_path", "ray_temp_dir", "model", "dataset", "eval_dataset")
MOVABLE = ("adapter", "lora_save_path", "ray_temp_dir")  # a run keeps these in full

CONFIG_FILE = "config.toml"  # of a run's folder
ADAPTERS = "adapters"  # there
FIXED = {  # what a resumed run may not change, and why
    "model": "its checkpoint depends on that",
    "adapter": "its checkpoint depends on that",
    "max_lora_rank": "its checkpoint depends on that",
    "lora_alpha": "its checkpoint depends on that",
    "seed": "the order of its problems depends on that",
}


@dataclass(frozen=True)
class Resolved:
    """A config that can run: `given` names what the user set, `notes` what was changed to fit."""

    config: Config
    given: frozenset[str]
    notes: tuple[str, ...]
    recipe: dict[str, Any] = field(default_factory=dict)  # see `runs.resume.recipe_of`


def resolve(
    flags: Mapping[str, Any], machine: Machine | None = None, fetch: resume.Fetch | None = None
) -> Resolved:
    """The config of a run from its flags (name -> value, as text or typed). Raises UserError.

    What can be checked without looking at the machine is checked first; without `machine`, it is
    then looked at. `fetch` gets a run that is to go on from a mirror; without it none is.
    """
    notes: list[str] = []
    flags = {name: read_value(name, value) for name, value in flags.items()}
    recipe = {} if flags.get("recipe") is None else read_recipe(flags["recipe"])
    requested = requested_options(flags, recipe)
    asked = with_recipe(flags, recipe)
    user = starting_adapter.with_base(user_layers(asked, notes, fetch), notes)
    given = frozenset(user) - {"recipe", "resume"}
    notes += check_named(replace(Config(), **user))
    machine = machine or Machine.detect()
    if fit.needs_hub(given, machine):
        machine = machine.look_for_hub()
    config = replace(Config(), **with_default_task(user, machine))
    config, adapter = with_adapter(config, requested)
    config = with_idle_learners(config, requested, notes)
    config, changes = fit.fit(config, given, machine)
    if "topk" not in given:
        config = replace(config, topk=min(config.topk, config.num_candidates))
    config = with_objective(with_reward(config))
    check(config)
    notes += changes
    config = with_correction(config, given, notes)
    named = name_run(config)
    named = replace(named, **in_full({name: getattr(named, name) for name in IN_FULL}))
    if config.run_name not in (None, named.run_name) and config.resume is None:
        notes.append(f"run_name {config.run_name} -> {named.run_name}: it is taken")
    if named.resume is not None:
        before = read_toml(expanded(named.resume) / CONFIG_FILE)
        notes += [f"{line}: changed in this resume" for line in changed(before, named)]
    facts = option_rules.Facts(config, objective_of(config), machine, adapter)
    notes += option_rules.notes(requested, facts)
    return Resolved(named, given, tuple(dict.fromkeys(notes)), resume.recipe_of(in_full(asked)))


def with_reward(config: Config) -> Config:
    """The config with the rewards that it has where none is asked for: an environment that is named
    has its own. UserError where there would be none at all."""
    has_own = config.environment != environments.SINGLE_TURN
    if config.reward == (rewards.NONE,) and not has_own:
        raise UserError("reward none: nothing would be learnt from: set --environment, or a reward")
    usual = (rewards.NONE,) if has_own else rewards.defaults()
    return replace(config, reward=config.reward or usual)


def requested_options(flags: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the user asked for: the flags, and what a recipe of the user's own changes.

    The config.toml of a run is a recipe too, and names every option.
    """
    if flags.get("recipe") in RECIPES:
        recipe = {}
    changed = without_parts_of(recipe)
    changed = {name: v for name, v in changed.items() if v != OPTIONS[name].default}
    return {**changed, **flags}


def with_recipe(flags: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Flags over a recipe."""
    if flags.get("learner", recipe.get("learner")) != recipe.get("learner"):
        recipe = without_parts_of(recipe)
    return {**recipe, **flags}


def user_layers(
    asked: Mapping[str, Any], notes: list[str], fetch: resume.Fetch | None = None
) -> dict[str, Any]:
    """What was asked for, over the run that goes on; of a run that is named as an adapter or a
    reward model the newest. Functions' files have their whole paths."""
    output_dir = str(expanded(asked.get("output_dir", Config.output_dir)))
    user = {**asked, **resume.found(in_full(asked), output_dir, notes, fetch)}
    if user.get("resume") is not None:
        for name in resume.as_begun(user["resume"], in_full(asked)) & FIXED.keys():
            del user[name]
        before = resumed_layer(user)
        if user.get("reward"):
            user["reward"] = reward_model.kept(
                in_full(user)["reward"],
                resume.recipe_at(user["resume"]).get("reward"),
                before.get("reward", ()),
            )
        user = {**before, **user, **resumed_place(user["resume"])}
    if user.get("mirror") is not None:
        user["mirror"] = address.canonical("mirror", user["mirror"])
    if user.get("adapter") is not None:
        user["adapter"] = newest_of_run(user["adapter"])
    user = functions_in_full(user)
    if "reward" in user:
        user["reward"] = tuple(map(newest_reward, user["reward"]))
    return {
        name: str(expanded(value)) if name in PATHS and value is not None else value
        for name, value in user.items()
    }


def in_full(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Paths by their whole names: a run that goes on from another folder finds them, so does one
    whose own folder was moved, and so do other processes. A run stays a run."""
    full = functions_in_full(layer)
    for name in MOVABLE:
        if full.get(name) not in (None, EMBEDDED_TURNS):
            full[name] = str(expanded(full[name]).absolute())
    if _is_path(full.get("model") or ""):
        full["model"] = str(expanded(full["model"]).absolute())
    if full.get("dataset") is not None:
        full["dataset"] = sources.absolute(full["dataset"])
    if full.get("eval_dataset"):
        full["eval_dataset"] = tuple(map(sources.absolute_eval, full["eval_dataset"]))
    return full


def functions_in_full(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Files of functions and programs, and reward models, by their whole paths."""
    full = {**layer}
    if objectives.is_file(full.get("learner") or ""):
        full["learner"] = str(expanded(full["learner"]).absolute())
    if full.get("environment") is not None:
        full["environment"] = _absolute_file(full["environment"])
    if full.get("reward"):
        full["reward"] = tuple(map(absolute_reward, full["reward"]))
    if full.get("tools"):
        full["tools"] = tuple(map(environments.absolute_tool, full["tools"]))
    if full.get("environment_python") is not None:
        full["environment_python"] = absolute_program(full["environment_python"])
    return full


def newest_of_run(adapter: str) -> str:
    """The newest adapter where a run's folder is given, else what is given."""
    newest = newest_numbered(expanded(adapter) / ADAPTERS, "v")
    return adapter if newest is None else str(newest)


def resumed_layer(user: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the run that is resumed, without what another learner sets otherwise."""
    file = expanded(user["resume"]) / CONFIG_FILE
    if not is_file(file):
        raise UserError(
            f"resume must be a run's folder, got {user['resume']} (it has no config.toml): "
            "set --resume runs/<run_name>"
        )
    resume.check_command(file, RUN.command)
    before = read_toml(file)
    for name in sorted(before.keys() - user.keys()):
        if is_hidden(before[name]):
            raise UserError(
                f"{name} {before[name]}: the folder of the run that is resumed keeps no secrets: "
                f"set --{name} again"
            )
    check_unchanged(before, user)
    if user.get("learner", before.get("learner")) != before.get("learner"):
        before = without_parts_of(before)
    return before


def resumed_place(folder: str) -> dict[str, str]:
    """A resumed run keeps its folder, also where that was moved."""
    path = expanded(folder)
    return {"run_name": path.resolve().name, "output_dir": str(path.parent)}


def with_default_task(user: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """The user's layers over the model and data set of this machine, and over the recipe of the
    embedded base where that is the model."""
    model, dataset = fit.default_task(machine)
    layers = {"model": model, "dataset": dataset, **user}
    if layers["model"] != EMBEDDED:
        return layers
    tiny = read_recipe(EMBEDDED_RECIPE)
    if "episodes" in user and layers["dataset"] != EMBEDDED:
        del tiny["max_steps"]  # the user counts in episodes
    return {**layers, **tiny, **user}


def with_adapter(config: Config, requested: Mapping[str, Any]) -> tuple[Config, Lora | None]:
    """-> (the config with the LoRA's shape of the adapter that it starts from, that adapter)."""
    folder = starting_adapter.folder(config)
    if folder is None:
        return config, None
    lora = adapter_check.check_settings(folder)
    if requested.get("max_lora_rank", lora.rank) < lora.rank:
        raise UserError(
            f"max_lora_rank {requested['max_lora_rank']}: adapter {config.adapter} has rank "
            f"{lora.rank}: set --max_lora_rank {lora.rank}, or leave it out"
        )
    alpha = int(lora.alpha) if lora.alpha == int(lora.alpha) else config.lora_alpha
    shaped = replace(
        config, max_lora_rank=lora.rank, lora_alpha=alpha, lora_dropout=lora.dropout
    )  # fmt: skip
    return shaped, lora


def with_idle_learners(config: Config, requested: Mapping[str, Any], notes: list[str]) -> Config:
    """While actors generate all the time learners only train."""
    if not config.max_staleness:
        return config
    if requested.get("learner_chunk_size"):
        notes.append(
            f"learner_chunk_size {config.learner_chunk_size} -> 0: with max_staleness "
            f"{config.max_staleness} learners generate nothing"
        )
    return replace(config, learner_chunk_size=0)


def with_correction(config: Config, given: Set[str], notes: list[str]) -> Config:
    """Rollouts of older versions are corrected for, unless the user has turned that off."""
    if not config.max_staleness or config.correction != "none":
        return config
    old = f"rollouts may be older than the policy (max_staleness {config.max_staleness})"
    if "correction" in given:
        notes.append(f"warning: correction none, and {old}: the gradient is biased")
        return config
    notes.append(f"correction none -> truncated: {old}")
    return replace(config, correction="truncated")


def _absolute_file(text: str) -> str:
    """`file.py:name` by its whole path: other processes read it too."""
    file, separator, rest = text.partition(".py:")
    return str(expanded(file).absolute()) + separator + rest if separator else text


def absolute_reward(text: str) -> str:
    """A function's file or a reward model's folder by its whole path."""
    is_model = text.startswith(reward_model.PREFIX)
    return reward_model.absolute(text) if is_model else _absolute_file(text)


def newest_reward(text: str) -> str:
    """The newest reward model where a run's folder is given, else what is given."""
    return reward_model.in_full(text) if text.startswith(reward_model.PREFIX) else text


def absolute_program(text: str) -> str:
    """A program by its whole path; one that is a bare name is looked for when it is started."""
    return str(expanded(text).absolute()) if "/" in text else text


def check_unchanged(before: Mapping[str, Any], user: Mapping[str, Any]) -> None:
    """Raises UserError where a resumed run would need another checkpoint than its own."""
    before, user = in_full(before), in_full(user)
    if user.get("adapter") is not None:
        user["adapter"] = newest_of_run(user["adapter"])
    for name, why in FIXED.items():
        was = before.get(name, OPTIONS[name].default)
        if name == "model" and resume.base_parts_at(user["resume"]):
            continue  # a copy of it may lie elsewhere: its content is compared
        if name in user and redacted_values(user[name]) != was:
            raise UserError(
                f"{name} {user[name]}: the run that is resumed has {'none' if was is None else was}"
                f", and {why}: leave --{name} out, or start a new run"
            )
    learner, was = user.get("learner"), before.get("learner", Config.learner)
    if learner and objectives.load(learner).has_critic != objectives.load(was).has_critic:
        raise UserError(
            f"learner {learner}: the run that is resumed has {was}, and only one of them has a "
            "critic: leave --learner out, or start a new run"
        )


def check_named(config: Config) -> list[str]:
    """-> notes. Raises UserError for a file, a folder, an objective, a reward, an environment or a
    tool that is not there, or not what it must be."""
    check_paths(config)
    objectives.load(config.learner)
    rewards.choose(config.reward)
    environments.check(config.environment)
    environments.options_of(config.environment_options)
    return environments.check_tools(config.tools)


def check_paths(config: Config) -> None:
    if _is_path(config.model) and not exists(config.model):
        raise UserError(f"model {config.model}: no such file or folder: check the path")
    evals = sources.eval_sources(config.eval_dataset)
    named = [text for text in evals.values() if text is not None]
    for name, text in [("dataset", config.dataset), *(("eval_dataset", text) for text in named)]:
        check_source(name, text)
    folder = starting_adapter.folder(config)
    if folder is not None:
        check_start(config)
        adapter_check.check_format(folder)
        adapter_use.check_policy(expanded(folder))
    check_folders(config.output_dir, config.lora_save_path, config.run_name, config.resume)


def check_start(options: starting_adapter.Options) -> None:
    """UserError where a run that goes on would have another adapter than it began with."""
    if options.resume is not None:
        starting_adapter.check(options, origin.read(expanded(options.resume)).start)


def check_source(name: str, text: str) -> None:
    """UserError where the source of option `name` is a file or folder that is not there."""
    source = sources.parse(text)
    if source.is_local and not exists(source.name):
        raise UserError(f"{name} {source.name}: no such file or folder: check the path")


def check_folders(
    output_dir: str, lora_save_path: str | None, run_name: str | None, resume: str | None
) -> None:
    """UserError for a folder to write into that is a file, and a name that is no folder's."""
    for name, value in (("output_dir", output_dir), ("lora_save_path", lora_save_path)):
        if value is not None and exists(value) and not Path(value).is_dir():
            raise UserError(f"{name} {value} is a file: set --{name} to a folder")
    if lora_save_path is not None:
        portable.check_target(expanded(lora_save_path))
    is_new = resume is None  # else the folder is there, whatever its name
    if is_new and run_name is not None and not re.fullmatch(r"[\w][\w.+=@-]{0,99}", run_name):
        raise UserError(
            "run_name must be at most 100 letters, digits and . _ - + = @, got "
            f"{run_name[:120]!r}: set --run_name and put folders into --output_dir"
        )


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~"))


def name_run(config: Config) -> Config:
    """The config with a run name whose folder is still free, unless it continues a run."""
    if config.resume is not None:
        return config
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    wanted = config.run_name or f"{Path(config.learner).stem}-{now}"
    return replace(config, run_name=free_name(config.output_dir, wanted))

"""From what the user gave to options that can run.

The layers, each of which wins over those before it:

    the defaults
    the task of the machine: its model and data set, and the tiny-cpu recipe of the embedded base
    the config.toml of the run that is resumed
    `--recipe FILE.toml`
    the flags
    the shape of the adapter that training begins with

What is then not set by any of them but the first two is fitted to the machine (`planning.fit`), and
what follows from other options is filled in (`following`).
"""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from unslothrl import environments, rewards
from unslothrl.algorithms import objectives
from unslothrl.config import rules
from unslothrl.config.offline_options import OfflineOptions, RmOptions
from unslothrl.config.options import SPLITS, Config
from unslothrl.config.parts import with_objective, without_kl, without_parts_of
from unslothrl.config.toml_files import EMBEDDED_RECIPES, RECIPES, read_recipe, read_toml
from unslothrl.config.values import RUN, Table, read_value
from unslothrl.data import sources
from unslothrl.embedded import BASES, EMBEDDED, EMBEDDED_TURNS
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_file, newest_numbered
from unslothrl.planning import fit
from unslothrl.rewards import model as reward_model
from unslothrl.runs import resume
from unslothrl.system.machine import Machine
from unslothrl.text import is_hidden, redacted_values
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import ADAPTERS, CONFIG, RUN_NAME, free_name
from unslothrl.weights import adapter_use, starting_adapter

if TYPE_CHECKING:
    from unslothrl.weights.adapter_check import Lora

FIXED = {"model", "adapter", "max_lora_rank", "lora_alpha", "seed"}  # in a resumed run of RL
FREE_OF_STAGES = resume.FREE | {"lora_save_path", "train_batch_size", "fit"}  # all else is fixed

Options = Config | OfflineOptions
AnyOptions = TypeVar("AnyOptions", Config, OfflineOptions)


@dataclass(frozen=True)
class Resolved:
    """Options that can run: `given` names what the user set, `notes` what was changed to fit."""

    options: Any  # of the command
    given: frozenset[str]
    notes: tuple[str, ...]
    recipe: dict[str, Any] = field(default_factory=dict)  # see `runs.resume.recipe_of`
    command: str = RUN.command

    @property
    def config(self) -> Config:
        return self.options

    def with_options(self, options: Any, *notes: str) -> "Resolved":
        return replace(self, options=options, notes=(*self.notes, *notes))


@dataclass
class Layers:
    """What the user asked for, on top of the run that is resumed."""

    asked: dict[str, Any]  # recipe and flags
    requested: dict[str, Any]  # of these what is not as it usually is
    user: dict[str, Any]  # the three layers as one
    notes: list[str]

    @property
    def given(self) -> frozenset[str]:
        return frozenset(self.user) - {"recipe", "resume"}


def resolve(
    flags: Mapping[str, Any], machine: Machine | None = None, fetches: bool = False
) -> Resolved:
    """The config of a run from its flags (name -> value, as text or typed), on this machine unless
    one is given. `fetches`: also a run that is resumed from a mirror. Raises UserError."""
    layers = layers_of(RUN, flags, fetches)
    given, notes = layers.given, layers.notes
    asked = replace(Config(), **layers.user)
    check_files(asked)
    objectives.load(asked.learner)
    rewards.choose(asked.reward)
    environments.check(asked.environment)
    environments.options_of(asked.environment_options)
    notes += environments.check_tools(asked.tools)
    lora = lora_of(asked)
    machine = machine or Machine.detect()
    if fit.needs_hub(given, machine):
        machine = machine.look_for_hub()
    config = replace(Config(), **task_of_machine(layers.user, machine))
    config = replace(config, **shape_of(config))
    if config.max_staleness:  # actors generate all the time: learners only train
        config = replace(config, learner_chunk_size=0)
    if (together := config.learners_together) > 1:  # they only train
        usual = dict[str, Any](learner_chunk_size=0, number_of_learners=together)
        config = replace(config, **{k: v for k, v in usual.items() if k not in given})
    config, changes = fit.fit(config, given, machine)
    notes += changes
    config = following(config, layers)
    rules.check(config)
    notes += rules.notes(layers.requested, config, machine, lora)
    recipe = resume.recipe_of(RUN, layers.asked)
    return Resolved(config, given, tuple(dict.fromkeys(notes)), recipe)


def layers_of(table: Table, flags: Mapping[str, Any], fetches: bool) -> Layers:
    """Recipe and flags over the run that is resumed, with whole paths. Raises UserError."""
    notes: list[str] = []
    flags = {name: read_value(name, value, table=table) for name, value in flags.items()}
    recipe = {} if flags.get("recipe") is None else read_recipe(flags["recipe"], table, notes)
    own = {} if flags.get("recipe") in RECIPES else without_parts_of(recipe)
    usual = {name: entry.default for name, entry in table.options.items()}
    requested = {name: value for name, value in own.items() if value != usual[name]} | flags
    if flags.get("learner", recipe.get("learner")) != recipe.get("learner"):
        recipe = without_parts_of(recipe)
    asked = in_full({**without_kl(recipe, flags), **flags})
    output_dir = str(expanded(asked.get("output_dir", Config.output_dir)))
    user = {**asked, **resume.found(table, asked, output_dir, notes, fetches)}
    if "eval_dataset" not in flags and is_of_other_data(recipe, flags):
        del user["eval_dataset"]
        if user.get("resume") is None:
            notes.append(
                "the recipe's eval_dataset is left out, as --dataset is another: set "
                "--eval_dataset to evaluate on more than its own rows"
            )
    for name in ("output_dir", "resume"):
        if user.get(name) is not None:
            user[name] = str(expanded(user[name]))
    if user.get("adapter") is not None:
        newest = newest_numbered(expanded(user["adapter"]) / ADAPTERS, "v")  # of a run's folder
        user["adapter"] = user["adapter"] if newest is None else str(newest)
    if user.get("resume") is not None:
        user = over_resumed(table, user, asked, notes)
    if "reward" in user:
        user["reward"] = tuple(
            reward_model.in_full(text) if text.startswith(reward_model.PREFIX) else text
            for text in user["reward"]
        )
    user = starting_adapter.with_base(user, notes)
    return Layers(asked, requested, user, notes)


def is_of_other_data(recipe: Mapping[str, Any], flags: Mapping[str, Any]) -> bool:
    """Whether what a recipe evaluates on belongs to another data set than that of the flags."""
    if "dataset" not in flags or not {"dataset", "eval_dataset"} <= recipe.keys():
        return False
    of_recipe, of_run = (
        sources.parse(sources.absolute(layer["dataset"])).name for layer in (recipe, flags)
    )
    return of_recipe != of_run


def over_resumed(
    table: Table, user: Mapping[str, Any], asked: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """What was asked for over the options of the run that is resumed, which keeps its folder, and
    what is fixed. UserError where that is to change."""
    folder, user = expanded(user["resume"]), {**user}
    if not is_file(folder / CONFIG):
        raise UserError(
            f"resume must be a run's folder, got {folder} (it has no {CONFIG}): "
            "set --resume runs/<run_name>"
        )
    before = read_toml(folder / CONFIG, table, notes)
    if not asked.keys().isdisjoint(SPLITS):  # by which it is chosen again
        before.pop("number_of_learners", None)
    begun, now = origin.read(folder).recipe or {}, resume.recipe_of(table, asked)
    fixed = FIXED if table is RUN else set(table.options) - FREE_OF_STAGES
    for name in sorted(fixed & user.keys()):
        was = in_full({name: before.get(name, table.options[name].default)})[name]
        if name in begun and now.get(name) == begun[name] and not is_hidden(begun[name]):
            del user[name]  # it says what it said then: what the run made of it counts
        elif name == "model" and origin.read(folder).base:
            continue  # a copy of it may lie elsewhere: its content is compared
        elif redacted_values(user[name]) != was:
            raise UserError(
                f"{name} {user[name]}: the run that is resumed has {'none' if was is None else was}"
                f": leave --{name} out, or start a new run from its adapter with --adapter"
            )
    for name in sorted(before.keys() - user.keys()):
        if is_hidden(before[name]):
            raise UserError(
                f"{name} {before[name]}: the folder of the run that is resumed keeps no secrets: "
                f"set --{name} again"
            )
    if user.get("reward"):
        had = before.get("reward", ())
        user["reward"] = reward_model.kept(user["reward"], begun.get("reward"), had)
    learner, was = user.get("learner"), before.get("learner", Config.learner)
    if learner not in (None, was) and not has_moved(folder, was, learner):
        if objectives.load(learner).has_critic != objectives.load(was).has_critic:
            raise UserError(
                f"learner {learner}: the run that is resumed has {was}, and only one of them has a "
                "critic: leave --learner out, or start a new run"
            )
        before = without_parts_of(before)
    place = {"run_name": folder.resolve().name, "output_dir": str(folder.parent)}
    return {**without_kl(before, user), **user, **place}


def has_moved(run: Path, was: str, learner: str) -> bool:
    """Whether the file of the run's objective is no longer there, and another has its content."""
    is_elsewhere = not is_file(was) and is_file(learner)
    return is_elsewhere and origin.read(run).code.get(was) == origin.hash_of(expanded(learner))


# Paths by their whole names: a run that goes on from another folder finds them, so does one whose
# own folder was moved, and so do other processes. A run stays a run.


def whole_path(text: str) -> str:
    return text if text == EMBEDDED_TURNS else str(expanded(text).absolute())


def whole_function(text: str) -> str:
    """`file.py:name`, a learner's file.py, a reward model, or a name of ours."""
    if text.startswith(reward_model.PREFIX):
        return reward_model.absolute(text)
    file, separator, rest = text.partition(".py:")
    is_a_file = separator or objectives.is_file(text)
    return whole_path(file) + separator + rest if is_a_file else text


WHOLE: dict[str, Callable[[Any], Any]] = {
    "adapter": whole_path,
    "lora_save_path": whole_path,
    "model": lambda text: whole_path(text) if is_path(text) else text,
    "dataset": sources.absolute,
    "eval_dataset": lambda texts: tuple(map(sources.absolute_eval, texts)),
    "learner": whole_function,
    "environment": whole_function,
    "reward": lambda texts: tuple(map(whole_function, texts)),
    "tools": lambda texts: tuple(map(environments.absolute_tool, texts)),
    "environment_python": lambda text: whole_path(text) if "/" in text else text,
}


def in_full(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if value is None or name not in WHOLE else WHOLE[name](value)
        for name, value in layer.items()
    }


def is_path(name: str) -> bool:
    return name.startswith((".", "/", "~"))


# What follows from other options


def task_of_machine(user: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """The user's layers over this machine's task, and over the recipe of the embedded base."""
    usual = fit.default_task(machine)
    if "dataset" in user:
        own = usual["model"] in BASES and user["dataset"] in BASES
        usual = {"model": user["dataset"] if own else usual["model"]}
    layers = {**usual, **user}
    if layers["model"] not in BASES:
        return layers
    tiny = read_recipe(EMBEDDED_RECIPES[layers["model"]])
    if "episodes" in user and {**tiny, **user}["dataset"] != EMBEDDED:
        del tiny["max_steps"]  # the user counts in episodes
    return {**tiny, **user}


def lora_of(options: Options) -> "Lora | None":
    """The settings of the adapter that training begins with. UserError."""
    folder = starting_adapter.folder(options)
    if folder is None:
        return None
    from unslothrl.weights import adapter_check

    return adapter_check.check_settings(folder)


def shape_of(options: Options) -> dict[str, Any]:
    """The options that its adapter decides. A resumed run goes on as it began. UserError."""
    if options.resume is not None or (lora := lora_of(options)) is None:
        return {}
    alpha = int(lora.alpha) if lora.alpha == int(lora.alpha) else options.lora_alpha
    return {"max_lora_rank": lora.rank, "lora_alpha": alpha, "lora_dropout": lora.dropout}


def following(config: Config, layers: Layers) -> Config:
    """The config with what its other options decide, and its own name. UserError."""
    has_own = config.environment != environments.SINGLE_TURN
    if config.reward == (rewards.NONE,) and not has_own:
        raise UserError("reward none: nothing would be learnt from: set --environment, or a reward")
    usual = (rewards.NONE,) if has_own else rewards.defaults()
    topk = config.topk if "topk" in layers.given else min(config.topk, config.num_candidates)
    config = with_objective(replace(config, reward=config.reward or usual, topk=topk))
    notes, stale = layers.notes, config.max_staleness
    if stale and layers.requested.get("learner_chunk_size"):
        notes.append(
            f"learner_chunk_size {layers.requested['learner_chunk_size']} -> 0: with max_staleness "
            f"{stale} learners generate nothing"
        )
    if stale and config.correction == "none":
        old = f"rollouts may be older than the policy (max_staleness {stale})"
        if "correction" in layers.given:
            notes.append(f"warning: correction none, and {old}: the gradient is biased")
        else:
            notes.append(f"correction none -> truncated: {old}")
            config = replace(config, correction="truncated")
    return named(config, Path(config.learner).stem, notes)


def named(options: AnyOptions, kind: str, notes: list[str]) -> AnyOptions:
    """With a run name whose folder is still free, unless it is a resumed run."""
    if options.resume is not None:
        return options
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = free_name(options.output_dir, options.run_name or f"{kind}-{now}")
    if options.run_name not in (None, name):
        notes.append(f"run_name {options.run_name} -> {name}: it is taken")
    return replace(options, run_name=name)


# Checks that need neither the machine nor a model


def check_files(options: Options) -> None:
    """UserError for a model, data set, adapter or folder that is not what it must be."""
    if is_path(options.model) and not exists(options.model):
        raise UserError(f"model {options.model}: no such file or folder: check the path")
    evals = sources.eval_sources(options.eval_dataset)
    named = [("eval_dataset", text) for text in evals.values() if text is not None]
    for name, text in (("dataset", options.dataset), *named):
        source = sources.parse(text)
        if source.is_local and not exists(source.name):
            raise UserError(f"{name} {source.name}: no such file or folder: check the path")
    if (folder := starting_adapter.folder(options)) is not None:
        if options.resume is not None:
            starting_adapter.check(options, origin.read(expanded(options.resume)).start)
        if not isinstance(options, RmOptions):
            adapter_use.check_policy(expanded(folder))
    if options.lora_save_path is not None:
        adapter_use.check_target(expanded(options.lora_save_path))
    run_name = options.run_name if options.resume is None else None  # else its folder is there
    if run_name is not None and not RUN_NAME.fullmatch(run_name):
        raise UserError(
            "run_name must be at most 100 letters, digits and . _ - + = @, got "
            f"{run_name[:120]!r}: set --run_name and put folders into --output_dir"
        )

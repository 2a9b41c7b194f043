"""Every option, written once: the flags, the TOML keys and the checks all come from `Config`.

Later layers win: the defaults below, the tiny-cpu recipe where the base is the embedded one, the
config of the run that is resumed, `--recipe FILE.toml`, the flags. What none of the last three
gives may be changed by `fit` so that it fits the machine.
"""

import datetime
import difflib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from unslothrl import option_rules, rewards
from unslothrl.algorithms import objectives
from unslothrl.algorithms.objective import Objective
from unslothrl.algorithms.own import Part
from unslothrl.data import sources
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_file
from unslothrl.planning import fit, shapes
from unslothrl.planning.machine import Machine
from unslothrl.untrusted import Unreadable, plain, read_text, shown
from unslothrl.weights import adapter_check
from unslothrl.weights.adapter_check import MOST_ALPHA, Lora

EMBEDDED = shapes.EMBEDDED
EMBEDDED_RECIPE = "tiny-cpu"
RECIPE_FOLDERS = (Path(__file__).parents[2] / "recipes", Path(__file__).parents[1] / "recipes")
RECIPES = {path.stem: path for folder in RECIPE_FOLDERS for path in sorted(folder.glob("*.toml"))}

PATHS = ("adapter", "lora_save_path", "output_dir", "resume")  # written with ~ or without

LORA_SHAPE = ("model", "adapter", "max_lora_rank", "lora_alpha")  # what a checkpoint hangs on

# More than any run takes: what is larger is a slip, and would fail late or never end.
MOST = {
    "tokens": 2**20,
    "prompts": 65_536,
    "sequences": 65_536,
    "completions": 1024,
    "problems": 10_000,  # all of them are rendered before the run
    "MB": 2**22,
}
MOST_NUMBER = 1_000_000  # of steps, and of what has no unit
MOST_COMPLETIONS = 2**20  # of a step
MOST_TEXT = 65_536  # characters
MOST_RECIPE = 1 << 20  # bytes
LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""")

RUN = "Run"
TASK = "Model and data"
SAMPLING = "Sampling"
TRAINING = "Training"
OBJECTIVE = "Objective"
LORA = "LoRA"
EVALUATION = "Evaluation and saving"
HARDWARE = "Hardware"


def option(default: Any, help: str, group: str, **limits: Any) -> Any:
    """A field of `Config`.

    `limits`: over, at_least, at_most (numbers), choices (strings), unit (for the help). A number
    without at_most gets its unit's.
    """
    if limits.keys() & {"over", "at_least"}:
        limits.setdefault("at_most", MOST.get(limits.get("unit", ""), MOST_NUMBER))
    return field(default=default, metadata={"help": help, "group": group, **limits})


def part(help: str, **limits: Any) -> Any:
    """A field that the objective of the same name in `algorithms.objective` sets, where unset."""
    return option(None, f"{help}; not set: as the learner's", OBJECTIVE, is_part=True, **limits)


@dataclass(frozen=True)
class Config:
    """All options of a run. None means: not set, see the option's help."""

    model: str = option(
        "unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "base: hub id, folder, or embedded", TASK
    )
    dataset: str = option(
        "HuggingFaceH4/MATH-500",
        "training problems: hub id, file or folder, NAME@SPLIT[:1000], or embedded",
        TASK,
    )
    eval_dataset: tuple[str, ...] = option(
        (),
        "evaluation problems: a source, NAME=SOURCE, or a JSON map of them, repeated for several; "
        "not set: the training set's test split or held-out share",
        TASK,
    )
    holdout: float = option(
        0.1,
        "share held out for evaluation where a set has no test split",
        TASK,
        over=0,
        at_most=0.9,
    )
    prompt_column: str | None = option(
        None, "column of the problem or conversation, e.g. extra.text; not set: recognised", TASK
    )
    answer_column: str | None = option(
        None, "column of the gold answer, e.g. extra_info.answer; not set: recognised", TASK
    )
    system_prompt: str | None = option(
        None,
        "system prompt, in place of the data's own; not set: the data's, else what the reward "
        "asks for, none for the embedded problems",
        TASK,
    )
    max_prompt_tokens: int = option(
        350, "longer prompts are dropped and counted", TASK, at_least=1, unit="tokens"
    )

    reward: tuple[str, ...] = option(
        (),
        "what a completion earns: NAME, NAME=WEIGHT or file.py:function, repeated for several; the "
        "first is what is reported as correct; not set: accuracy, format, tags",
        TASK,
    )
    reward_timeout: float = option(
        5.0, "a completion whose reward takes longer gets 0", TASK, over=0, at_most=3600, unit="s"
    )
    allow_unsandboxed_code: bool = option(
        False, "run code of the model's with limits only, where it cannot be shut in", TASK
    )

    run_name: str | None = option(None, "folder of the run; not set: <learner>-<date>-<time>", RUN)
    project_name: str = option("math-reasoning", "project that the run is logged under", RUN)
    output_dir: str = option("runs", "folder that holds the runs", RUN)
    recipe: str | None = option(None, "recipe: a .toml file, or a name in recipes/", RUN)
    resume: str | None = option(None, "run folder to continue", RUN)
    seed: int = option(0, "seed of everything random", RUN, at_least=0, at_most=2**31 - 1)
    max_steps: int | None = option(
        None, "stop after this many steps; not set: after the episodes", RUN, at_least=1
    )
    episodes: int = option(15, "passes over the training problems", RUN, at_least=1)

    batch_size: int = option(
        30, "prompts a step, over all generators", SAMPLING, at_least=1, unit="prompts"
    )
    num_candidates: int = option(
        16, "completions a prompt", SAMPLING, at_least=1, unit="completions"
    )
    topk: int = option(
        16, "best candidates a prompt to train on", SAMPLING, at_least=1, unit="completions"
    )
    max_new_tokens: int = option(1200, "longest completion", SAMPLING, at_least=1, unit="tokens")
    temperature: float = option(1.2, "sampling temperature", SAMPLING, over=0, at_most=5)
    top_p: float = option(1.0, "nucleus sampling, 1 = off", SAMPLING, over=0, at_most=1)
    sampling_top_k: int = option(
        0, "sample from the k likeliest tokens, 0 = off", SAMPLING, at_least=0
    )

    learner: str = option(
        "pg", "what the learner optimises: a name, or a .py file that defines OBJECTIVE", TRAINING
    )
    lr: float = option(2e-5, "learning rate", TRAINING, over=0, at_most=1)
    lr_schedule: str = option(
        "constant",
        "course of the learning rate",
        TRAINING,
        choices=("constant", "linear", "cosine"),
    )
    lr_floor: float = option(
        0.0, "share of lr at the end of linear and cosine", TRAINING, at_least=0, at_most=1
    )
    warmup_steps: int = option(
        0, "steps in which the learning rate grows to lr", TRAINING, at_least=0, unit="steps"
    )
    weight_decay: float = option(0.0, "AdamW's weight decay", TRAINING, at_least=0, at_most=1)
    max_grad_norm: float = option(
        1.0, "clip the gradient's norm here, 0 = off", TRAINING, at_least=0
    )
    train_batch_size: int = option(
        8,
        "micro-batch: sequences a forward; changes memory and speed only",
        TRAINING,
        at_least=1,
        unit="sequences",
    )
    updates_per_rollout: int = option(
        1,
        "parts that a rollout is trained on one after the other",
        TRAINING,
        at_least=1,
        at_most=1024,
    )
    epochs_per_rollout: int = option(
        1, "times that a rollout is trained on", TRAINING, at_least=1, at_most=100
    )
    select: str = option(
        "topk",
        "how the topk candidates are chosen",
        TRAINING,
        choices=("topk", "max_variance", "balanced", "random", "all"),
    )
    shuffle_rewards: bool = option(
        False, "control experiment: shuffle rewards inside each group", TRAINING
    )

    advantage: str | None = part(
        "what a reward is worth",
        choices=("centred", "standardised", "batch_standardised", "leave_one_out", "gae"),
    )
    advantage_std: str | None = part(
        "what standardising divides by: n, or n - 1", choices=("population", "sample")
    )
    advantage_epsilon: float | None = part("added to that", at_least=0, at_most=1)
    ratio: str | None = part(
        "ratio of policy and old policy", choices=("token", "sequence", "trajectory", "one")
    )
    clip: str | None = part("what is clipped", choices=("surrogate", "weight", "none"))
    clip_low: float | None = part("clip the ratio at 1 - this", at_least=0, at_most=1)
    clip_high: float | None = part("clip the ratio at 1 + this", at_least=0)
    clip_dual: float | None = part(
        "bound of the loss where the advantage is negative, 0 = off, else over 1", at_least=0
    )
    skip_threshold: float | None = part(
        "leave out a sequence whose mean ratio is over this, 0 = off", at_least=0
    )
    aggregation: str | None = part(
        "what the loss averages over", choices=("token", "sequence", "constant")
    )
    kl: str | None = part("KL against the reference", choices=("none", "loss", "reward"))
    kl_estimator: str | None = part("how it is estimated", choices=("k1", "k2", "k3"))
    kl_coefficient: float | None = part("its weight", at_least=0)
    entropy_coefficient: float | None = part("weight of an entropy bonus", at_least=0)
    correction: str | None = part(
        "what corrects for another engine's sampling",
        choices=("none", "truncated", "masked", "geometric"),
    )
    correction_low: float | None = part("its lower bound, usual for it where unset", at_least=0)
    correction_high: float | None = part("its upper bound, usual for it where unset", over=0)
    mask_truncated: bool | None = part("leave truncated completions out of the loss")
    overlong_cache: int | None = option(
        None,
        "punish completions softly over the last so many tokens before max_new_tokens, 0 = off; "
        "not set: as the learner's",
        OBJECTIVE,
        at_least=0,
        unit="tokens",
    )
    filter_low: float | None = part(
        "train on groups with at least this accuracy", at_least=0, at_most=1
    )
    filter_high: float | None = part("and at most this", at_least=0, at_most=1)
    max_resample: int | None = part(
        "times to draw prompts again for groups that were filtered out", at_least=0, at_most=100
    )
    gamma: float = option(1.0, "discount, with gae", OBJECTIVE, over=0, at_most=1)
    gae_lambda: float = option(
        0.95, "lambda of gae: 1 trusts rewards, 0 the critic", OBJECTIVE, at_least=0, at_most=1
    )
    critic_lr: float | None = option(
        None, "learning rate of the critic; not set: as lr", OBJECTIVE, over=0, at_most=1
    )
    value_clip: float = option(0.2, "clip of the critic's values, 0 = off", OBJECTIVE, at_least=0)
    freeze_steps: int = option(
        0, "steps in which only the critic is trained", OBJECTIVE, at_least=0, unit="steps"
    )

    max_lora_rank: int = option(
        32, "LoRA rank (512 is the most that vLLM takes)", LORA, at_least=1, at_most=512
    )
    lora_alpha: int = option(16, "LoRA alpha", LORA, at_least=1, at_most=MOST_ALPHA)
    lora_dropout: float = option(
        0.0,
        "LoRA dropout, in the update's forward pass alone: ratios then carry its noise",
        LORA,
        at_least=0,
        at_most=0.9,
    )
    adapter: str | None = option(None, "PEFT adapter folder to start from", LORA)
    lora_save_path: str | None = option(None, "folder that also receives the final adapter", LORA)

    eval_every: int = option(
        10, "evaluate every so many steps, 0 = never", EVALUATION, at_least=0, unit="steps"
    )
    eval_problems: int = option(
        200, "at most this many problems, 0 = all", EVALUATION, at_least=0, unit="problems"
    )
    eval_candidates: int = option(
        8, "completions a problem", EVALUATION, at_least=1, unit="completions"
    )
    eval_temperature: float = option(0.6, "temperature", EVALUATION, over=0, at_most=5)
    eval_top_p: float = option(0.95, "nucleus sampling", EVALUATION, over=0, at_most=1)
    save_every: int = option(
        100, "save the adapter every so many steps", EVALUATION, at_least=1, unit="steps"
    )
    checkpoint_every: int | None = option(
        None,
        "write a checkpoint every so many steps; not set: as save_every",
        EVALUATION,
        at_least=1,
        unit="steps",
    )

    number_of_actors: int = option(
        2,
        "processes that only generate; 0: the learner generates all",
        HARDWARE,
        at_least=0,
        at_most=1024,
    )
    number_of_learners: int = option(1, "processes that train", HARDWARE, at_least=1, at_most=1024)
    learner_chunk_size: int = option(
        8,
        "prompts a step that each learner generates, 0 = none",
        HARDWARE,
        at_least=0,
        unit="prompts",
    )
    actor_gpu_usage: float = option(
        0.91, "share of its card that an actor's engine may take", HARDWARE, over=0, at_most=1
    )
    learner_gpu_usage: float = option(
        0.35, "share of its card that a learner's engine may take", HARDWARE, over=0, at_most=1
    )
    cluster: str = option("ray", "local: all in one process", HARDWARE, choices=("ray", "local"))
    ray_address: str | None = option(None, "Ray cluster to join; not set: start one here", HARDWARE)
    engine: str = option(
        "auto", "what the actors generate with", HARDWARE, choices=("auto", "vllm", "transformers")
    )
    backend: str = option(
        "auto", "what the learner trains with", HARDWARE, choices=("auto", "unsloth", "peft")
    )
    dtype: str = option(
        "auto",
        "what the models compute in",
        HARDWARE,
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    offload: str = option(
        "none",
        "what of the learner may lie in host memory: its optimiser's state where the card is full, "
        "or between updates the model as well (with actors that generate everything)",
        HARDWARE,
        choices=("none", "optimizer", "model"),
    )
    fit: str = option(
        "auto",
        "what is not set fits the card: auto lowers it where it must, largest takes the longest "
        "completions, fastest the largest batches, off leaves it",
        HARDWARE,
        choices=("auto", "largest", "fastest", "off"),
    )
    max_num_seqs: int | None = option(
        None,
        "sequences that an engine generates at once; not set: its own choice",
        HARDWARE,
        at_least=1,
        unit="sequences",
    )
    kv_cache_mb: int | None = option(
        None, "KV cache of each engine; not set: what its GPU share leaves", HARDWARE,
        at_least=1, unit="MB",
    )  # fmt: skip


OPTIONS: dict[str, Field] = {entry.name: entry for entry in fields(Config)}
PARTS = tuple(name for name, entry in OPTIONS.items() if entry.metadata.get("is_part"))
_TYPES = typing.get_type_hints(Config)


def kind(name: str) -> type:
    """int, float, str, bool or tuple (of text): the type of an option's value when it is set."""
    hint = _TYPES[name]
    if isinstance(hint, types.UnionType):
        return typing.get_args(hint)[0]
    return typing.get_origin(hint) or hint


def is_optional(name: str) -> bool:
    return isinstance(_TYPES[name], types.UnionType)


@dataclass(frozen=True)
class Resolved:
    """A config that can run: `given` names what the user set, `notes` what was changed to fit."""

    config: Config
    given: frozenset[str]
    notes: tuple[str, ...]


def resolve(flags: Mapping[str, Any], machine: Machine | None = None) -> Resolved:
    """The config of a run from its flags (name -> value, as text or typed). Raises UserError.

    What can be checked without looking at the machine is checked first; without `machine`, it is
    then looked at.
    """
    flags = {name: read_value(name, value) for name, value in flags.items()}
    recipe = {} if flags.get("recipe") is None else read_recipe(flags["recipe"])
    said = _said(flags, recipe)
    user = _user_layers(flags, recipe)
    given = frozenset(user) - {"recipe", "resume"}
    defaults = Config()
    check_paths(replace(defaults, **user))
    objectives.load(replace(defaults, **user).learner)
    rewards.choose(replace(defaults, **user).reward)
    machine = machine or Machine.detect()
    if fit.needs_hub(given, machine):
        machine = machine.look_for_hub()
    model, dataset = fit.default_task(machine)
    layers = {"model": model, "dataset": dataset, **user}
    if layers["model"] == EMBEDDED:
        tiny = read_recipe(EMBEDDED_RECIPE)
        if "episodes" in given and layers["dataset"] != EMBEDDED:
            del tiny["max_steps"]  # the user counts in episodes
        layers = {**layers, **tiny, **user}
    config, adapter = with_adapter(replace(defaults, **layers), said)
    config, notes = fit.fit(config, given, machine)
    if "topk" not in given:
        config = replace(config, topk=min(config.topk, config.num_candidates))
    config = with_objective(config)
    check(config)
    facts = option_rules.Facts(config, objective_of(config), machine, adapter)
    named = name_run(config)
    if config.run_name not in (None, named.run_name) and config.resume is None:
        notes = [*notes, f"run_name {config.run_name} -> {named.run_name}: it is taken"]
    return Resolved(named, given, (*notes, *option_rules.notes(said, facts)))


def _said(flags: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the user asked for: the flags, and what a recipe of the user's own changes.

    The config.toml of a run is a recipe too, and names every option.
    """
    if flags.get("recipe") in RECIPES:
        recipe = {}
    changed = without_parts_of(recipe)
    changed = {name: v for name, v in changed.items() if v != OPTIONS[name].default}
    return {**changed, **flags}


def with_adapter(config: Config, said: Mapping[str, Any]) -> tuple[Config, Lora | None]:
    """-> (the config with the LoRA's shape of the adapter that it starts from, that adapter)."""
    if config.adapter is None:
        return config, None
    found = adapter_check.check_settings(config.adapter)
    if said.get("max_lora_rank", found.rank) < found.rank:
        raise UserError(
            f"max_lora_rank {said['max_lora_rank']}: adapter {config.adapter} has rank "
            f"{found.rank}: set --max_lora_rank {found.rank}, or leave it out"
        )
    return replace(config, max_lora_rank=found.rank, lora_dropout=found.dropout), found


def _user_layers(flags: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Resumed run < recipe < flags, joined."""
    if flags.get("learner", recipe.get("learner")) != recipe.get("learner"):
        recipe = without_parts_of(recipe)
    user = {**recipe, **flags}
    if user.get("resume") is not None:
        folder = expanded(user["resume"])
        if not is_file(folder / "config.toml"):
            raise UserError(
                f"resume must be a run's folder, got {user['resume']} (it has no config.toml): "
                "set --resume runs/<run_name>"
            )
        before = read_toml(folder / "config.toml")
        _check_unchanged(before, user)
        if user.get("learner", before.get("learner")) != before.get("learner"):
            before = without_parts_of(before)
        where = {"run_name": folder.resolve().name, "output_dir": str(folder.parent)}
        user = {**before, **user, **where}
    if objectives.is_file(user.get("learner") or ""):
        user["learner"] = str(expanded(user["learner"]).absolute())  # workers read it too
    if "reward" in user:
        user["reward"] = tuple(map(_absolute_reward, user["reward"]))
    return {
        name: str(expanded(value)) if name in PATHS and value is not None else value
        for name, value in user.items()
    }


def _absolute_reward(text: str) -> str:
    """A reward of the user's own by its whole path: workers read it too."""
    file, separator, rest = text.partition(".py:")
    return str(expanded(file).absolute()) + separator + rest if separator else text


def _check_unchanged(before: Mapping[str, Any], user: Mapping[str, Any]) -> None:
    """Raises UserError where a resumed run would need another checkpoint than its own."""
    for name in LORA_SHAPE:
        if name in user and user[name] != before.get(name):
            raise UserError(
                f"{name} {user[name]}: the run that is resumed has {before.get(name, 'none')}, and "
                f"its checkpoint is of that: leave --{name} out, or start a new run"
            )
    learner, was = user.get("learner"), before.get("learner", Config.learner)
    if learner and objectives.load(learner).has_critic != objectives.load(was).has_critic:
        raise UserError(
            f"learner {learner}: the run that is resumed has {was}, and only one of them has a "
            "critic: leave --learner out, or start a new run"
        )


def read_recipe(name: str) -> dict[str, Any]:
    """The options of a recipe: a .toml file, or the name of one in recipes/. Raises UserError."""
    if exists(name):
        return read_toml(expanded(name))
    if name not in RECIPES:
        raise UserError(
            f"recipe {plain(name)} is neither a .toml file nor a recipe's name: set --recipe "
            f"FILE.toml or one of {', '.join(sorted(RECIPES))}"
        )
    return read_toml(RECIPES[name])


def read_toml(path: Path) -> dict[str, Any]:
    """The options in a file, each checked on its own. Raises UserError."""
    try:
        text = read_text(path, MOST_RECIPE)
    except Unreadable as error:
        raise UserError(f"recipe {path}: {error}: give a .toml file") from None
    if LONG_KEY.search(text):  # which the parser would take minutes for
        raise UserError(
            f"recipe {path}: no option has a key of 64 parts: write lines like lr = 2e-5"
        )
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # no TOML, or a number or nesting without end
        nested = isinstance(error, RecursionError)
        reason = "nested too deeply" if nested else " ".join(str(error).split())
        raise UserError(
            f"recipe {path} is not TOML ({reason:.200}): write lines like lr = 2e-5"
        ) from None
    try:
        return {name: read_value(name, value, mend="{} = {}") for name, value in table.items()}
    except UserError as error:
        raise UserError(f"recipe {path}: {error}") from None


def read_value(name: str, value: Any, mend: str = "--{} {}") -> Any:
    """`value` of the option `name` in its own type and inside its limits. Raises UserError.

    Text is read as a flag's; `mend` is how the message writes a value that would do.
    """
    if name not in OPTIONS:
        raise UserError(unknown_option(name, mend))
    if value is None and is_optional(name):
        return None
    typed = _as_kind(name, value, is_flag=mend.startswith("--"))
    limits, choices = OPTIONS[name].metadata, choices_of(name)
    texts = typed if isinstance(typed, tuple) else (typed,) if isinstance(typed, str) else ()
    for problem in filter(None, map(text_problem, texts)):
        raise UserError(f"{name} must be text {problem}: shorten or rewrite it")
    if typed is None:
        wanted = _KINDS[kind(name)]
    elif choices and typed not in choices and not (name == "learner" and objectives.is_file(typed)):
        wanted = "one of " + ", ".join(choices) + (", or a .py file" if name == "learner" else "")
        near = difflib.get_close_matches(str(typed).lower(), choices, 1) or [choices[0]]
        raise UserError(
            f"{name} must be {wanted}, got {shown(typed)}: set "
            + mend.format(name, _written(near[0], mend))
        )
    elif _inside(typed, limits):
        return typed
    else:
        wanted = limits_text(name)
    raise UserError(
        f"{name} must be {wanted}, got {shown(value if typed is None else typed)}: set "
        + mend.format(name, _written(example(name, typed), mend))
    )


def choices_of(name: str) -> tuple[str, ...]:
    """What an option may be, where that is a list; `--learner` may be a file besides."""
    return objectives.names() if name == "learner" else OPTIONS[name].metadata.get("choices", ())


_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    tuple: "a list of text",
}


def _as_kind(name: str, value: Any, is_flag: bool) -> Any:
    """`value` in the option's own type, or None where it is of another."""
    wanted = kind(name)
    if is_flag and isinstance(value, str) and wanted in (int, float):
        try:
            return wanted(value)
        except ValueError:
            return None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else math.inf
    if wanted is tuple and isinstance(value, list | tuple | str):
        items = (value,) if isinstance(value, str) else tuple(value)
        return items if all(isinstance(item, str) and item for item in items) else None
    if wanted is str and value == "":
        return value if name == "system_prompt" else None
    return value if type(value) is wanted else None


def text_problem(text: str) -> str | None:
    """Why a text can be neither a path nor a prompt, None where it can."""
    if len(text) > MOST_TEXT:
        return f"of at most {MOST_TEXT:,} characters, got {len(text):,}"
    if "\0" in text:
        return f"without null bytes, got {shown(text)}"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return f"in UTF-8, got {shown(text)}"
    return None


def _inside(value: Any, limits: Mapping[str, Any]) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, int) and abs(value) >= 2**53:
        return False
    return (
        ("over" not in limits or value > limits["over"])
        and ("at_least" not in limits or value >= limits["at_least"])
        and ("at_most" not in limits or value <= limits["at_most"])
    )


def limits_text(name: str) -> str:
    """The limits of a number in words, e.g. "over 0 and at most 1"; "" where there are none."""
    limits = OPTIONS[name].metadata
    words = [
        f"{word} {limits[key]:g}" if isinstance(limits[key], float) else f"{word} {limits[key]}"
        for key, word in (("over", "over"), ("at_least", "at least"), ("at_most", "at most"))
        if key in limits
    ]
    return " and ".join(words)


def example(name: str, typed: Any = None) -> Any:
    """A value that would do: the limit that was passed, where it is one, else the default."""
    limits, default = OPTIONS[name].metadata, OPTIONS[name].default
    if isinstance(typed, int | float) and abs(typed) < math.inf:
        if typed > limits.get("at_most", math.inf):
            return limits["at_most"]
        if typed < limits.get("at_least", -math.inf) and limits["at_least"] >= 1:
            return limits["at_least"]
    if default is None:
        return "TEXT" if kind(name) is str else limits.get("at_least", 1)
    return default


def _written(value: Any, mend: str) -> str:
    return str(value) if mend.startswith("--") else _toml_value(value)


def unknown_option(name: str, mend: str = "--{} {}") -> str:
    """The message for an option that does not exist."""
    style = "--{}" if mend.startswith("--") else "{}"
    if name == "top_k":
        topk, top_k = style.format("topk"), style.format("sampling_top_k")
        return (
            f"{style.format(name)} is not an option: set {topk} (best candidates to train on) or "
            f"{top_k} (sampling from the k likeliest tokens)"
        )
    if re.search(r"tensor_(model_)?parallel|(^|_)tp(_size)?$", name.replace("-", "_").lower()):
        return (
            f"{style.format(name)} is not an option: vLLM does not split a 4-bit bitsandbytes base "
            f"over cards, every actor takes one: set {style.format('number_of_actors')}"
        )
    near = difflib.get_close_matches(name.replace("-", "_"), OPTIONS, 1)
    hint = f"did you mean {style.format(near[0])}?" if near else "see unslothrl train --help"
    return f"{style.format(name)} is not an option: {hint}"


def objective_of(config: Config) -> Objective:
    """The learner's objective with the parts that the config sets. Raises UserError."""
    chosen = {name: value for name in PARTS if (value := getattr(config, name)) is not None}
    return replace(objectives.load(config.learner), **chosen)


def with_objective(config: Config) -> Config:
    """The config with every part that is not set as its learner has it. Raises UserError.

    A KL coefficient alone puts the KL into the loss; `--kl none` alone takes its coefficient away.
    """
    if config.kl is None and config.kl_coefficient and objective_of(config).kl == "none":
        config = replace(config, kl="loss")
    if config.kl == "none" and config.kl_coefficient is None:
        config = replace(config, kl_coefficient=0.0)
    own = objectives.load(config.learner)
    if config.kl == "reward" and config.kl_estimator is None and own.kl != "reward":
        config = replace(config, kl_estimator="k1")  # see algorithms/divergence.py
    objective = objective_of(config)
    parts = {name: getattr(objective, name) for name in PARTS}
    named = {
        name: part_of(config.learner, name, value)
        for name, value in parts.items()
        if not isinstance(value, Part)
    }
    cache = config.overlong_cache
    if cache is None:
        cache = min(1024, config.max_new_tokens // 4) if objective.overlong else 0
    return replace(config, **named, overlong_cache=cache)


def part_of(learner: str, name: str, value: Any) -> Any:
    """A part as an objective sets it, in the option's type. UserError where it is unknown."""
    try:
        return read_value(name, value, "{} = {}")
    except UserError as error:
        raise UserError(f"learner {learner}: {error}") from None


def without_parts_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe for another learner: what it has only because of its own learner is left out."""
    own = with_objective(
        replace(Config(), **{k: recipe[k] for k in ("learner", "max_new_tokens") if k in recipe})
    )
    of_the_learner = (*PARTS, "overlong_cache")
    return {
        name: value
        for name, value in recipe.items()
        if name not in of_the_learner or value != getattr(own, name)
    }


def check_paths(config: Config) -> None:
    """Raises UserError for a local file or folder that is not there, or not what it must be."""
    if _is_path(config.model) and not exists(config.model):
        raise UserError(f"model {config.model}: no such file or folder: check the path")
    named = [text for text in sources.eval_sources(config).values() if text is not None]
    for name, text in [("dataset", config.dataset), *(("eval_dataset", text) for text in named)]:
        source = sources.parse(text)
        if source.is_local and not exists(source.name):
            raise UserError(f"{name} {source.name}: no such file or folder: check the path")
    if config.adapter is not None:
        adapter_check.check_format(config.adapter)
    for name in ("output_dir", "lora_save_path"):
        value = getattr(config, name)
        if value is not None and exists(value) and not Path(value).is_dir():
            raise UserError(f"{name} {value} is a file: set --{name} to a folder")
    if config.run_name is not None and not re.fullmatch(r"[\w][\w.+=@-]{0,99}", config.run_name):
        raise UserError(
            "run_name must be at most 100 letters, digits and . _ - + = @, got "
            f"{config.run_name[:120]!r}: set --run_name and put folders into --output_dir"
        )


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~"))


def check(config: Config) -> None:
    """Raises UserError where options contradict each other."""
    objective = objective_of(config)
    if config.num_candidates < 2 and objective.compares_candidates:
        raise UserError(
            f"num_candidates must be at least 2 for {config.learner} (rewards are compared "
            f"inside a group), got {config.num_candidates}: set --num_candidates 8"
        )
    completions = config.batch_size * config.num_candidates
    if completions > MOST_COMPLETIONS:
        raise UserError(
            f"batch_size {config.batch_size} x num_candidates {config.num_candidates} = "
            f"{completions} completions a step must be at most {MOST_COMPLETIONS}: set "
            f"--batch_size {MOST_COMPLETIONS // config.num_candidates}"
        )
    if config.topk > config.num_candidates:
        raise UserError(
            f"topk must be at most num_candidates ({config.num_candidates}), got {config.topk}: "
            f"set --topk {config.num_candidates} or --num_candidates {config.topk}"
        )
    learns_alone = objective.has_critic or objective.pulls_without_advantage
    if config.select == "max_variance" and config.topk < 2 and not learns_alone:
        raise UserError(
            "select max_variance with topk 1: one candidate alone has no advantage: set --topk 2"
        )
    if objective.clip_dual and objective.clip_dual <= 1:
        raise UserError(
            f"clip_dual must be over 1, or 0 for off, got {objective.clip_dual}: set --clip_dual 3"
        )
    if objective.filter_low > objective.filter_high:
        raise UserError(
            f"filter_low {objective.filter_low} is over filter_high {objective.filter_high}: no "
            "group can be kept: set --filter_low 0.01 --filter_high 0.99"
        )
    if objective.kl != "none" and not objective.kl_coefficient:
        raise UserError(
            f"kl {objective.kl} has no weight (kl_coefficient 0): set --kl_coefficient 0.04"
        )
    if objective.kl == "none" and objective.kl_coefficient:
        raise UserError(
            f"kl_coefficient {objective.kl_coefficient} without a KL: set --kl loss or --kl reward"
        )
    if config.offload == "model" and (config.learner_chunk_size or not config.number_of_actors):
        raise UserError(
            "offload model: a learner that generates needs its model on the card: set "
            "--learner_chunk_size 0 and --number_of_actors 1"
        )
    if config.freeze_steps and not objective.has_critic:
        raise UserError(
            f"freeze_steps {config.freeze_steps}: {config.learner} has no critic to train "
            "meanwhile: set --learner ppo, or leave it out"
        )
    if (config.overlong_cache or 0) > config.max_new_tokens:
        raise UserError(
            f"overlong_cache must be at most max_new_tokens ({config.max_new_tokens}), got "
            f"{config.overlong_cache}: set --overlong_cache {config.max_new_tokens // 4}"
        )
    low, high = config.correction_low, config.correction_high
    if low is not None and high is not None and low > high:
        raise UserError(
            f"correction_low {low} is over correction_high {high}: set them the other way round"
        )


def name_run(config: Config) -> Config:
    """The config with a run name whose folder is still free, unless it continues a run."""
    if config.resume is not None:
        return config
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    wanted = config.run_name or f"{Path(config.learner).stem}-{now}"
    name, number = wanted, 1
    while exists(str(Path(config.output_dir) / name)):
        number += 1
        name = f"{wanted}-{number}"
    return replace(config, run_name=name)


def to_toml(config: Config) -> str:
    """All options as a recipe that reads back as the same config; unset ones are comments."""
    lines = ["# All options of this run, as resolved. Usable as a recipe: --recipe FILE.toml"]
    for group in dict.fromkeys(entry.metadata["group"] for entry in OPTIONS.values()):
        lines.append(f"\n# {group}")
        for name, entry in OPTIONS.items():
            if entry.metadata["group"] == group:
                value = getattr(config, name)
                unset = f"# {name} is not set"
                lines.append(unset if value is None else f"{name} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, str):  # TOML's basic strings are JSON's, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)

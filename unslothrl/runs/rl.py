"""A run from its options to its summary: check, start, train, and end well however it ends."""

import contextlib
import functools
import gc
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unslothrl import cluster, rewards, stopping, variables
from unslothrl.runs import resume
from unslothrl.runs.build import data_options, scorer_of
from unslothrl.checkpoints.run_state import RunState
from unslothrl.cluster import joining, starting
from unslothrl.cluster.base import Cluster
from unslothrl.cluster.checks import Checks
from unslothrl.config.options import Config
from unslothrl.config.parts import objective_of
from unslothrl.config.writing import to_toml
from unslothrl.data import fingerprint, tasks
from unslothrl.data.tasks import Data, FiniteTasks
from unslothrl.runs.earlier_run import EarlierRun
from unslothrl.runs.run import Ending, unexpected
from unslothrl.errors import RunError, UserError
from unslothrl.mirror import mirror as mirrors
from unslothrl.mirror.mirror import Mirror
from unslothrl.planning import duration, shapes, tensor_parallel
from unslothrl.planning.machine import Machine
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.redaction import redacted_values
from unslothrl.rewards import model
from unslothrl.tracking import card as cards
from unslothrl.tracking import methods, origin, trackers
from unslothrl.tracking.run_folder import RunFolder, plain
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.tracked import Trackers
from unslothrl.training import trial
from unslothrl.training.pieces import Pieces
from unslothrl.training.start_lines import facts, header
from unslothrl.training.trainer import Trainer
from unslothrl.types import Task
from unslothrl.weights import adapter_check, adapter_use, base_model, portable, starting_adapter
from unslothrl.weights.adapter_use import Use

COLLECT_AFTER = (50_000, 20, 20)  # new objects, and collections of the younger ones; 700, 10, 10


@dataclass(frozen=True)
class Prepared:
    """What can be had before any process is started."""

    base: Path  # the 4-bit checkpoint
    data: Data
    level: str | None  # of the sandbox
    steps: int
    notes: tuple[str, ...]
    fingerprints: fingerprint.Fingerprints  # of the data
    folder: RunFolder
    use: Use


def run(config: Config, notes: Sequence[str], recipe: Mapping[str, Any] | None = None) -> int:
    """The main job: checks everything that can be checked, then starts, trains and sums up.
    `recipe`: the options that the user set.

    -> the exit code: 0 when finished; 128 and the signal's number when it was stopped, so 130 after
    Ctrl-C. Raises UserError before anything starts.
    """
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus), alone=config.cluster == "local")
    trackers.check(config.track)
    stopping.listen()
    view = Terminal(config.eval_every)
    with view, contextlib.ExitStack() as at_end:
        try:
            target = mirrors.of_run(config)
            earlier = EarlierRun.reopen(config, at_end) if config.resume else None
            if earlier is not None and earlier.has_finished(config):
                earlier.show(view)
                Mirror(target, earlier.folder.path, view.note).close()
                return 0
            prepared = prepare(config, machine, view, earlier, recipe)
            at_end.callback(prepared.folder.close)
        except BaseException as error:
            stopped = stop_of(error)
            if stopped is None:
                raise
            view.failed(f"stopped ({stopped}) before anything was begun")
            return stopped.exit_code
        folder = prepared.folder
        tracked = Trackers(config.track, folder.path, options_in_json(config), view.note)
        mirror = Mirror(target, folder.path, view.note)
        folder.saved = mirror.update
        ending = Ending(folder, view, config, trackers=tracked, mirror=mirror)
        try:
            view.header(header(config, prepared.data, prepared.steps, [*notes, *prepared.notes]))
            train(config, machine, prepared, earlier, ending)
        except BaseException as error:
            stopped = stop_of(error)
            if stopped is not None:
                ending.close("interrupted")
                return stopped.exit_code
            ending.close("failed", error)
            if isinstance(error, UserError | RunError):
                raise
            raise unexpected(error, folder) from None
        for line in duration.ends_early(config.max_steps, prepared.steps, config.episodes):
            view.note(line)
        ending.close("finished")
        return 0


def train(
    config: Config,
    machine: Machine,
    prepared: Prepared,
    earlier: EarlierRun | None,
    ending: Ending,
) -> None:
    """Starts the processes and trains to the last step; `ending` knows what there is to end."""
    folder, view = prepared.folder, ending.view
    ending.before = earlier.state if earlier else RunState()
    adapter = config.adapter and (starting_adapter.kept(folder.path) or config.adapter)
    started = replace(config, adapter=adapter, max_steps=prepared.steps)
    processes = ending.cluster = cluster.start(started, prepared.base, machine, view.stage)
    view.stage("trying out what has started")
    checks = Checks(prepared.level, learners_generate=config.learner_generates)
    checks.check_started(processes, view.note)
    ending.base_hash = checks.base_hash
    use = replace(prepared.use, base_hash=checks.base_hash)
    card = functools.partial(card_of, folder, use)
    folder.beside_adapters = portable.beside(use, prepared.base, card)
    trainer = ending.trainer = Trainer(
        config,
        prepared.data,
        processes,
        folder,
        view,
        prepared.steps,
        checks,
        ending.trackers,
        Pieces.of(prepared.base),
        RunState(data=prepared.fingerprints, base=checks.base_hash, versions=origin.versions()),
    )
    if earlier is not None:
        earlier.go_on(trainer, config, view, facts(config, prepared.data))
        folder.saved()  # what came after the step is gone
    ending.trackers.start(trainer.state.step if earlier and earlier.checkpoint else None)
    spare_collector(processes)
    trainer.train()


def options_in_json(config: Config) -> dict[str, Any]:
    """All options as resolved, for trackers: without secrets."""
    return redacted_values(plain(asdict(config)))


def prepare(
    config: Config,
    machine: Machine,
    view: Terminal,
    earlier: EarlierRun | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Prepared:
    """Everything before the first process, with what takes long on the display. UserError."""
    view.stage("importing libraries")
    cluster.import_first(config)
    trial.try_objective(objective_of(config), config.max_new_tokens)
    on_hub = base_model.is_on_hub(config.model)
    adapter = starting_adapter.folder(config)
    if adapter:  # before a base is downloaded whole or quantised
        adapter_check.check(adapter, base_model.find(config.model, weights=False))
    check_reward_model(config)
    check_backend(config)
    tensor_parallel.check_source(config)
    if config.ray_address is not None and config.cluster == "ray":
        view.stage(f"looking for the cluster at {config.ray_address}")
        joining.check(config.ray_address)
    view.stage(f"{'downloading or finding' if on_hub else 'reading'} base {config.model}")
    with view.suspended() if on_hub else contextlib.nullcontext():  # it has bars of its own
        base_model.find(config.model)
    on_base: list[str] = []
    judges = [e.function for e in rewards.choose(config.reward) if e.runs == rewards.IN_LEARNER]
    parts = resume.base_parts_of(config, on_base, judges)
    base = base_model.prepare(config.model, view.stage, view.progress)
    view.stage("reading the tokenizer")
    tokenizer = base_model.load_tokenizer(base)
    view.stage(f"reading {config.dataset}")
    options = data_options(config)
    data = tasks.load(options, tokenizer)
    view.stage("trying the rewards")
    task = trial.shortest(data)
    level = check_rewards(config, task)
    trial.try_environment(config, task, tokenizer)
    steps = total_steps(config, data)
    notes = [*on_base, *duration.check(config, steps, sum(map(len, data.evals.values())))]
    notes += duration.ends_early(config.max_steps, steps, config.episodes)
    if config.ray_address is None:
        resources = Resources.of_machine(config, machine)
        place(config, resources, base_mb=base_model.size_mb(base))  # may refuse
        if config.cluster == "ray":
            starting.check(config)
    check_writable(config.lora_save_path)
    fingerprints = fingerprint.of(data)
    if earlier is not None:
        changed = earlier.check_data(fingerprints, config.dataset)  # before models are loaded
        notes = [*earlier.notes, *notes, *changed]
    folder = open_folder(config, earlier, facts(config, data), recipe, parts)
    folder.checkpoints.keep = config.keep_checkpoints
    use = adapter_use.of_run(config, options.added_system_prompt, tokenizer)
    own = methods.described(methods.RL, config.dataset, folder.path.name, config.learner)
    use = replace(use, stages=starting_adapter.stages(config, own), base_parts=parts)
    return Prepared(base, data, level, steps, tuple(notes), fingerprints, folder, use)


def card_of(folder: RunFolder, use: Use, version: int) -> str:
    """The model card of a version, by what the run has measured until it is saved."""
    title = f"{folder.path.name} v{version:06d}"
    return cards.card(title, use, use.base, cards.Run.read(folder.path))


def total_steps(config: Config, data: Data) -> int:
    """`--max_steps`, or as many as `--episodes` over a finite data set make, whichever is less."""
    if not isinstance(data.train, FiniteTasks):
        if not config.max_steps:
            raise UserError(
                "max_steps is not set, and the embedded problems never end: set --max_steps 20"
            )
        return config.max_steps
    steps = config.episodes * data.train.steps_per_episode(config.batch_size)
    return min(steps, config.max_steps or steps)


def spare_collector(processes: Cluster) -> None:
    """Has Python's collector look through less of what never is in a cycle: what is there by now,
    and, where no tensors can be, the records of rollouts, thousands a second."""
    gc.freeze()
    if not processes.is_local:
        gc.set_threshold(*COLLECT_AFTER)


def stop_of(error: BaseException) -> stopping.Stopped | None:
    """What asked the run to end, None for any other exception."""
    if isinstance(error, stopping.Stopped):
        return error
    return stopping.cause() if isinstance(error, KeyboardInterrupt) else None


def open_folder(
    config: Config,
    earlier: EarlierRun | None,
    comments: Sequence[str] = (),
    recipe: Mapping[str, Any] | None = None,
    parts: Mapping[str, str] = origin.NOTHING,  # of the base
) -> RunFolder:
    """The run's folder: a new one with its config.toml, with `comments`; an earlier one as it is,
    until the run does go on from its checkpoint."""
    if earlier is not None:
        return earlier.folder
    text = to_toml(config, comments)

    def begin(folder: Path) -> None:
        origin.record(folder, recipe, starting_adapter.keep(config, folder), parts)

    return RunFolder.create(config.output_dir, config.run_name or "run", text, begin)


def check_rewards(config: Config, task: Task | None = None) -> str | None:
    """Loads functions of the user's own and tries the sandbox, as far as the run will need them;
    with a `task`, tries the functions too.

    -> the level of the sandbox, the same in all processes; None where no programs are run."""
    scorer = scorer_of(config)
    try:
        scorer.check()
        if task is not None:
            trial.try_rewards(scorer, task)
        return scorer.level
    finally:
        scorer.close()


def check_reward_model(config: Config) -> None:
    """UserError where a reward model is of another base than the run's."""
    for each in rewards.choose(config.reward):
        if each.runs == rewards.IN_LEARNER:
            base = base_model.find(config.model, weights=False)
            adapter_check.check(each.function, base)
            hidden, own = (
                model.head_of(Path(each.function)).hidden,
                shapes.read(base_model.read_config(base)).hidden,
            )
            if hidden != own:
                raise UserError(
                    f"reward rm: {each.function} is of a base of width {hidden}, and "
                    f"{config.model} has {own}: train one on this base with `unslothrl rm`"
                )


def check_backend(config: Config) -> None:
    """UserError where Unsloth was asked for and is not there; a machine without a card may have it,
    for tests."""
    if config.backend == "unsloth" and importlib.util.find_spec("unsloth") is None:
        raise UserError(
            "backend unsloth: unsloth is not installed: set --backend peft, or run `make setup`"
        )


def check_writable(folder: str | None) -> None:
    """Makes the folder that the final adapter goes to. UserError where that cannot be done."""
    if folder is None:
        return
    try:
        Path(os.path.expanduser(folder)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"lora_save_path {folder} cannot be written ({error.strerror}): set another folder"
        ) from None

"""A run from its options to its summary: check, start, train, and end well however it ends."""

import contextlib
import functools
import gc
import importlib.util
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unslothrl import cluster, variables
from unslothrl.build import data_options, scorer_of
from unslothrl.checkpoints import run_state as checkpoint
from unslothrl.cluster import joining, starting
from unslothrl.cluster.base import Cluster
from unslothrl.cluster.checks import Checks
from unslothrl.config.options import Config
from unslothrl.config.writing import to_toml
from unslothrl.data import tasks
from unslothrl.data.tasks import Data, FiniteTasks
from unslothrl.ending import Ending, unexpected
from unslothrl.errors import RunError, UserError
from unslothrl.planning import duration, tensor_parallel
from unslothrl.planning.machine import Machine
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.tracking import card as cards
from unslothrl.tracking import origin, trackers
from unslothrl.tracking.run_folder import RunFolder, plain
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.tracked import Trackers
from unslothrl.training.pieces import Pieces
from unslothrl.training.start_lines import facts, header
from unslothrl.training.trainer import Trainer
from unslothrl.weights import adapter_check, adapter_use, base_model, portable
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
    resumed: Path | None  # the checkpoint to go on from
    folder: RunFolder
    use: Use


def run(config: Config, notes: Sequence[str]) -> int:
    """The main job: checks everything that can be checked, then starts, trains and sums up.

    -> the exit code: 0 when finished, 130 after Ctrl-C. Raises UserError before anything starts.
    """
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus), alone=config.cluster == "local")
    trackers.check(config.track)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Terminal(config.eval_every, groups=config.batch_size) as view:
        prepared = prepare(config, machine, view)
        folder, resumed = prepared.folder, prepared.resumed
        view.header(header(config, prepared.data, prepared.steps, [*notes, *prepared.notes]))
        tracked = Trackers(config.track, folder.path, options_in_json(config), view.note)
        ending = Ending(folder, view, config, trackers=tracked)
        try:
            processes = cluster.start(config, prepared.base, machine, view.stage)
            ending.cluster = processes
            view.stage("trying out what has started")
            checks = Checks(prepared.level, learners_generate=config.learner_generates)
            checks.check_started(processes, view.note)
            ending.base_hash = checks.base_hash
            use = replace(prepared.use, base_hash=checks.base_hash)
            card = functools.partial(card_of, folder, use)
            folder.beside_adapters = portable.beside(use, prepared.base, card)
            pieces = Pieces.of(prepared.base)
            ending.trainer = Trainer(
                config,
                prepared.data,
                processes,
                folder,
                view,
                prepared.steps,
                checks,
                tracked,
                pieces,
            )
            if resumed is not None:
                go_on(ending.trainer, resumed, folder, view)
            tracked.start(ending.trainer.state.step if resumed else None)
            spare_collector(processes)
            ending.trainer.train()
        except BaseException as error:
            if is_interruption(error):
                ending.close("interrupted")
                return 130
            ending.close("failed", error)
            if isinstance(error, UserError | RunError):
                raise
            raise unexpected(error, folder) from None
        ending.close("finished")
        return 0


def go_on(trainer: Trainer, resumed: Path, folder: RunFolder, view: Terminal) -> None:
    """Goes on from a checkpoint of an earlier run in the same folder."""
    trainer.restore(resumed)
    folder.truncate_after(trainer.state.step)
    origin.record_resume(folder.path, trainer.state.step)
    view.resumed(folder.read_metrics())


def options_in_json(config: Config) -> dict[str, Any]:
    """All options as resolved, for trackers."""
    return plain(asdict(config))


def prepare(config: Config, machine: Machine, view: Terminal) -> Prepared:
    """Everything before the first process, with what takes long on the display. UserError."""
    resumed = resumable(config.resume) if config.resume else None
    view.stage("importing libraries")
    cluster.import_first(config)
    on_hub = base_model.is_on_hub(config.model)
    if config.adapter:  # before a base is downloaded whole or quantised
        adapter_check.check(config.adapter, base_model.find(config.model, weights=False))
    check_backend(config)
    tensor_parallel.check_source(config)
    if config.ray_address is not None and config.cluster == "ray":
        view.stage(f"looking for the cluster at {config.ray_address}")
        joining.check(config.ray_address)
    view.stage(f"{'downloading or finding' if on_hub else 'reading'} base {config.model}")
    with view.suspended() if on_hub else contextlib.nullcontext():  # it has bars of its own
        base_model.find(config.model)
    base = base_model.prepare(config.model, view.stage, view.progress)
    view.stage("trying the rewards")
    level = check_rewards(config)
    view.stage("reading the tokenizer")
    tokenizer = base_model.load_tokenizer(base)
    view.stage(f"reading {config.dataset}")
    options = data_options(config)
    data = tasks.load(options, tokenizer)
    steps = total_steps(config, data)
    notes = duration.check(config, steps, sum(map(len, data.evals.values())))
    if config.ray_address is None:
        resources = Resources.of_machine(config, machine)
        place(config, resources, base_mb=base_model.size_mb(base))  # may refuse
        if config.cluster == "ray":
            starting.check(config)
    check_writable(config.lora_save_path)
    folder = open_folder(config, resumed, facts(config, data))
    use = adapter_use.of_run(config, options.added_system_prompt, tokenizer)
    return Prepared(base, data, level, steps, tuple(notes), resumed, folder, use)


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


def is_interruption(error: BaseException) -> bool:
    """Ctrl-C or SIGTERM, which Ray answers with SystemExit while it starts."""
    terminated = isinstance(error, SystemExit) and error.code == signal.SIGTERM
    return terminated or isinstance(error, KeyboardInterrupt)


def resumable(folder: str) -> Path:
    """-> the newest complete checkpoint of a run's folder. UserError if there is none."""
    found = RunFolder.reopen(folder).latest_checkpoint()
    if found is None:
        raise UserError(f"resume {folder}: no complete checkpoint there: start a new run")
    try:
        checkpoint.load(found)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"resume {folder}: checkpoint {found.name} cannot be read ({error}): remove its folder "
            "to use the one before it"
        ) from None
    return found


def open_folder(config: Config, resumed: Path | None, comments: Sequence[str] = ()) -> RunFolder:
    """The run's folder with its config.toml, with `comments`."""
    if config.resume is None or resumed is None:
        text = to_toml(config, comments)
        folder = RunFolder.create(config.output_dir, config.run_name or "run", text)
        origin.record(folder.path)
        return folder
    folder = RunFolder.reopen(config.resume)
    folder.write_config(to_toml(replace(config, resume=None), comments))
    return folder


def check_rewards(config: Config) -> str | None:
    """Loads functions of the user's own and tries the sandbox, as far as the run will need them.

    -> the level of the sandbox, the same in all processes; None where no programs are run."""
    scorer = scorer_of(config)
    try:
        scorer.check()
        return scorer.level
    finally:
        scorer.close()


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

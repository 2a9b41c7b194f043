"""A run from its options to its summary: check, start, train, and end well however it ends."""

import functools
import gc
import importlib.util
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unslothrl import cluster, variables
from unslothrl.build import data_options, scorer_of
from unslothrl.checkpoints import run_state as checkpoint
from unslothrl.cluster import joining, starting
from unslothrl.cluster.base import Cluster, counted
from unslothrl.cluster.checks import Checks
from unslothrl.config.options import Config
from unslothrl.config.reading import EMBEDDED_RECIPE
from unslothrl.config.writing import to_toml
from unslothrl.data import tasks
from unslothrl.data.tasks import Data, FiniteTasks
from unslothrl.embedded import EMBEDDED
from unslothrl.ending import Ending, unexpected
from unslothrl.errors import RunError, UserError
from unslothrl.planning import duration, tensor_parallel
from unslothrl.planning.machine import Machine
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.tracking import card as cards
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.training.trainer import Trainer
from unslothrl.weights import adapter_check, adapter_use, base_model, portable
from unslothrl.weights.adapter_use import Use

COLLECT_AFTER = (50_000, 20, 20)  # new objects, and collections of the younger ones; 700, 10, 10


def run(config: Config, notes: Sequence[str]) -> int:
    """The main job: checks everything that can be checked, then starts, trains and sums up.

    -> the exit code: 0 when finished, 130 after Ctrl-C. Raises UserError before anything starts.
    """
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus), alone=config.cluster == "local")
    cluster.import_first(config)
    if config.adapter:  # before a base is downloaded whole or quantised
        adapter_check.check(config.adapter, base_model.find(config.model, weights=False))
    check_backend(config)
    tensor_parallel.check_source(config)
    base = base_model.prepare(config.model)
    level = check_rewards(config)
    tokenizer = base_model.load_tokenizer(base)
    options = data_options(config)
    data = tasks.load(options, tokenizer)
    steps = total_steps(config, data)
    notes = [*notes, *duration.check(config, steps, sum(map(len, data.evals.values())))]
    resumed = resumable(config.resume) if config.resume else None
    if config.ray_address is None:
        resources = Resources.of_machine(config, machine)
        place(config, resources, base_mb=base_model.size_mb(base))  # may refuse
        if config.cluster == "ray":
            starting.check(config)
    elif config.cluster == "ray":
        joining.check(config.ray_address)
    check_writable(config.lora_save_path)
    folder = open_folder(config, resumed)
    use = adapter_use.of_run(config, options.added_system_prompt, tokenizer)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Terminal(config.eval_every) as view:
        view.header(header(config, data, notes))
        ending = Ending(folder, view, config)
        try:
            processes = cluster.start(config, base, machine, view.stage)
            ending.cluster = processes
            checks = Checks(level, learners_generate=config.learner_generates)
            checks.check_started(processes, view.note)
            ending.base_hash = checks.base_hash
            use = replace(use, base_hash=checks.base_hash)
            card = functools.partial(card_of, folder, use)
            folder.beside_adapters = portable.beside(use, base, card)
            ending.trainer = Trainer(config, data, processes, folder, view, steps, checks)
            if resumed is not None:
                ending.trainer.restore(resumed)
                folder.truncate_after(ending.trainer.state.step)
                view.resumed(folder.read_metrics())
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


def open_folder(config: Config, resumed: Path | None) -> RunFolder:
    if config.resume is None or resumed is None:
        return RunFolder.create(config.output_dir, config.run_name or "run", to_toml(config))
    folder = RunFolder.reopen(config.resume)
    folder.write_config(to_toml(replace(config, resume=None)))
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


def overlap_line(config: Config) -> str:
    """What `--max_staleness` means for the run."""
    return (
        f"rollouts may be {counted(config.max_staleness, 'version')} old: correction "
        f"{config.correction}; learners generate nothing"
        + (", completions go on under new versions" if config.partial_rollouts else "")
    )


def header(config: Config, data: Data, notes: Sequence[str]) -> list[str]:
    lines = [
        f"{config.learner} on {config.dataset}, base {config.model}",
        f"{counted(config.number_of_actors, 'actor')} ({config.engine}), "
        f"{counted(config.number_of_learners, 'learner')} ({config.backend}), "
        f"cluster {config.cluster}",
        *notes,
    ]
    if config.model == EMBEDDED:
        lines.insert(2, f"options that are not set: recipe {EMBEDDED_RECIPE}")
    if config.max_staleness:
        lines.append(overlap_line(config))
    if config.top_p < 1 or config.sampling_top_k:
        lines.append(
            "warning: top_p and sampling_top_k leave out tokens that the learner does not: "
            "the ratio of policy and sampler is biased"
        )
    return [*lines, *data.notes]

"""A run from its options to its summary: check, start, train, and end well however it ends."""

import errno
import importlib.util
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unslothrl import __version__, cluster, variables
from unslothrl.build import data_options, scorer_of
from unslothrl.checkpoints import run_state as checkpoint
from unslothrl.checkpoints.run_state import RunState
from unslothrl.cluster import failures, joining
from unslothrl.config.options import Config
from unslothrl.config.reading import EMBEDDED_RECIPE
from unslothrl.config.writing import to_toml
from unslothrl.data import tasks
from unslothrl.data.tasks import Data
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import RunError, UserError
from unslothrl.planning import duration
from unslothrl.planning.machine import Machine
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.tracking.report import write_report
from unslothrl.tracking.run_folder import REPORT, RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.trainer import Trainer, total_steps
from unslothrl.weights import adapter_check, adapter_use, base_model


def run(config: Config, notes: Sequence[str]) -> int:
    """The main job: checks everything that can be checked, then starts, trains and sums up.

    -> the exit code: 0 when finished, 130 after Ctrl-C. Raises UserError before anything starts.
    """
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    cluster.import_first(config)
    if config.adapter:  # before a base is downloaded whole or quantised
        adapter_check.check(config.adapter, base_model.find(config.model, weights=False))
    check_backend(config)
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
        place(config, resources, base_mb=cluster.base_size_mb(base))  # may refuse
    elif config.cluster == "ray":
        joining.check(config.ray_address)
    check_writable(config.lora_save_path)
    folder = open_folder(config, resumed)
    use = adapter_use.of_run(config, options.added_system_prompt, tokenizer)
    folder.beside_adapters = {adapter_use.USE_FILE: adapter_use.to_json(use)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Terminal(config.eval_every) as view:
        view.header(header(config, data, notes))
        outcome = Outcome(folder, view, config)
        try:
            workers = cluster.start(config, base, machine, view.stage)
            outcome.workers = workers
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray has put its own there
            use_level(workers, level)
            outcome.trainer = Trainer(config, data, workers, folder, view, steps)
            outcome.base_hash = same_base(workers)
            if resumed is not None:
                outcome.trainer.restore(resumed)
                folder.truncate_after(outcome.trainer.state.step)
                view.resumed(folder.read_metrics())
            outcome.trainer.train()
        except BaseException as error:
            if is_interruption(error):
                outcome.close("interrupted")
                return 130
            outcome.close("failed", error)
            if isinstance(error, UserError | RunError):
                raise
            raise unexpected(error, folder) from None
        outcome.close("finished")
        return 0


def is_interruption(error: BaseException) -> bool:
    """Ctrl-C or SIGTERM, which Ray answers with SystemExit while it starts."""
    terminated = isinstance(error, SystemExit) and error.code == signal.SIGTERM
    return terminated or isinstance(error, KeyboardInterrupt)


@dataclass
class Outcome:
    """Ends a run, however it ends: saves what there is, stops the processes, writes the summary."""

    folder: RunFolder
    view: Terminal
    config: Config
    workers: cluster.Cluster | None = None
    trainer: Trainer | None = None
    base_hash: str = ""

    def close(self, status: str, error: BaseException | None = None) -> None:
        """`error` is what ended a run that failed; a dead worker has no adapter to give."""
        self.view.stage("saving and stopping")
        if self.trainer is not None:
            self.trainer.tasks.close()
        try:
            adapter = None if error else self._save_adapter()
        finally:
            if self.workers is not None:
                self.workers.close()
        summary = self._summary(status, adapter)
        try:
            self.folder.write_summary(summary)
            write_report(self.folder)
        except OSError:
            if error is None:
                raise
        if error is None:
            self.view.finish(summary)
        elif isinstance(error, UserError | RunError):
            self.view.failed()  # the message is the command's last line
        else:
            steps = cluster.counted(summary["steps"], "step")
            self.view.failed(f"{steps}, {summary['report']}")

    def _save_adapter(self) -> Path | None:
        if self.trainer is None or self.trainer.published is None:
            return None
        adapter = self.trainer.save_adapter()
        if self.config.lora_save_path:
            shutil.copytree(adapter, self.config.lora_save_path, dirs_exist_ok=True)
        return adapter

    def _summary(self, status: str, adapter: Path | None) -> dict:
        state = self.trainer.state if self.trainer else RunState()
        evals = state.evals or []
        key = next((name for name in (evals[0] if evals else {}) if name.endswith("/pass@1")), "")
        return {
            "status": status,
            "steps": state.step,
            "seconds": state.seconds,
            "eval_seconds": sum(one.get("timing/eval_s", 0.0) for one in evals),
            "first_eval": evals[0] if evals else None,
            "best_eval": max(evals, key=lambda one: one[key]) if evals else None,
            "last_eval": evals[-1] if evals else None,
            "adapter": str(adapter) if adapter else None,
            "command": f'{program()} ask --adapter {shlex.quote(str(adapter))} "..."'
            if adapter
            else None,
            "report": str(self.folder.path / REPORT),
            "base_hash": self.base_hash,
            "version": __version__,
        }


def program() -> str:
    """How this program is called in the user's shell: by its name, or from the environment that it
    is installed in, which `make train` does not activate."""
    name = "unslothrl"
    if shutil.which(name):
        return name
    beside = Path(sys.executable).with_name(name)
    if not beside.is_file():
        return f"{shlex.quote(sys.executable)} -m {name}"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def unexpected(error: BaseException, folder: RunFolder) -> RunError:
    """An exception that nobody foresaw, in a line; its traceback goes into the run's folder."""
    said = failures.summary_of(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return RunError(
            f"{said}: {folder.path} cannot be written: free some space, then --resume {folder.path}"
        )
    try:
        return RunError(f"{said}: the whole traceback is in {folder.write_error(error)}")
    except OSError:  # a full disk
        return RunError(said)


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


def use_level(workers: cluster.Cluster, level: str | None) -> None:
    """Has every process run programs at the same level. UserError where one cannot."""
    everyone = [*workers.learners, *workers.actors]
    for refusal in workers.gather([worker.call("use_level", level) for worker in everyone]):
        if refusal is not None:
            raise UserError(refusal)


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


def same_base(workers: cluster.Cluster) -> str:
    """-> the hash of the 4-bit base that every process holds. RuntimeError if they differ."""
    everyone = [*workers.learners, *workers.actors]
    hashes = workers.gather([worker.call("fingerprint") for worker in everyone])
    if len(set(hashes)) > 1:
        found = ", ".join(f"{w.name} {h}" for w, h in zip(everyone, hashes, strict=True))
        raise RuntimeError(f"actors and learner hold different 4-bit weights: {found}")
    return hashes[0]


def header(config: Config, data: Data, notes: Sequence[str]) -> list[str]:
    lines = [
        f"{config.learner} on {config.dataset}, base {config.model}",
        f"{cluster.counted(config.number_of_actors, 'actor')} ({config.engine}), "
        f"{cluster.counted(config.number_of_learners, 'learner')} ({config.backend}), "
        f"cluster {config.cluster}",
        *notes,
    ]
    if config.model == EMBEDDED:
        lines.insert(2, f"options that are not set: recipe {EMBEDDED_RECIPE}")
    if config.top_p < 1 or config.sampling_top_k:
        lines.append(
            "warning: top_p and sampling_top_k leave out tokens that the learner does not: "
            "the ratio of policy and sampler is biased"
        )
    return [*lines, *data.notes]

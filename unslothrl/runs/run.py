"""One run of a command that trains, from options to summary: begun or resumed, trained, and ended
well however it ends. `rl.RlRun` and `offline.run.StageRun` say what is trained and saved."""

import abc
import contextlib
import errno
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from unslothrl import __version__
from unslothrl.checkpoints.store import Checkpoints
from unslothrl.cluster import causes
from unslothrl.config.toml_files import to_toml
from unslothrl.config.values import RUN
from unslothrl.data.tasks import check_fingerprints
from unslothrl.errors import RunError, UserError, WillRepeat
from unslothrl.files import write_whole
from unslothrl.runs.resolve import Resolved
from unslothrl.runs.resume import EarlierRun
from unslothrl.system import stopping
from unslothrl.text import counted, redacted, redacted_values
from unslothrl.tracking import card, origin
from unslothrl.tracking.metrics import COLUMNS, Column
from unslothrl.tracking.report.page import write_report
from unslothrl.tracking.report.verdict import ending
from unslothrl.tracking.run_folder import (
    DATA_FILE,
    REPORT,
    RunFolder,
    free_name,
    noting_errors,
    plain,
)
from unslothrl.tracking.terminal import Terminal
from unslothrl.weights import starting_adapter
from unslothrl.weights.adapter_use import Use, copy_adapter

if TYPE_CHECKING:  # not loaded where none is asked for
    from unslothrl.mirror.mirror import Mirror
    from unslothrl.tracking.trackers import Trackers

BEGUN = "UNSLOTHRL_BEGUN"  # names a file in which a run writes its folder when it begins
INTERRUPTED_S = 10.0  # that trackers and a mirror have to send what is left of such a run
UNWRITABLE = {  # errors of a disk -> what to do
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "make it writable (a disk with errors becomes read-only: see `dmesg`)",
}


class Job(abc.ABC):
    """A run; `folder` is there once it has begun."""

    columns: Sequence[Column] = COLUMNS  # that the terminal shows of a step
    store: ClassVar[type[Checkpoints]] = Checkpoints
    lower_memory: ClassVar[str] = "max_new_tokens"  # after --train_batch_size
    mirrored: "Callable[..., Mirror] | None" = None  # by its folder and what takes notes
    mirror: "Mirror | None" = None
    trackers: "Trackers | None" = None
    earlier: EarlierRun | None = None
    folder: RunFolder
    has_begun = False
    has_results = False  # in its folder, which is then kept even where the run is refused

    def __init__(self, resolved: Resolved, view: Terminal | None = None):
        self.resolved, self.options = resolved, resolved.options
        self.view = view or Terminal(columns=self.columns)
        self.at_end = contextlib.ExitStack()
        self.started = origin.now()

    def execute(self) -> int:
        """-> the exit code: 0 when finished; 128 and the signal's number when it was stopped, so
        130 after Ctrl-C. Raises UserError before anything starts; RunError."""
        if self.options.track:
            from unslothrl.tracking import trackers

            trackers.check(self.options.track)
        stopping.listen()
        with self.view, self.at_end:
            try:
                if self.options.mirror is not None:
                    from unslothrl.mirror import mirror

                    self.mirrored = partial(mirror.Mirror, mirror.of_run(self.options))
                if self.options.resume and self._has_finished():
                    return 0
                self.prepare()
                self.train()
            except KeyboardInterrupt:  # `stopping.Stopped`, or what a library has made of it
                stopped = stopping.cause()
                if self.has_begun:
                    self.close("interrupted")
                else:
                    self.view.failed(f"stopped ({stopped}) before anything was begun")
                return stopped.exit_code
            except BaseException as error:
                if not self.has_begun:
                    raise
                error = self.cause_of(error)
                self.close("failed", error)
                if isinstance(error, UserError | RunError):
                    raise
                raise unexpected(error, self.folder, self.lower_memory) from None
            self.close("finished")
            return 0

    # What the two kinds of runs differ in

    @abc.abstractmethod
    def prepare(self) -> None:
        """Everything that can be checked before the training starts; calls `begin`. UserError."""

    @abc.abstractmethod
    def train(self) -> None:
        """To the last step."""

    @abc.abstractmethod
    def save(self, status: str, error: BaseException | None) -> Path | None:
        """What there is to be saved at the end, and ends processes. -> the last adapter."""

    @abc.abstractmethod
    def progress(self) -> tuple[int, float, list[dict[str, Any]]]:
        """-> (steps, the seconds that they took, the metrics of each evaluation)."""

    @abc.abstractmethod
    def best(self, evals: list[dict[str, Any]]) -> dict[str, Any]:
        """The best of at least one evaluation."""

    @abc.abstractmethod
    def commands(self, adapter: Path | None) -> dict[str, Any]:
        """What else its summary has: above all "command", what to do with its adapter."""

    def cause_of(self, error: BaseException) -> BaseException:
        """What is behind the error that has ended the run."""
        return error

    # Begin

    def _has_finished(self) -> bool:
        """Opens the run that is resumed, and shows it where no step is left."""
        command = self.resolved.command
        earlier = EarlierRun.reopen(self.options, command, self.store, self.at_end)
        if not earlier.has_finished():
            self.earlier = earlier
            return False
        tell_folder(earlier.folder.path)
        earlier.show(self.view)
        if self.mirrored is not None:
            self.mirrored(earlier.folder.path, self.view.note).close()
        return True

    def begin(
        self,
        use: Use,
        prints: dict[str, str],
        before: dict[str, str],
        learner: str = "",
        facts: Sequence[str] = (),
    ) -> list[str]:
        """Makes the run's folder, or takes that of the run that goes on: from now on an end is
        recorded there. -> notes on what has changed since. UserError for other training data.

        `use`: of its adapters; `prints`: of its data, and `before`: as the run that goes on had
        them; `facts`: comments in config.toml.
        """
        if self.earlier is None:
            notes = self._keep_name_free()
            folder = self._new_folder(use, prints, facts)
        else:
            changed_data = check_fingerprints(before, prints, self.options.dataset)
            folder, notes = self.earlier.folder, [*self.earlier.notes, *changed_data]
        options = redacted_values(plain(asdict(self.options)))
        if self.options.track:
            from unslothrl.tracking.trackers import Trackers

            self.trackers = Trackers(self.options.track, folder.path, options, self.view.note)
        self.folder, self.has_begun = folder, True
        self.view.folder = str(folder.path)
        self.view.keep = lambda line: folder.add_note(self.progress()[0], line)
        tell_folder(folder.path)
        self.at_end.callback(folder.close)
        folder.checkpoints = self.store(folder.path, self.options.keep_checkpoints)
        if self.mirrored is not None:
            self.mirror = self.mirrored(folder.path, self.view.note)
            folder.saved = self.mirror.update
        command, dataset = self.resolved.command, self.options.dataset
        own = origin.described(command, dataset, folder.path.name, learner)
        self.use = replace(use, stages=starting_adapter.stages(self.options, own))
        return notes

    def _keep_name_free(self) -> list[str]:
        """Another name where a run has begun under this one since it was chosen: runs that a script
        starts together have the same date and time. A mirror's folder has the name already."""
        options, wanted = self.options, self.options.run_name or "run"
        name = wanted if options.mirror is not None else free_name(options.output_dir, wanted)
        self.options = replace(options, run_name=name)
        return [f"run_name {wanted} -> {name}: it is taken"] * (name != wanted)

    def _new_folder(self, use: Use, prints: dict[str, str], facts: Sequence[str]) -> RunFolder:
        options = self.options

        def begin(folder: Path) -> None:
            start, code = starting_adapter.keep(options, folder), origin.code_of(options)
            known = {"recipe": self.resolved.recipe, "base": use.base_parts, "code": code}
            origin.record(folder, started=self.started, start=start, **known)
            write_whole(folder / DATA_FILE, json.dumps(prints, indent=2).encode() + b"\n")

        text = to_toml(options, facts)
        return RunFolder.create(options.output_dir, options.run_name, text, begin)

    def card(self, version: int) -> str:
        """The model card of a version, by what the run has measured until it is saved."""
        title = f"{self.folder.path.name} v{version:06d}"
        return card.card(title, self.use, self.use.base, card.history(self.folder.path))

    # End

    def close(self, status: str, error: BaseException | None = None) -> None:
        """Saves what there is, sums up and says how it ended. `error`: what ended a failed run."""
        stopping.begin()
        self.view.stage("saving and stopping")
        adapter = self.save(status, error)
        if adapter is not None and error is None and self.options.lora_save_path:
            copy_adapter(adapter, Path(self.options.lora_save_path))
        steps, seconds, evals = self.progress()
        if isinstance(error, UserError) and not self.has_results and not self.earlier:
            self.folder.discard()  # so that its name is free for the next try
            self.view.failed()
            return
        if self.trackers is not None:
            self.trackers.close(status, *([] if status == "finished" else [INTERRUPTED_S]))
        summary = {
            "status": status,
            "error": redacted(str(error)) if isinstance(error, UserError | RunError) else None,
            "steps": steps,
            "seconds": seconds,
            "eval_seconds": sum(one.get("timing/eval_s") or 0.0 for one in evals),
            "first_eval": evals[0] if evals else None,
            "best_eval": self.best(evals) if evals else None,
            "last_eval": evals[-1] if evals else None,
            "adapter": str(adapter) if adapter else None,
            **self.commands(adapter),
            **self._ways_on(status, steps),
            "wall_seconds": self.view.elapsed,
            "was_resumed": self.options.resume is not None,
            "report": str(self.folder.path / REPORT),
            "version": __version__,
        }
        try:
            self.folder.write_summary(summary)
            verdict, warnings = ending(self.folder, self.view.note)
            self.folder.write_summary(summary | {"verdict": verdict.said or None})
            with noting_errors(self.view.note):
                write_report(self.folder)
        except OSError:
            if error is None:
                raise
        if self.mirror is not None:
            self.view.stage("copying to the mirror")
            self.mirror.close(*([] if status == "finished" else [INTERRUPTED_S]))
        if error is None:
            self.view.finish(summary, verdict, warnings)
            return
        known = isinstance(error, UserError | RunError)  # the message is the command's last line
        may_pass = not isinstance(error, UserError | WillRepeat)
        message = None if known else f"{counted(steps, 'step')}, {summary['report']}"
        ways_on = (("resume", summary["resume"]), ("continues", summary["goes_on"]))
        self.view.failed(message, [way for way in ways_on if way[1] and may_pass])

    def _ways_on(self, status: str, step: int) -> dict[str, str | None]:
        """How a run that has not finished goes on, and from where: lines for the user."""
        if status == "finished":
            return {"resume": None, "goes_on": None}
        saved = max(self.folder.checkpoints.steps(), default=0)
        repeats = f", {counted(step - saved, 'step')} will be repeated" if step > saved else ""
        command = self.resolved.command
        words = [] if command == RUN.command else [command]
        return {
            "resume": origin.command(*words, "--resume", self.folder.path),
            "goes_on": f"after step {saved}{repeats}" if saved else f"from its start{repeats}",
        }


def tell_folder(folder: Path) -> None:
    """For Python's interface, which waits for it."""
    if path := os.environ.get(BEGUN):
        write_whole(Path(path), str(folder).encode())


def ends_early(max_steps: int | None, steps: int, episodes: int) -> list[str]:
    """A line where the data end before --max_steps."""
    if not max_steps or steps >= max_steps:
        return []
    passes = f"{episodes} pass{'es' * (episodes != 1)}"
    return [
        f"max_steps {max_steps} -> {steps}: the data end after {passes} (--episodes): set "
        f"--episodes {-(-max_steps * episodes // steps)} for {max_steps} steps"
    ]


def unexpected(error: BaseException, folder: RunFolder, lower_memory: str) -> RunError:
    """An exception that nobody foresaw, in a line; its traceback goes into the run's folder."""
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return RunError(
            f"{error.filename or folder.path} cannot be written ({error.strerror}): "
            f"{UNWRITABLE[error.errno]}, then --resume {folder.path}"
        )
    said = causes.summary_of(error)
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be here
        said += (
            f": the GPU is full: lower --train_batch_size, then --{lower_memory}, or see "
            "`unslothrl plan`"
        )
    with contextlib.suppress(OSError):  # a full disk
        path = folder.write_error(error)
        said += f": the full traceback is in {path}"
    return RunError(said)

"""How a run ends: what is saved, stopped and written, and the line that says why."""

import contextlib
import errno
from dataclasses import dataclass, field
from pathlib import Path

from unslothrl import __version__, stopping
from unslothrl.checkpoints.run_state import RunState
from unslothrl.cluster import failures
from unslothrl.cluster.base import Cluster, counted
from unslothrl.config.options import Config
from unslothrl.errors import RunError, UserError, WillRepeat
from unslothrl.mirror.mirror import FINISHED_S, STOPPED_S, Mirror
from unslothrl.tracking import calling
from unslothrl.tracking.report.page import noting_errors, write_report
from unslothrl.tracking.run_folder import REPORT, RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.tracked import CLOSE_S, Trackers
from unslothrl.training.boundary import best
from unslothrl.training.trainer import Trainer
from unslothrl.weights import portable

INTERRUPTED_S = 10.0  # that trackers have to send what is left when a run has not finished
WAYS_ON = (("resume", "resume"), ("goes on", "goes_on"))  # label, key of the summary
UNWRITABLE = {  # errors of a disk -> what to do
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "make it writable (a disk with errors becomes read-only: see `dmesg`)",
}
OUT_OF_MEMORY = "OutOfMemoryError"
LOWER_CARD_MEMORY = (
    "the card is full: lower --train_batch_size, then --max_new_tokens, or see `unslothrl plan`"
)


@dataclass
class Ending:
    """Ends a run, however it ends: saves what there is, stops the processes, writes the summary."""

    folder: RunFolder
    view: Terminal
    config: Config
    cluster: Cluster | None = None
    trainer: Trainer | None = None
    base_hash: str = ""
    before: RunState = field(default_factory=RunState)  # where it goes on from
    trackers: Trackers = field(default_factory=Trackers)
    mirror: Mirror = field(default_factory=Mirror)

    def close(self, status: str, error: BaseException | None = None) -> None:
        """`error` is what ended a run that failed; a dead process has no adapter to give."""
        stopping.begin()
        self.view.stage("saving and stopping")
        if self.trainer is not None:
            self.trainer.tasks.close()
        try:
            if status != "finished":
                self._save_boundary()
            adapter = None if error else self._save_adapter(is_needed=status == "finished")
        finally:
            if self.cluster is not None:
                with contextlib.suppress(*([Exception] if error else [])):  # it says more
                    self.cluster.close()
        if isinstance(error, UserError) and self.trainer is None and self.config.resume is None:
            self.folder.discard()  # so that its name is free for the next try
            self.view.failed()
            return
        self.trackers.close(status, CLOSE_S if status == "finished" else INTERRUPTED_S)
        summary = self._summary(status, adapter)
        try:
            self.folder.write_summary(summary)
            with noting_errors(self.view.note):
                write_report(self.folder)
        except OSError:
            if error is None:
                raise
        if self.config.mirror:
            self.view.stage("copying to the mirror")
        self.mirror.close(FINISHED_S if status == "finished" else STOPPED_S)
        if error is None:
            self.view.finish(summary)
            return
        known = isinstance(error, UserError | RunError)  # the message is the command's last line
        may_pass = not isinstance(error, UserError | WillRepeat)
        steps = counted(summary["steps"], "step")
        message = None if known else f"{steps}, {summary['report']}"
        ways_on = [(label, summary[key]) for label, key in WAYS_ON if summary[key] and may_pass]
        self.view.failed(message, ways_on)

    def _save_boundary(self) -> None:
        """So that a run which has not finished loses at most the step in flight."""
        if self.trainer is None:
            return
        try:
            self.trainer.save_boundary()
        except (RunError, OSError, KeyboardInterrupt) as error:
            said = str(error) or "interrupted again"
            self.view.note(f"the last whole step is not saved: {said}")

    def _save_adapter(self, is_needed: bool) -> Path | None:
        if self.trainer is None or self.trainer.published is None:
            return None
        try:
            adapter = self.trainer.save_last_adapter()
        except (RunError, KeyboardInterrupt) as error:  # a process hangs, or a second Ctrl-C
            if is_needed:
                raise
            self.view.note(f"the last adapter is not saved: {str(error) or 'interrupted again'}")
            return None
        if self.config.lora_save_path:
            portable.copy_adapter(adapter, Path(self.config.lora_save_path))
        return adapter

    def _summary(self, status: str, adapter: Path | None) -> dict:
        state = self.trainer.state if self.trainer else self.before
        evals = state.evals or []
        return {
            "status": status,
            "steps": state.step,
            "seconds": state.seconds,
            "eval_seconds": sum(one.get("timing/eval_s", 0.0) for one in evals),
            "first_eval": evals[0] if evals else None,
            "best_eval": best(evals) if evals else None,
            "last_eval": evals[-1] if evals else None,
            "adapter": str(adapter) if adapter else None,
            **(self._commands() if adapter else {"command": None}),
            **self._ways_on(status, state.step),
            "wall_seconds": self.view.elapsed,
            "was_resumed": self.config.resume is not None,
            "report": str(self.folder.path / REPORT),
            "base_hash": self.base_hash,
            "version": __version__,
        }

    def _ways_on(self, status: str, step: int) -> dict[str, str | None]:
        """How a run that has not finished goes on, and from where: lines for the user."""
        if status == "finished":
            return {"resume": None, "goes_on": None}
        saved = max(self.folder.checkpoints.steps(), default=0)
        repeats = f", {counted(step - saved, 'step')} will be repeated" if step > saved else ""
        return {
            "resume": calling.command("--resume", self.folder.path),
            "goes_on": f"after step {saved}{repeats}" if saved else f"from its start{repeats}",
        }

    def _commands(self) -> dict[str, str]:
        """What to do with the run's newest adapter, to be copied into a shell."""
        run = self.folder.path
        return {
            "command": calling.command("chat", "--adapter", run),
            "evaluate": calling.command("eval", "--adapter", run),
            "export": calling.command("export", "--adapter", run, "--output", f"{run.name}-export"),
        }


def unexpected(
    error: BaseException, folder: RunFolder, on_full_card: str = LOWER_CARD_MEMORY
) -> RunError:
    """An exception that nobody foresaw, in a line; its traceback goes into the run's folder.
    `on_full_card`: what to do where the card's memory was full."""
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return RunError(
            f"{error.filename or folder.path} cannot be written ({error.strerror}): "
            f"{UNWRITABLE[error.errno]}, then --resume {folder.path}"
        )
    said = failures.summary_of(error)
    if type(error).__name__ == OUT_OF_MEMORY:  # torch's, which need not be here
        said = f"{said}: {on_full_card}"
    try:
        path = folder.write_error(error)
        hint = f"`{calling.command('bundle', folder.path)}` makes an archive for a bug report"
        return RunError(f"{said}: the full traceback is in {path}; {hint}")
    except OSError:  # a full disk
        return RunError(said)

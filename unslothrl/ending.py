"""How a run ends: what is saved, stopped and written, and the line that says why."""

import contextlib
import errno
from dataclasses import dataclass
from pathlib import Path

from unslothrl import __version__
from unslothrl.checkpoints.run_state import RunState
from unslothrl.cluster import failures
from unslothrl.cluster.base import Cluster, counted
from unslothrl.config.options import Config
from unslothrl.errors import RunError, UserError
from unslothrl.tracking import calling
from unslothrl.tracking.report import write_report
from unslothrl.tracking.run_folder import REPORT, RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.training.trainer import Trainer
from unslothrl.weights import portable


@dataclass
class Ending:
    """Ends a run, however it ends: saves what there is, stops the processes, writes the summary."""

    folder: RunFolder
    view: Terminal
    config: Config
    cluster: Cluster | None = None
    trainer: Trainer | None = None
    base_hash: str = ""

    def close(self, status: str, error: BaseException | None = None) -> None:
        """`error` is what ended a run that failed; a dead process has no adapter to give."""
        self.view.stage("saving and stopping")
        if self.trainer is not None:
            self.trainer.tasks.close()
        try:
            adapter = None if error else self._save_adapter(is_needed=status == "finished")
        finally:
            if self.cluster is not None:
                with contextlib.suppress(*([Exception] if error else [])):  # it says more
                    self.cluster.close()
        if isinstance(error, UserError) and self.trainer is None and self.config.resume is None:
            self.folder.discard()  # so that its name is free for the next try
            self.view.failed()
            return
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
            steps = counted(summary["steps"], "step")
            self.view.failed(f"{steps}, {summary['report']}")

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
            **(self._commands() if adapter else {"command": None}),
            "report": str(self.folder.path / REPORT),
            "base_hash": self.base_hash,
            "version": __version__,
        }

    def _commands(self) -> dict[str, str]:
        """What to do with the run's newest adapter, to be copied into a shell."""
        run = self.folder.path
        return {
            "command": calling.command("chat", "--adapter", run),
            "evaluate": calling.command("eval", "--adapter", run),
            "export": calling.command("export", "--adapter", run, "--output", f"{run.name}-export"),
        }


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

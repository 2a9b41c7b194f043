"""A run of `unslothrl sft`, `dpo` or `rm` whose data is read: what it records, how it ends."""

import contextlib
import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unslothrl import __version__, stopping
from unslothrl.checkpoints.store import step_of
from unslothrl.config.offline_options import DpoOptions, OfflineOptions, RmOptions, SftOptions
from unslothrl.data import fingerprint
from unslothrl.errors import RunError, UserError
from unslothrl.files import expanded, is_file, newest_numbered, write_whole
from unslothrl.mirror import mirror as mirrors
from unslothrl.mirror.mirror import FINISHED_S, STOPPED_S, Mirror
from unslothrl.offline import layouts
from unslothrl.offline.checkpoints import StageCheckpoints
from unslothrl.offline.resolve import Stage, to_toml
from unslothrl.planning.machine import Machine
from unslothrl.redaction import redacted_values
from unslothrl.rewards.model import HEAD_FILE, head_of
from unslothrl.runs import resume
from unslothrl.tracking import calling, methods, origin
from unslothrl.tracking.metrics import is_number
from unslothrl.tracking.report.page import noting_errors, write_report
from unslothrl.tracking.run_folder import ADAPTERS, DATA_FILE, REPORT, RunFolder, plain
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.tracked import Trackers
from unslothrl.untrusted import Unreadable, read_object
from unslothrl.weights import adapter_check, adapter_use, base_model, portable, starting_adapter
from unslothrl.weights.adapter_use import Use

MOST_PRINTS = 1 << 20  # bytes
PAIRS_OF_HEAD = 200  # whose scores say what is usual


@dataclass
class Begun:
    """A stage whose data is read and whose folder is open."""

    stage: Stage
    view: Terminal
    folder: RunFolder
    checkpoints: StageCheckpoints
    checkpoint: Path | None  # to go on from
    base: Path
    use: Use
    tables: Any  # offline.tables.Tables
    tokenizer: Any
    trackers: Trackers
    mirror: Mirror
    model: Any = None
    step: int = 0
    skipped_in_a_row: int = 0
    adapter: Path | None = None

    @classmethod
    def of(
        cls, stage: Stage, machine: Machine, view: Terminal, at_end: contextlib.ExitStack
    ) -> "Begun":
        """Everything that can be checked before the base is loaded. UserError."""
        options = stage.options
        view.stage("importing libraries")
        from unslothrl.offline import tables

        target = mirrors.of_run(options)
        adapter = starting_adapter.folder(options)
        if adapter:
            check_start(options, adapter)
        from unslothrl.offline import settings

        settings.check(options)
        view.stage(f"reading base {options.model}")
        on_base: list[str] = []
        parts = resume.base_parts_of(options, on_base)
        base = base_model.prepare(options.model, view.stage, view.progress)
        tokenizer = base_model.load_tokenizer(base, needs_template=False)
        view.stage(f"reading {options.dataset}")
        writer, form = writer_and_form(options, tokenizer)
        found = tables.load(table_options(options), form, writer)
        notes = [*stage.notes, *on_base, *found.notes, *writer.notes]
        prints = {
            fingerprint.TRAIN: tables.fingerprint(found.train),
            f"eval/{found.evaluation_name}": tables.fingerprint(found.evaluation),
        }
        if options.resume is None:
            with stopping.held():
                folder = new_folder(stage, prints, parts)
                at_end.callback(folder.close)
        else:
            folder = RunFolder.reopen(options.resume)
            at_end.callback(folder.close)
            notes += fingerprint.check(prints_of(folder.path), prints, options.dataset)
        checkpoints = StageCheckpoints(folder.path, options.keep_checkpoints)
        checkpoint = newest_of(checkpoints, folder.path, notes) if options.resume else None
        if options.resume is not None and checkpoint is None:
            folder.refuse_restart()
        view.header([*layouts.header(stage, found), *notes])
        tracked = Trackers(
            options.track, folder.path, redacted_values(plain(asdict(options))), view.note
        )
        mirror = Mirror(target, folder.path, view.note)
        folder.saved = mirror.update
        own = methods.described(stage.command, options.dataset, folder.path.name)
        use = replace(
            use_of(options, found.system_prompt, tokenizer),
            stages=starting_adapter.stages(options, own),
            base_parts=parts,
        )
        step = step_of(checkpoint) if checkpoint else 0
        return cls(
            stage, view, folder, checkpoints, checkpoint, base, use, found, tokenizer, tracked,
            mirror, step=step,
        )  # fmt: skip

    @property
    def was_finished(self) -> bool:
        """Whether the run that is resumed came to its end."""
        return self.folder.read_summary().get("status") == "finished"

    @property
    def best_adapter(self) -> Path | None:
        """That of the evaluation with the lowest loss after a step."""
        losses = [(value, row["step"]) for value, row in self.evaluations() if row["step"]]
        found = self.folder.path / ADAPTERS / f"v{min(losses)[1]:06d}" if losses else None
        return found if found is not None and found.is_dir() else None

    @property
    def command(self) -> str | None:
        """What can be done with the best adapter, or the newest where none is known to be better;
        None where there is none."""
        run, options = self.folder.path, self.stage.options
        newest, best = newest_numbered(run / ADAPTERS, "v"), self.best_adapter
        if newest is None:
            return None
        named = run if best in (None, newest) else best
        return command_for(options, run, named, bool(self.tokenizer.chat_template))

    # What the trainer calls

    def finished(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        """After each step, and after an evaluation that is by itself: before the first step, and
        after a step that was recorded without it. RunError where it cannot go on: see `finite`."""
        from unslothrl.offline import finite

        self.step = step
        is_of_step = "timing/step_s" in row
        if is_of_step or not step:
            self.folder.log(row)
        else:
            self.folder.add_to_step(row)
        self.trackers.log(step, row)
        if is_of_step:
            self.view.step(row, step, total)
        if row.get("train/skipped_updates"):
            self.skipped_in_a_row += 1
            self.view.note(
                f"step {step}: the loss or its gradient is not finite; nothing was changed "
                f"({self.skipped_in_a_row} in a row)"
            )
            finite.check_skipped(self.skipped_in_a_row, total)
        else:
            self.skipped_in_a_row = 0
        finite.check_model(self.model, step)
        evaluated = [name for name in row if name.startswith("eval/")]
        if evaluated:
            self.view.evaluation(step, row)
            if step and self.is_best():
                self.save_adapter(step)
        every = self.stage.options.save_every
        if step and every and step % every == 0:
            self.save_adapter(step)

    def is_best(self) -> bool:
        """Whether the newest step has the lowest loss of all evaluations after a step."""
        losses = [(value, row["step"]) for value, row in self.evaluations() if row["step"]]
        return bool(losses) and min(losses)[1] == self.step

    def evaluations(self) -> list[tuple[float, dict[str, Any]]]:
        """(loss, row) of each."""
        key = f"eval/{self.tables.evaluation_name}/loss"
        rows = self.folder.read_metrics(lambda damaged: None)
        return [(row[key], row) for row in rows if is_number(row.get(key))]

    def lacks_evaluation(self) -> bool:
        """Whether the step that is reached was stopped before its evaluation was done."""
        return not any(row["step"] == self.step for _, row in self.evaluations())

    def reached(self, name: str) -> int:
        """What a metric that only grows has come to."""
        rows = self.folder.read_metrics(lambda damaged: None)
        return max((row[name] for row in rows if is_number(row.get(name))), default=0)

    def save_adapter(self, step: int) -> Path:
        """adapters/v<step>/, with the head of a reward model."""
        from unslothrl.offline import models

        use = self.use
        card = functools.partial(card_of, self.folder, use)
        beside = portable.beside(use, self.base, card)
        head = models.head_of(self.model, self.tables.evaluation[:PAIRS_OF_HEAD])
        if head is not None:
            beside = replace(beside, contents={HEAD_FILE: head})
        self.folder.beside_adapters = beside
        name = portable.base_name(use.base, self.base)
        self.adapter = self.folder.save_adapter(models.published(self.model, step, name))
        self.folder.saved()
        return self.adapter

    def close(self, status: str, error: BaseException | None = None) -> None:
        """Saves, sums up and says how it ended."""
        stopping.begin()
        self.view.stage("saving and stopping")
        if self.model is not None and error is None and self.step:
            self.save_adapter(self.step)
            if self.stage.options.lora_save_path and self.adapter:
                portable.copy_adapter(self.adapter, Path(self.stage.options.lora_save_path))
        if isinstance(error, UserError) and not self.step and self.stage.options.resume is None:
            self.folder.discard()
            self.view.failed()
            return
        self.trackers.close(status)
        summary = self.summary(status)
        try:
            self.folder.write_summary(summary)
            with noting_errors(self.view.note):
                write_report(self.folder)
        except OSError:
            if error is None:
                raise
        self.mirror.close(FINISHED_S if status == "finished" else STOPPED_S)
        if error is None:
            self.view.finish(summary)
        else:
            known = isinstance(error, UserError | RunError)
            may_pass = not isinstance(error, UserError)
            ways_on = [("resume", summary["resume"])] if summary["resume"] and may_pass else []
            self.view.failed(None if known else f"{self.step} steps, {summary['report']}", ways_on)

    def summary(self, status: str) -> dict[str, Any]:
        rows = self.folder.read_metrics(lambda damaged: None)
        evals = [row for _, row in self.evaluations()]
        path, run = self.folder.path, self.stage.options
        saved = max(self.checkpoints.steps(), default=0)
        repeats = f", {self.step - saved} steps will be repeated" if self.step > saved else ""
        goes_on = f"after step {saved}{repeats}" if saved else f"from its start{repeats}"
        return {
            "status": status,
            "steps": self.step,
            "seconds": sum(row.get("timing/step_s") or 0.0 for row in rows),
            "eval_seconds": sum(row.get("timing/eval_s") or 0.0 for row in rows),
            "first_eval": evals[0] if evals else None,
            "best_eval": min(evals, key=layouts.loss_of) if evals else None,
            "last_eval": evals[-1] if evals else None,
            "adapter": str(self.adapter) if self.adapter else None,
            "best_adapter": str(self.best_adapter) if self.best_adapter else None,
            "command": self.command,
            "resume": None if status == "finished" else calling.command(
                self.stage.command, "--resume", path
            ),
            "goes_on": None if status == "finished" else goes_on,
            "wall_seconds": self.view.elapsed,
            "was_resumed": run.resume is not None,
            "report": str(path / REPORT),
            "version": __version__,
        }  # fmt: skip


def check_start(options: OfflineOptions, adapter: str) -> None:
    """UserError where an adapter, or its head, is not one of the base's."""
    base = base_model.find(options.model, weights=False)
    adapter_check.check(adapter, base)
    if isinstance(options, RmOptions) and is_file(expanded(adapter) / HEAD_FILE):
        hidden = base_model.read_config(base).get("hidden_size")
        size = head_of(expanded(adapter)).hidden
        if size != hidden:
            raise UserError(
                f"adapter {adapter}: its head reads {size} numbers, and {options.model} gives "
                f"{hidden}: it is of another base"
            )


def new_folder(stage: Stage, prints: Mapping[str, str], parts: Mapping[str, str]) -> RunFolder:
    """That of a run that begins, on a base of these `parts`. UserError where it cannot be
    written."""

    def begin(folder: Path) -> None:
        start = starting_adapter.keep(stage.options, folder)
        origin.record(folder, stage.recipe, start, parts)
        write_whole(folder / DATA_FILE, encoded(prints))

    name = stage.options.run_name or stage.command
    return RunFolder.create(stage.options.output_dir, name, to_toml(stage), begin)


def command_for(
    options: OfflineOptions, run: Path, adapter: Path, has_template: bool
) -> str | None:
    """What can be done with what a run has trained, as a command; None: nothing here. `adapter`:
    the run's folder, or that of one of its adapters."""
    if isinstance(options, RmOptions):
        reward = calling.command("train", "--reward", f"rm:{adapter}")
        return reward if has_template else None
    if not has_template:
        return calling.command("export", "--adapter", adapter, "--output", f"{run.name}-exported")
    return calling.command("chat", "--adapter", adapter)


def newest_of(checkpoints: StageCheckpoints, run: Path, notes: list[str]) -> Path | None:
    """The newest checkpoint that the Trainer can load, None where none was written; `notes` gets a
    line for each newer one. UserError where there are some, and none is whole."""
    damaged: list[str] = []
    newest = checkpoints.newest(damaged.append)
    if newest is None and damaged:
        raise UserError(
            f"resume {run}: {damaged[0]}, and no other checkpoint is whole: start a new run from "
            "its adapter with --adapter"
        )
    notes += damaged
    return newest.folder if newest else None


def encoded(prints: Mapping[str, str]) -> bytes:
    return json.dumps(prints, indent=2).encode() + b"\n"


def prints_of(folder: Path) -> dict[str, Any]:
    """What the run that is resumed has noted of its tables. UserError."""
    try:
        return read_object(folder / DATA_FILE, MOST_PRINTS)
    except Unreadable as error:
        raise UserError(
            f"resume {folder}: {DATA_FILE}: {error}: start a new run from its adapter with "
            "--adapter"
        ) from None


def writer_and_form(options: OfflineOptions, tokenizer: Any) -> tuple[Any, Any]:
    from unslothrl.offline import tables
    from unslothrl.offline.sequences import Writer

    if isinstance(options, SftOptions):
        return Writer(tokenizer, options.assistant_only_loss, options.max_length), tables.SFT
    writer = Writer(tokenizer, max_length=options.max_length)
    return writer, tables.DPO if isinstance(options, DpoOptions) else tables.RM


def table_options(options: OfflineOptions) -> Any:
    from unslothrl.offline.examples import ExampleColumns
    from unslothrl.offline.tables import TableOptions

    columns = ExampleColumns(
        options.prompt_column,
        *(
            getattr(options, f"{name}_column", None)
            for name in ("completion", "chosen", "rejected")
        ),
    )
    return TableOptions(
        dataset=options.dataset,
        eval_dataset=options.eval_dataset,
        holdout=options.holdout,
        eval_problems=options.eval_problems,
        max_length=options.max_length,
        seed=options.seed,
        columns=columns,
        system_prompt=options.system_prompt,
        default_prompt=default_prompt(options),
    )


def default_prompt(options: OfflineOptions) -> str:
    """The system prompt of rows that have none: what the adapter that training begins with was
    told. UserError for an adapter whose files are damaged."""
    adapter = starting_adapter.folder(options)
    use = adapter_use.read(expanded(adapter)) if adapter else None
    return use.system_prompt if use is not None else ""


def use_of(options: OfflineOptions, system_prompt: str, tokenizer: Any) -> Use:
    """How what is trained is used: see `adapter_use`. `system_prompt`: that of its rows."""
    use = adapter_use.of_base(options.model, system_prompt, tokenizer)
    return replace(use, kind=adapter_use.REWARD_MODEL) if isinstance(options, RmOptions) else use


def card_of(folder: RunFolder, use: Use, version: int) -> str:
    from unslothrl.tracking import card

    title = f"{folder.path.name} v{version:06d}"
    return card.card(title, use, use.base, card.Run.read(folder.path))

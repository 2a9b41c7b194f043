"""A run of `unslothrl sft`, `dpo` or `rm`: one process, TRL's trainer, a run's folder. Stops are
held until a step or a batch of an evaluation is done."""

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unslothrl.checkpoints import store as stores
from unslothrl.config.offline_options import OfflineOptions, RmOptions, SftOptions, shards_of
from unslothrl.data.tasks import TRAIN
from unslothrl.errors import RunError
from unslothrl.files import newest_numbered, read_object, remove
from unslothrl.offline.resolve import fitted, import_first, with_backend
from unslothrl.rewards.model import HEAD_FILE
from unslothrl.runs import resume
from unslothrl.runs.resolve import Resolved
from unslothrl.runs.run import Job, ends_early
from unslothrl.system import stopping, variables
from unslothrl.system.machine import Machine
from unslothrl.tracking import origin
from unslothrl.tracking.metrics import is_number
from unslothrl.tracking.run_folder import ADAPTERS, DATA_FILE
from unslothrl.weights import adapter_check, adapter_use, base_model, starting_adapter

PAIRS_OF_HEAD = 200  # whose scores say what is usual
OF_A_DISK = ("os error 28", "PytorchStreamWriter", "inline_container.cc", "iostream error")
LOSS = ("loss", "train/loss", "")
ENDS = (("seconds", "timing/step_s", ".1f"), ("norm", "train/grad_norm", ""))
OF_PAIRS = (LOSS, ("right", "train/accuracy", ""), ("margin", "train/margin", ""), *ENDS)
OF_ROWS = (LOSS, ("right", "train/token_accuracy", ""), *ENDS)

# Of a checkpoint as transformers' Trainer writes it: adapter, optimiser, schedule, random numbers,
# position
STATE = "trainer_state.json"
TRAINING_ARGS = "training_args.bin"  # a pickle of the Trainer's, which nothing reads
PICKLES = (".bin", ".pkl", ".pickle")  # which are not loaded; the Trainer reads .pt and .pth safely
WRITING = ".writing"  # the Trainer's output folder


def run(stage: Resolved) -> int:
    """-> the exit code of a run, see `Job.execute`. UserError where the card is too small."""
    machine = Machine.detect()
    cards = visible_cards(machine)
    stage = on_first_card(with_backend(fitted(stage, machine), machine), machine)
    variables.apply(machine.cpus, bool(machine.gpus), alone=True)
    return StageRun(stage, cards).execute()


class StageCheckpoints(stores.Checkpoints):
    """Of one run; the state of a `Checkpoint` that `read` gives has no more than its step."""

    @property
    def writing(self) -> Path:
        return self.folder / WRITING

    def seal(self, written: Path, step: int, is_best: bool) -> Path:
        (written / TRAINING_ARGS).unlink(missing_ok=True)
        return super().seal(written, step, is_best)

    def read(self, folder: Path, step: int) -> stores.Checkpoint:
        names = {*stores.sums_in(folder), stores.SUMS}
        for path in folder.rglob("*"):
            name = str(path.relative_to(folder))
            if path.is_file() and name not in names and not path.name.startswith("."):
                raise stores.Damaged(f"{name} is not listed in {stores.SUMS}")
            if path.suffix in PICKLES and name != TRAINING_ARGS:
                raise stores.Damaged(f"{name} is a pickle, which is not loaded")
        if read_object(folder / STATE).get("global_step") != step:
            raise stores.Damaged(f"{STATE} is of another step")
        return stores.Checkpoint(folder, stores.RunState(step, policy_version=step))

    def delete_after(self, step: int) -> None:
        remove(self.writing)
        super().delete_after(step)


class StageRun(Job):
    """After `prepare`: its `base` (the 4-bit checkpoint), `tokenizer` and `tables`."""

    options: OfflineOptions
    store = StageCheckpoints
    lower_memory = "max_length"
    model: Any = None
    adapter: Path | None = None  # that was saved last
    step = 0
    skipped_in_a_row = 0
    group: Any = None  # of the processes that share the base

    def __init__(self, stage: Resolved, cards: list[str]):
        self.cards = cards
        self.columns = OF_ROWS if stage.command == "sft" else OF_PAIRS
        super().__init__(stage)

    def prepare(self) -> None:
        """Everything that can be checked before the base is loaded. UserError."""
        options, view = self.options, self.view
        import_first(options.backend, view)
        view.stage("importing libraries")
        from unslothrl.offline import tables, training

        if adapter := starting_adapter.folder(options):
            adapter_check.check(adapter, base_model.find(options.model, weights=False))
        training.config_of(options, Path(options.output_dir))
        view.stage(f"reading base {options.model}")
        notes: list[str] = [*self.resolved.notes]
        parts = resume.base_parts_of(options, notes)
        self.base = base_model.prepare(options.model, view.stage)
        self.tokenizer = base_model.load_tokenizer(self.base, needs_template=False)
        view.stage(f"reading {options.dataset}")
        before: dict[str, Any] = {}
        if self.earlier is not None:
            self.step, before = self.earlier.step, read_object(self.earlier.folder.path / DATA_FILE)
            self.started = origin.read(self.earlier.folder.path).started or self.started
        writer, form = tables.writer_and_form(options, self.tokenizer, self.started)
        self.tables = found = tables.load(options, form, writer)
        notes += [*found.notes, *writer.notes]
        prints = {
            TRAIN: tables.fingerprint(found.train),
            f"eval/{found.evaluation_name}": tables.fingerprint(found.evaluation),
        }
        use = adapter_use.of_base(options.model, found.system_prompt, self.tokenizer)
        kind = adapter_use.REWARD_MODEL if isinstance(options, RmOptions) else use.kind
        notes += self.begin(replace(use, kind=kind, base_parts=parts), prints, before)
        rows = "packs" if isinstance(options, SftOptions) and options.packing else "rows"
        start = f", from adapter {options.adapter}" if options.adapter else ""
        lines = [
            f"{self.resolved.command} on {options.dataset}, base {options.model}{start}",
            f"{len(found.train)} rows to train on, {len(found.evaluation)} to evaluate on "
            f"({found.evaluation_name})",
            f"{options.batch_size} {rows} a step, of at most {options.max_length} tokens, backend "
            f"{options.backend}",
        ]
        view.header([*lines, *notes])

    @property
    def checkpoint(self) -> Path | None:
        found = self.earlier and self.earlier.checkpoint
        return found.folder if found else None

    def train(self) -> None:
        """To the last step, or to the next boundary where a stop is asked for."""
        from unslothrl.offline import shards, training

        options = self.options
        self.view.stage("loading the base")
        self.group = shards.begin(self, self.cards)
        trainer = training.trainer_of(self)
        with stopping.held(may_hang=True):
            for line in ends_early(options.max_steps, trainer.args.max_steps, options.episodes):
                self.view.note(line)
            self.model = trainer.model
            if self.earlier is not None:
                self.earlier.go_on(options, self.view)
            if self.trackers is not None:
                self.trackers.start(self.step if self.checkpoint else None)
            training.train(trainer, self)

    # What the trainer calls

    def is_asked(self) -> bool:
        is_asked = stopping.is_asked()
        return is_asked if self.group is None else self.group.is_anywhere(is_asked)

    def finished(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        """After each step, and after an evaluation by itself. RunError where it cannot go on."""
        self.step, self.has_results = step, step > 0
        is_of_step = "timing/step_s" in row
        if is_of_step or not step:
            self.folder.log(row)
        else:
            self.folder.add_to_step(row)
        if self.trackers is not None:
            self.trackers.log(step, row)
        if is_of_step:
            self.view.step(row, step, total)
        self._check_finite(row, total)
        if any(name.startswith("eval/") for name in row):
            self.view.evaluation(step, row)
            if step and self.is_best():
                self.save_adapter(step)
        every = self.options.save_every
        if step and every and step % every == 0:
            self.save_adapter(step)

    def _check_finite(self, row: Mapping[str, Any], total: int) -> None:
        """RunError after too many skipped steps, or where what is trained is not finite."""
        from unslothrl.training.updates import MOST_SKIPPED

        self.skipped_in_a_row = self.skipped_in_a_row + 1 if row.get("train/skipped_updates") else 0
        if skipped := self.skipped_in_a_row:
            self.view.note(
                f"step {self.step}: the loss or its gradient is not finite; nothing was changed "
                f"({skipped} in a row)"
            )
            if skipped >= min(MOST_SKIPPED, total):
                raise RunError(
                    f"{skipped} {'steps' if skipped > 1 else 'step'} in a row had a loss or "
                    "gradient that is not finite: lower --lr, or set --max_grad_norm 0.1 or "
                    "--dtype float32"
                )
        if not all(p.isfinite().all() for p in self.model.parameters() if p.requires_grad):
            raise RunError(
                f"step {self.step}: the adapter has values that are not finite, and is not saved: "
                "lower --lr"
            )

    def is_best(self) -> bool:
        """Whether the newest step has the lowest loss of all evaluations after a step."""
        return self._best_step() == self.step

    def _best_step(self) -> int | None:
        after_steps = [row for row in self.evaluations() if row["step"]]
        return self.best(after_steps)["step"] if after_steps else None

    def evaluations(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if is_number(row.get(self.loss_key))]

    @property
    def loss_key(self) -> str:
        return f"eval/{self.tables.evaluation_name}/loss"

    def rows(self) -> list[dict[str, Any]]:
        return self.folder.read_metrics(lambda damaged: None)

    def save_adapter(self, step: int) -> None:
        """adapters/v<step>/, with the head of a reward model."""
        from unslothrl.backends import lora
        from unslothrl.offline import models

        beside = adapter_use.beside(self.use, self.base, self.card)
        head = models.head_of(self.model, self.tables.evaluation[:PAIRS_OF_HEAD])
        if head is not None:
            beside = replace(beside, contents={**beside.contents, HEAD_FILE: head})
        self.folder.beside_adapters = beside
        name = adapter_use.base_name(self.use.base, self.base)
        self.adapter = self.folder.save_adapter(lora.pack_adapter(self.model, step, name))
        self.folder.saved()

    # The end

    def cause_of(self, error: BaseException) -> BaseException:
        """torch and safetensors raise errors of their own where the disk is full."""
        checkpoints: Any = self.folder.checkpoints
        remove(checkpoints.writing)
        if any(words in str(error) for words in OF_A_DISK):
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(checkpoints.folder))
        return error

    def save(self, status: str, error: BaseException | None) -> Path | None:
        if self.model is not None and error is None and self.step:
            self.save_adapter(self.step)
        return self.adapter

    def progress(self) -> tuple[int, float, list[dict[str, Any]]]:
        seconds = sum(row.get("timing/step_s") or 0.0 for row in self.rows())
        return self.step, seconds, self.evaluations()

    def best(self, evals: list[dict[str, Any]]) -> dict[str, Any]:
        return min(evals, key=lambda row: row[self.loss_key])

    def commands(self, adapter: Path | None) -> dict[str, Any]:
        """What can be done with the best adapter, or the newest where none is better."""
        run, best = self.folder.path, None
        if (step := self._best_step()) is not None:
            best = run / ADAPTERS / f"v{step:06d}"
            best = best if best.is_dir() else None
        newest = newest_numbered(run / ADAPTERS, "v")
        named = run if best in (None, newest) else best
        has_template = bool(self.tokenizer.chat_template)
        command: str | None = origin.command("chat", "--adapter", named)
        if isinstance(self.options, RmOptions):
            command = origin.command("train", "--reward", f"rm:{named}") if has_template else None
        elif not has_template:
            words = ("--adapter", named, "--output", f"{run.name}-exported")
            command = origin.command("export", *words)
        return {
            "best_adapter": str(best) if best else None,
            "command": None if newest is None else command,
        }


def visible_cards(machine: Machine) -> list[str]:
    """What makes each GPU alone visible to a process."""
    known = os.environ.get(variables.VISIBLE) or ",".join(map(str, range(len(machine.gpus))))
    return known.split(",") if machine.gpus else []


def on_first_card(stage: Resolved, machine: Machine) -> Resolved:
    """Hides all cards but the first, before torch is imported: each would get a copy."""
    if len(machine.gpus) < 2:
        return stage
    os.environ[variables.VISIBLE] = visible_cards(machine)[0]
    if shards_of(stage.options) > 1:
        return stage
    note = f"{stage.command} trains on one GPU: the first of {len(machine.gpus)} is used"
    return stage.with_options(stage.options, note)

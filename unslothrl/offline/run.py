"""A run of `unslothrl sft`, `dpo` or `rm`: one process, TRL's trainer, a run's folder.

Once it trains, stops are held until a step or a batch of an evaluation is done; then what is
reached is saved.
"""

import contextlib
import os
from dataclasses import replace
from typing import Any

from unslothrl import stopping, variables
from unslothrl.config.offline_options import OfflineOptions
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import RunError, UserError
from unslothrl.offline import backend, layouts
from unslothrl.offline.resolve import Stage, fitted
from unslothrl.offline.stage import Begun
from unslothrl.planning import duration
from unslothrl.planning.machine import Machine
from unslothrl.runs.run import unexpected
from unslothrl.tracking import origin, trackers
from unslothrl.tracking.terminal import Terminal
from unslothrl.weights import portable

LOWER_CARD_MEMORY = (
    "the card is full: lower --train_batch_size, then --max_length, or see `unslothrl plan`"
)


def run(stage: Stage) -> int:
    """-> the exit code: 0 when finished, 128 and the signal's number when it was stopped. Raises
    UserError before anything is loaded, also where the card is too small; RunError."""
    machine = Machine.detect()
    stage = on_first_card(backend.chosen(fitted(stage, machine), machine), machine)
    variables.apply(machine.cpus, bool(machine.gpus), alone=True)
    options = stage.options
    trackers.check(options.track)
    stopping.listen()
    layout = layouts.of(stage.command)
    with Terminal(options.eval_every, layout=layout) as view, contextlib.ExitStack() as at_end:
        begun: Begun | None = None
        try:
            backend.import_first(stage.options.backend, view)
            begun = Begun.of(stage, machine, view, at_end)
            trainer = prepared(begun)
            with stopping.held(may_hang=True):
                if begun.step >= trainer.args.max_steps and begun.was_finished:
                    view.note("this run has finished: set --max_steps or --episodes higher")
                    return 0
                for line in ended_early(trainer, options):
                    view.note(line)
                train(trainer, begun)
            for line in ended_early(trainer, options):
                view.note(line)
            begun.close("finished")
            return 0
        except KeyboardInterrupt:
            if begun is not None:
                begun.close("interrupted")
            else:
                view.failed(f"stopped ({stopping.cause()}) before anything was begun")
            return stopping.cause().exit_code
        except (UserError, RunError) as error:
            if begun is not None:
                begun.close("failed", error)
            raise
        except Exception as error:
            if begun is None:
                raise
            failure = begun.checkpoints.abandoned(error)
            begun.close("failed", failure)
            raise unexpected(failure, begun.folder, LOWER_CARD_MEMORY) from None


def ended_early(trainer: Any, options: OfflineOptions) -> list[str]:
    return duration.ends_early(options.max_steps, trainer.args.max_steps, options.episodes)


def on_first_card(stage: Stage, machine: Machine) -> Stage:
    """Hides all cards but the first from this process, which would put a copy of the model on each.
    To be called before torch is imported."""
    if len(machine.gpus) < 2:
        return stage
    visible = os.environ.get(variables.VISIBLE) or "0"
    os.environ[variables.VISIBLE] = visible.partition(",")[0]
    note = f"{stage.command} trains on one card: the first of {len(machine.gpus)} is used"
    return replace(stage, notes=(*stage.notes, note))


def prepared(begun: Begun) -> Any:
    """A trainer, its base loaded. A stop ends this at once. UserError."""
    from unslothrl.offline import settings, training

    begun.view.stage("loading the base")
    name = begun.use.base
    if name != EMBEDDED:
        name = portable.base_name(name, begun.base)
    with settings.refused(begun.stage.options, "trl."):
        return training.trainer_of(begun.stage.options, begun.base, name, begun)


def train(trainer: Any, begun: Begun) -> None:
    """To the last step, or to the next boundary where a stop is asked for."""
    from unslothrl.offline import training

    begun.model = trainer.model
    if begun.checkpoint is not None:
        origin.record_resume(begun.folder.path, begun.step, ())
    if begun.stage.options.resume is not None:
        begun.folder.truncate_after(begun.step, begun.step if begun.checkpoint else -1)
        begun.checkpoints.delete_after(begun.step)
        begun.view.resumed(begun.folder.read_metrics())
    begun.trackers.start(begun.step if begun.checkpoint else None)
    training.train(trainer, begun)

"""TRL's trainers over rows that are token ids already, recorded as a run is.

Of their methods only those are overridden by which they make ids of rows, average over
micro-batches and take a step (see `weighting`), and its learning rate (RL's), write a
checkpoint and evaluate.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import TrainerCallback

from unslothrl.algorithms import schedules
from unslothrl.backends.lora import POLICY
from unslothrl.errors import RunError
from unslothrl.files import remove
from unslothrl.offline.tables import LEARNT
from unslothrl.offline.weighting import (
    DpoWithTies,
    Finite,
    OfPairs,
    OfTokens,
    RewardsWithTies,
    pairs_in,
)
from unslothrl.system import stopping
from unslothrl.system.memory import peak_memory_mb

FIGURES = {  # TRL's names in its logs -> ours, with what the row is of before it
    "loss": "loss",
    "grad_norm": "grad_norm",
    "skipped_updates": "skipped_updates",
    "learning_rate": "lr",
    "entropy": "entropy",
    "mean_token_accuracy": "token_accuracy",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "rewards/accuracies": "accuracy",
    "rewards/margins": "margin",
    "logps/chosen": "logprob_chosen",
    "logps/rejected": "logprob_rejected",
    "accuracy": "accuracy",
    "margin": "margin",
    "mean_reward": "reward_mean",
}


OF_REFERENCE = "ref"  # TRL's name of the adapter, and so its folder in a checkpoint
REFERENCE_IS_COPY = "reference_is_copy"  # in a checkpoint, empty: it is not cached


class Interrupted(Exception):
    """An evaluation that is left, because the run is to stop."""


class Recorder(TrainerCallback):
    """Hands each finished step to the run, and decides when the Trainer evaluates, saves and stops.

    A step that is evaluated is finished when that is done.
    """

    def __init__(self, run: Any):
        """`run`: an `offline.run.StageRun`."""
        self.run, self.row = run, dict[str, Any]()
        self.step_began = time.perf_counter()

    def on_step_begin(self, args, state, control, **_):
        self.step_began = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        step, last = state.global_step, state.global_step >= state.max_steps
        is_asked = stopping.is_asked()
        control.should_log = True
        options = self.run.options
        due = is_due(step, state.max_steps, options.eval_every)
        control.should_evaluate = due and not is_asked
        control.should_save = last or is_asked or step % options.checkpoint_every == 0
        control.should_training_stop = last or is_asked
        return control

    def on_log(self, args, state, control, logs=None, **_):
        if logs is None or "loss" not in logs or not state.global_step:
            return
        self.row = {
            "step": state.global_step,
            **{f"train/{name}": logs[key] for key, name in FIGURES.items() if key in logs},
            "train/tokens": int(logs.get("num_tokens", 0)),
            "samples_seen": logs["rows_seen"],
            "epoch": state.epoch,
            "timing/step_s": time.perf_counter() - self.step_began,
            "memory/learner_peak_mb": peak_memory_mb(),
        }
        if not control.should_evaluate:
            self._finish(state)

    def on_evaluate(self, args, state, control, metrics=None, **_):
        name = self.run.tables.evaluation_name
        found = {
            f"eval/{name}/{ours}": metrics[f"eval_{key}"]
            for key, ours in FIGURES.items()
            if metrics and f"eval_{key}" in metrics
        }
        if metrics:
            found["timing/eval_s"] = metrics["eval_runtime"]
        self.row = {"step": state.global_step, **self.row, **found}
        self._finish(state)

    def _finish(self, state) -> None:
        row, self.row = self.row, {}
        self.run.finished(state.global_step, state.max_steps, row)


def is_due(step: int, last: int, eval_every: int) -> bool:
    """Whether a step is evaluated."""
    return bool(eval_every) and (step >= last or step % eval_every == 0)


class Recorded:
    """Of a trainer: checkpoints in the run's form, evaluations that can be left, RL's schedules."""

    args: Any
    state: Any
    control: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(self, *given: Any, run: Any, **named: Any):
        """`run`: an `offline.run.StageRun`."""
        self.run, self.evaluated, self.pairs = run, 0, 0
        super().__init__(*given, **named)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:

            def share(done: int) -> float:
                options = self.run.options
                return schedules.share(
                    options.lr_schedule,
                    done + 1,
                    num_training_steps,
                    options.warmup_steps,
                    options.lr_floor,
                )

            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share)
            self.lr_scheduler = schedule
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """transformers loads the learning rate of a run of the old length, which the next step
        would have."""
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        schedule = self.lr_scheduler
        rates = [
            base * share(schedule.last_epoch)
            for base, share in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
        ]
        schedule._last_lr = rates
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Adapters get the run's."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        written = Path(self.args.output_dir) / f"checkpoint-{step}"
        self.shorten(written)
        self.run.folder.checkpoints.seal(written, step, self.run.is_best())

    def shorten(self, checkpoint: Path) -> None:
        """Removes what the run's folder has already."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """transformers loads none but the adapters in subfolders where there is one, such as DPO's
        reference: the one that is trained would begin anew."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        trained = model or self.model
        if len(trained.peft_config) > 1:
            trained.load_adapter(resume_from_checkpoint, POLICY, is_trainable=True)
            trained.set_adapter(POLICY)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Draws no random numbers: with an evaluation and without it training goes on alike."""
        self.evaluated = 0
        try:
            with torch.random.fork_rng():
                return super().evaluate(*args, **kwargs)  # type: ignore[misc]
        except Interrupted:  # the step is recorded without its evaluation
            self.control.should_evaluate = False
            self.control.should_save = self.control.should_training_stop = True
            handler = self.callback_handler  # type: ignore[attr-defined]
            self.control = handler.on_evaluate(self.args, self.state, self.control, {})
            return {}

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        if stopping.is_asked():
            raise Interrupted
        result = super().prediction_step(*args, **kwargs)  # type: ignore[misc]
        self.evaluated += 1
        batches = -(-len(self.run.tables.evaluation) // self.args.per_device_eval_batch_size)
        self.run.view.progress("eval", self.evaluated, batches)
        return result


class LearntOnly:
    """A collator of TRL's for pairs whose answers have turns of others: its `completion_mask`
    leaves out the tokens that are only read.

    TRL computes everything of an answer through this mask: its log-probability, the lengths by
    which a loss divides, entropy and mean logits.
    """

    def __init__(self, collator: Callable[[list[dict[str, Any]]], dict[str, Any]]):
        self.collator = collator

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """`completion_mask` [2 * rows, tokens]: first the better answers, then the worse."""
        batch = self.collator(rows)
        for half, name in enumerate(LEARNT.values()):
            for number, row in enumerate(rows):
                if name in row:
                    mask = batch["completion_mask"][half * len(rows) + number]
                    begin = len(row["prompt_ids"])
                    mask[begin : begin + len(row[name])] = mask.new_tensor(row[name])
        return batch


class SftTrainer(Recorded, Finite, OfTokens, trl.SFTTrainer):
    """Over rows with input_ids and labels."""


class DpoTrainer(Recorded, Finite, OfPairs, DpoWithTies):
    """Over rows with prompt_ids, chosen_ids and rejected_ids, and what of the two is learnt where
    that is not all."""

    _signature_columns: Any

    def shorten(self, checkpoint: Path) -> None:
        if (checkpoint / OF_REFERENCE).is_dir():  # a copy of what training began with
            remove(checkpoint / OF_REFERENCE)
            (checkpoint / REFERENCE_IS_COPY).touch()

    def compute_ref_log_probs(self, model: Any, inputs: Any) -> Any:
        found = super().compute_ref_log_probs(model, inputs)
        self.pairs += pairs_in(inputs)
        tables = self.run.tables
        everything = len(tables.train) + len(tables.evaluation)
        self.run.view.progress("reference", self.pairs, everything)
        return found

    @property
    def data_collator(self) -> Any:
        return self._collator

    @data_collator.setter
    def data_collator(self, given: Any) -> None:
        self._collator = LearntOnly(given)

    def _set_signature_columns_if_needed(self) -> None:
        is_first = self._signature_columns is None
        super()._set_signature_columns_if_needed()
        if is_first:
            self._signature_columns = [*self._signature_columns, *LEARNT.values()]

    def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset


class RmTrainer(Recorded, Finite, OfPairs, RewardsWithTies):
    """Over rows with chosen_ids and rejected_ids."""


def check_trainers() -> None:
    """RunError where Unsloth has put trainers of its own in the place of TRL's."""
    for kind in (trl.SFTTrainer, trl.DPOTrainer, trl.RewardTrainer):
        is_own = kind.__module__.startswith("trl.") and not hasattr(kind.__init__, "__wrapped__")
        if not is_own:
            raise RunError(
                f"Unsloth has replaced TRL's {kind.__name__}: it was imported by something else "
                "first: set --backend peft"
            )


@contextlib.contextmanager
def kept_in_float32(model: torch.nn.Module) -> Iterator[None]:
    """Inside it a trainer is made; afterwards what is trained is as it was. Over a 4-bit base TRL
    makes it bfloat16, in which steps of a small learning rate are lost."""
    before = {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    yield
    for name, value in before.items():
        model.get_parameter(name).data = value

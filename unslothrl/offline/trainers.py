"""TRL's trainers over rows that are token ids already, recorded as a run is.

TRL and transformers average over micro-batches, which may have unequal numbers of tokens or pairs,
except in the loss that SFT trains on: what is trained on pairs, and all that is reported, would
depend on the size of a micro-batch. Here losses and figures are means over tokens or pairs. TRL
counts a tie as wrong, here it is half right. A step whose loss or gradient is not finite changes
nothing, as in RL.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from trl.trainer.dpo_trainer import DataCollatorForPreference

from unslothrl.algorithms.objective import learning_rate_share
from unslothrl.backends.lora import POLICY
from unslothrl.files import remove
from unslothrl.offline.tables import LEARNT

OF_REFERENCE = "ref"  # TRL's name of the adapter, and so its folder in a checkpoint
REFERENCE_IS_COPY = "reference_is_copy"  # in a checkpoint, empty: it is not cached

SUMMED = (  # figures of a step that are means over what the processes of a group have trained on
    "entropy", "mean_token_accuracy", "rewards/chosen", "rewards/rejected", "rewards/accuracies",
    "rewards/margins", "logps/chosen", "logps/rejected",
)  # fmt: skip
Weights = tuple[float, dict[str, float]]
"""Of a micro-batch: what its loss is a mean over, and its figures that are means over others."""


class Interrupted(Exception):
    """An evaluation that is left, because the run is to stop."""


class StageTrainer(transformers.Trainer):
    """What all three add to TRL's: figures, skipped steps, schedules, checkpoints, stops."""

    args: Any
    callback_handler: Any
    current_gradient_accumulation_steps: int
    lr_scheduler: Any
    model: Any
    optimizer: Any
    _metrics: Any  # of TRL: mode -> name -> values
    _total_train_tokens: int
    forwards = 1  # passes of a micro-batch
    weights_of: Callable[[Mapping[str, torch.Tensor]], Weights]
    rows_in: Callable[[Mapping[str, torch.Tensor]], int]  # rows of a micro-batch, or pairs

    def __init__(self, *given: Any, run: Any, **named: Any):
        """`run`: an `offline.run.StageRun`."""
        self.run, self.batches_evaluated = run, 0
        self.step_rows = self.rows_seen = 0  # or pairs: of this step, of all
        self.loss_is_finite, self.was_skipped = True, False
        # mode -> figure -> (value, weight) of each micro-batch since the last log
        self.figures = {mode: defaultdict[str, list](list) for mode in ("train", "eval")}
        super().__init__(*given, **named)

    @property
    def mode(self) -> str:
        return "train" if self.model.training else "eval"

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        samples, items = super().get_batch_samples(*args, **kwargs)
        self.micro_batches, self.position = samples, 0
        self.step_rows = sum(map(self.rows_in, samples))
        self.rows_seen += self.step_rows
        return samples, items

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None) -> Any:
        found, (usual, own) = self._metrics[self.mode], self.weights_of(inputs)
        result: Any = super().compute_loss(
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )
        if self.mode == "eval":  # in place of the mean that transformers takes
            found["loss"] = [(result[0] if return_outputs else result).item()]
        for name, (value,) in found.items():
            if name == "num_tokens":  # of all steps until now
                self.figures[self.mode][name].clear()
            self.figures[self.mode][name].append((value, own.get(name, usual)))
        found.clear()
        return result

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        figures = self.figures[self.mode]
        if self.run.group is not None and self.model.training and "loss" in logs:
            logs["loss"] = self._add_up(figures, logs["loss"])
        self._metrics[self.mode] |= {name: [mean(pairs)] for name, pairs in figures.items()}
        figures.clear()
        if self.model.training:
            logs["rows_seen"], logs["skipped_updates"] = self.rows_seen, int(self.was_skipped)
            self._tr_loss.nan_to_num_(nan=0.0)  # transformers subtracts it from itself
        super().log(logs, start_time)

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        group, at, loss = self.run.group, self.position, torch.zeros((), device=self.args.device)
        self.position += 1
        if group is not None:
            own = self.micro_batches[at + group.rank : at + group.rank + 1]
            if at % group.count:  # computed with those before
                inputs = None
            elif not own:
                model.train()
                group.idle(self.forwards)
                inputs = None
            else:
                inputs = own[0]
        if inputs is not None:
            loss = super().training_step(model, inputs, *args, **kwargs)
            self.loss_is_finite = self.loss_is_finite and bool(loss.isfinite().all())
        if group is not None and self.position == len(self.micro_batches):
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            self.loss_is_finite = group.exchange.sum_gradients(trained, self.loss_is_finite)
        return loss

    def _add_up(self, figures: dict[str, list], loss: float) -> float:
        """Makes the figures of a step those of all processes that share the base. -> the loss"""
        own = [loss, float(self._total_train_tokens)]
        for name in SUMMED:
            pairs = figures.get(name, [])
            weight = sum(weight for _, weight in pairs)
            own += [mean(pairs) * weight, weight]
        loss, tokens, *rest = self.run.group.exchange.totals(own)
        for name, total, weight in zip(SUMMED, rest[::2], rest[1::2], strict=True):
            if weight:
                figures[name] = [(total / weight, weight)]
        figures["num_tokens"] = [(tokens, 1)]
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """What transformers asks for between the last micro-batch and the optimiser, which leaves
        alone what has no gradient. A gradient alone that is not finite is not counted where a
        scaler of float16 tries its scale."""
        norm = super()._get_grad_norm(model, grad_norm)
        norm_is_finite = math.isfinite(norm)
        if not (self.loss_is_finite and norm_is_finite):
            model.zero_grad(set_to_none=True)
        has_scaler = self.accelerator.scaler is not None
        self.was_skipped = not (self.loss_is_finite and (norm_is_finite or has_scaler))
        self.loss_is_finite = True
        return norm

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            options, total = self.run.options, num_training_steps

            def share(done: int) -> float:
                return learning_rate_share(
                    options.lr_schedule, done + 1, total, options.warmup_steps, options.lr_floor
                )

            optimizer = optimizer or self.optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """transformers loads the learning rate of a run of the old length."""
        super()._load_optimizer_and_scheduler(checkpoint)
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
        if self.run.group is not None and self.run.group.rank:
            return
        super()._save_checkpoint(model, trial)
        written = Path(self.args.output_dir) / f"checkpoint-{step}"
        if (written / OF_REFERENCE).is_dir():  # a copy of what training began with: in the run
            remove(written / OF_REFERENCE)
            (written / REFERENCE_IS_COPY).touch()
        self.run.folder.checkpoints.seal(written, step, self.run.is_best())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """transformers loads none but the adapters in subfolders where there is one, such as DPO's
        reference: the one that is trained would begin anew."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        trained = model or self.model
        if len(trained.peft_config) > 1:
            trained.load_adapter(resume_from_checkpoint, POLICY, is_trainable=True)
            trained.set_adapter(POLICY)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Draws no random numbers: with an evaluation and without it training goes on alike."""
        self.batches_evaluated = 0
        try:
            with torch.random.fork_rng():
                return super().evaluate(*args, **kwargs)
        except Interrupted:  # the step is recorded without its evaluation
            self.control.should_evaluate = False
            self.control.should_save = self.control.should_training_stop = True
            self.control = self.callback_handler.on_evaluate(
                self.args, self.state, self.control, {}
            )
            return {}

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.run.is_asked():
            raise Interrupted
        result = super().prediction_step(*args, **kwargs)
        self.batches_evaluated += 1
        batches = -(-len(self.run.tables.evaluation) // self.args.per_device_eval_batch_size)
        self.run.view.progress("eval", self.batches_evaluated, batches)
        return result


class SftTrainer(StageTrainer, trl.SFTTrainer):
    """Over rows with input_ids and labels."""

    def weights_of(self, inputs: Mapping[str, torch.Tensor]) -> Weights:
        return inputs["labels"][..., 1:].ne(-100).sum().item(), {}

    def rows_in(self, inputs: Mapping[str, torch.Tensor]) -> int:
        """Each begins at position 0, where what pads a pack is as well."""
        positions = inputs.get("position_ids")
        if positions is None:
            return len(inputs["input_ids"])
        begins = positions == 0
        if "attention_mask" in inputs:
            begins &= inputs["attention_mask"].bool()
        elif self.args.pad_to_multiple_of:
            begins &= positions.flip(-1).cumsum(-1).flip(-1) > 0
        return int(begins.sum())


class PairTrainer(StageTrainer):
    """Batches have the better answers, then the worse. A step's loss is the mean over pairs."""

    def weights_of(self, inputs: Mapping[str, torch.Tensor]) -> Weights:
        """Pairs, and of TRL's figures over tokens the number of these."""
        if "completion_mask" not in inputs:
            return self.rows_in(inputs), {}
        better, worse = (half.sum().item() for half in inputs["completion_mask"][..., 1:].chunk(2))
        return self.rows_in(inputs), {
            "entropy": better + worse,
            "mean_token_accuracy": better,
            "logits/chosen": better,
            "logits/rejected": worse,
        }

    @staticmethod
    def rows_in(inputs: Mapping[str, torch.Tensor]) -> int:
        return len(inputs["input_ids"]) // 2

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None) -> Any:
        result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not self.model.training:
            return result
        # transformers divides it by the number of micro-batches
        share = self.rows_in(inputs) * self.current_gradient_accumulation_steps / self.step_rows
        return (result[0] * share, result[1]) if return_outputs else result * share

    def count_ties(self, name: str, better: torch.Tensor, worse: torch.Tensor) -> None:
        """Has the newest share of pairs in the right order count a tie as half right."""
        values = self.figures[self.mode][name]
        right = ((better > worse).float() + (better >= worse).float()) / 2
        values[-1] = (right.mean().item(), values[-1][1])


class DpoTrainer(PairTrainer, trl.DPOTrainer):
    """Over rows with prompt_ids, chosen_ids and rejected_ids, and what of these is learnt."""

    pairs_referred = 0
    forwards = 2  # the reference's too

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None) -> Any:
        rewards, gather = list[torch.Tensor](), self.accelerator.gather

        def keeping(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.ndim == 1:
                rewards.append(tensor)
            return gather(tensor)

        self.accelerator.gather = keeping
        try:
            result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        finally:
            del self.accelerator.gather
        self.count_ties("rewards/accuracies", *rewards[:2])  # TRL gathers implicit rewards first
        return result

    def compute_ref_log_probs(self, model: Any, inputs: Any) -> Any:
        found = super().compute_ref_log_probs(model, inputs)
        self.pairs_referred += self.rows_in(inputs)
        tables = self.run.tables
        everything = len(tables.train) + len(tables.evaluation)
        self.run.view.progress("reference", self.pairs_referred, everything)
        return found

    def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset


class RmTrainer(PairTrainer, trl.RewardTrainer):
    """Over rows with chosen_ids and rejected_ids. A score is read where the last token stands that
    does not pad, and some bases pad with the one that ends a turn: here another pads then."""

    def __init__(self, *given: Any, run: Any, **named: Any):
        rows, tokenizer = (*run.tables.train, *run.tables.evaluation), run.tokenizer
        last = {int(row[name][-1]) for row in rows for name in LEARNT}
        if tokenizer.pad_token_id in (None, *last):  # transformers asks it again before training
            tokenizer.pad_token_id = next(n for n in range(len(last) + 1) if n not in last)
        super().__init__(*given, run=run, **named)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.count_ties("accuracy", *outputs.logits.detach().squeeze(-1).chunk(2))
        return (loss, outputs) if return_outputs else loss


class LearntOnly(DataCollatorForPreference):
    """Of pairs whose answers have turns of others: its `completion_mask` leaves out the tokens that
    are only read.

    TRL computes everything of an answer through this mask: its log-probability, the lengths by
    which a loss divides, entropy and mean logits.
    """

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """`completion_mask` [2 * rows, tokens]: first the better answers, then the worse."""
        batch = super().torch_call(examples)
        for half, name in enumerate(LEARNT.values()):
            for number, row in enumerate(examples):
                if name in row:
                    mask = batch["completion_mask"][half * len(examples) + number]
                    begin = len(row["prompt_ids"])
                    mask[begin : begin + len(row[name])] = mask.new_tensor(row[name])
        return batch


def mean(pairs: Sequence[tuple[float, float]]) -> float:
    """Of (value, weight); 0 where the weights are all 0."""
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else 0.0

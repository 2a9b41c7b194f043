"""Losses and figures of TRL's trainers as means over tokens or pairs, and steps whose loss or
gradient is not finite, which change nothing, as in RL.

TRL and transformers average over micro-batches, which may have unequal numbers of both, except in
the loss that SFT trains on: what is trained on pairs, and all that is reported, would depend on the
size of a micro-batch. TRL counts a tie as wrong.
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import trl

from unslothrl.errors import RunError
from unslothrl.training.updates import MOST_SKIPPED


class Weighted:
    """Of a trainer: each figure of a micro-batch counts by what it is a mean of, in training and
    evaluation."""

    args: Any
    model: Any
    step_rows: int  # of the step that is trained, or pairs
    rows_seen = 0  # in all steps
    _metrics: Any  # of TRL: mode -> name -> values
    _weights: dict[str, dict[str, list[float]]] | None = None

    def weights_of(self, inputs: Mapping[str, torch.Tensor]) -> tuple[float, dict[str, float]]:
        """-> (of the loss, and of each metric of a micro-batch but those that have one of their
        own; these, by TRL's name)."""
        raise NotImplementedError

    def rows_in(self, inputs: Mapping[str, torch.Tensor]) -> int:
        """Rows of a micro-batch, or pairs."""
        raise NotImplementedError

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """The micro-batches of a step."""
        samples, items = super().get_batch_samples(*args, **kwargs)  # type: ignore[misc]
        self.step_rows = sum(map(self.rows_in, samples))
        self.rows_seen += self.step_rows
        return samples, items

    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def weights(self) -> dict[str, list[float]]:
        """Metric -> the weights of its values since the last log."""
        if self._weights is None:
            self._weights = {"train": defaultdict(list), "eval": defaultdict(list)}
        return self._weights[self._mode()]

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        found, weights = self._metrics[self._mode()], self.weights()
        usual, own = self.weights_of(inputs)
        result = super().compute_loss(  # type: ignore[misc]
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )
        if self._mode() == "eval":  # in place of the mean that transformers takes
            found["loss"].append((result[0] if return_outputs else result).item())
        for name, values in found.items():
            weights[name] += [own.get(name, usual)] * (len(values) - len(weights[name]))
        return result

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        found, weights = self._metrics[self._mode()], self.weights()
        for name, values in found.items():
            found[name] = [mean(values, weights[name])]
        weights.clear()
        if self.model.training:
            logs["rows_seen"] = self.rows_seen
        super().log(logs, start_time)  # type: ignore[misc]


class OfTokens(Weighted):
    """Of a trainer over rows with labels."""

    def weights_of(self, inputs: Mapping[str, torch.Tensor]) -> tuple[float, dict[str, float]]:
        return inputs["labels"][..., 1:].ne(-100).sum().item(), {}

    def rows_in(self, inputs: Mapping[str, torch.Tensor]) -> int:
        return rows_of_packs(inputs, is_padded=bool(self.args.pad_to_multiple_of))


class OfPairs(Weighted):
    """Of a trainer whose batches have the better answers, then the worse. The loss of a step is the
    mean over its pairs."""

    current_gradient_accumulation_steps: int

    def rows_in(self, inputs: Mapping[str, torch.Tensor]) -> int:
        return pairs_in(inputs)

    def weights_of(self, inputs: Mapping[str, torch.Tensor]) -> tuple[float, dict[str, float]]:
        pairs = pairs_in(inputs)
        if "completion_mask" not in inputs:
            return pairs, {}
        learnt = inputs["completion_mask"][..., 1:]
        better, worse = (half.sum().item() for half in learnt.chunk(2))
        return pairs, {
            "entropy": better + worse,
            "mean_token_accuracy": better,
            "logits/chosen": better,
            "logits/rejected": worse,
        }

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not self.model.training:
            return result
        # transformers divides it by the number of micro-batches
        share = pairs_in(inputs) * self.current_gradient_accumulation_steps / self.step_rows
        return (result[0] * share, result[1]) if return_outputs else result * share


class DpoWithTies(trl.DPOTrainer):
    """Counts a pair whose implicit rewards are equal as half right."""

    model: Any

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        with gathered(self.accelerator) as found:
            result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        better, worse = found[:2]  # TRL gathers the implicit rewards first
        accuracies = self._metrics["train" if self.model.training else "eval"]["rewards/accuracies"]
        accuracies[-1] = share_right(better, worse)
        return result


class RewardsWithTies(trl.RewardTrainer):
    """Counts a pair whose scores are equal as half right."""

    model: Any

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        better, worse = outputs.logits.detach().squeeze(-1).chunk(2)
        accuracies = self._metrics["train" if self.model.training else "eval"]["accuracy"]
        accuracies[-1] = share_right(better, worse)
        return (loss, outputs) if return_outputs else loss


@contextlib.contextmanager
def gathered(accelerator: Any) -> Iterator[list[torch.Tensor]]:
    """The vectors that are gathered inside it, in their order."""
    found: list[torch.Tensor] = []
    gather = accelerator.gather

    def keeping(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 1:
            found.append(tensor)
        return gather(tensor)

    accelerator.gather = keeping
    try:
        yield found
    finally:
        del accelerator.gather


def share_right(better: torch.Tensor, worse: torch.Tensor) -> float:
    """Of the pairs whose better answer has more; a tie is half right."""
    return (((better > worse).float() + (better >= worse).float()) / 2).mean().item()


def rows_of_packs(inputs: Mapping[str, torch.Tensor], is_padded: bool) -> int:
    """Rows of a micro-batch, each of which begins at position 0. `is_padded`: what follows the last
    one is at position 0, too."""
    positions = inputs.get("position_ids")
    if positions is None:
        return len(inputs["input_ids"])
    begins = positions == 0
    if "attention_mask" in inputs:
        begins &= inputs["attention_mask"].bool()
    elif is_padded:
        begins &= positions.flip(-1).cumsum(-1).flip(-1) > 0
    return int(begins.sum())


def pairs_in(inputs: Mapping[str, torch.Tensor]) -> int:
    return len(inputs["input_ids"]) // 2


def mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Of values with weights; 0 where these are all 0."""
    total = sum(weights)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 0.0


class Finite:
    """Of a trainer: skips such steps, and logs `skipped_updates` of each, 0 or 1."""

    accelerator: Any
    model: Any
    _tr_loss: torch.Tensor
    loss_is_finite = True
    was_skipped = False

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)  # type: ignore[misc]
        self.loss_is_finite = self.loss_is_finite and bool(loss.isfinite().all())
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """What transformers asks for between the last micro-batch and the optimiser, which leaves
        alone what has no gradient. A gradient alone that is not finite is not counted where a
        scaler of float16 tries its scale."""
        norm = super()._get_grad_norm(model, grad_norm)  # type: ignore[misc]
        norm_is_finite = math.isfinite(norm)
        if not (self.loss_is_finite and norm_is_finite):
            model.zero_grad(set_to_none=True)
        has_scaler = self.accelerator.scaler is not None
        self.was_skipped = not (self.loss_is_finite and (norm_is_finite or has_scaler))
        self.loss_is_finite = True
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.model.training:
            logs["skipped_updates"] = int(self.was_skipped)
            self._tr_loss.nan_to_num_(nan=0.0)  # transformers subtracts it from itself
        super().log(logs, start_time)  # type: ignore[misc]


def check_model(model: torch.nn.Module, step: int) -> None:
    """RunError where a step has made something that is trained infinite."""
    if not all(bool(p.isfinite().all()) for p in model.parameters() if p.requires_grad):
        raise RunError(
            f"step {step}: the adapter has values that are not finite, and is not saved: lower --lr"
        )


def check_skipped(in_a_row: int, total: int) -> None:
    """RunError after too many skipped steps, or where all of a run's `total` were."""
    if in_a_row >= min(MOST_SKIPPED, total):
        raise RunError(
            f"{in_a_row} {'steps' if in_a_row > 1 else 'step'} in a row had a loss or gradient "
            "that is not finite: lower --lr, or set --max_grad_norm 0.1 or --dtype float32"
        )

"""Steps whose loss or gradient is not finite change nothing, as in RL."""

import math
from typing import Any

import torch

from unslothrl.errors import RunError
from unslothrl.training.updates import MOST_SKIPPED


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

"""TRL's output layer without Triton, which its kernel for log-probabilities needs.

Where Triton is not installed, which is every machine without a card, TRL 1.15 has nothing in the
kernel's place (`trl.trainer.utils._ChunkedLogProbFunction` is None). Here are the same figures by
PyTorch's own operations, differentiated by autograd.
"""

from types import SimpleNamespace

import torch
import trl.trainer.utils as trl_utils

ROWS = 4_096  # tokens whose logits are there at the same time, in a forward without gradients


def install() -> None:
    """Has TRL use it where it has no kernel of its own."""
    if trl_utils._ChunkedLogProbFunction is None:
        setattr(trl_utils, "_ChunkedLogProbFunction", SimpleNamespace(apply=apply))  # noqa: B010


def apply(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: float,
    chunk_size: int,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    outputs: tuple[str, ...] = (),
) -> tuple[torch.Tensor | None, ...]:
    """Of every token, [tokens] float32: its log-probability and what `outputs` names of entropy,
    log_sum_sq_probs, mean_logits and is_top1, None where it does not.

    `hidden` [tokens, hidden], `weight` [vocabulary, hidden], `targets` [tokens]. The arguments are
    the kernel's; its `chunk_size` of the vocabulary changes nothing here.
    """

    def of_rows(part: torch.Tensor, aim: torch.Tensor) -> list[torch.Tensor | None]:
        logits = torch.nn.functional.linear(part, weight.to(part.dtype), bias).float()
        logits = logits * logit_scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        logits = logits / temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        known = {
            "entropy": lambda: -(log_probs.exp() * log_probs).sum(-1),
            "log_sum_sq_probs": lambda: torch.logsumexp(2 * log_probs, -1).detach(),
            "mean_logits": lambda: logits.mean(-1).detach(),
            "is_top1": lambda: logits.argmax(-1) == aim,
        }
        chosen = log_probs.gather(-1, aim[:, None]).squeeze(-1)
        return [chosen, *(make() if name in outputs else None for name, make in known.items())]

    size = len(targets) if torch.is_grad_enabled() else ROWS
    pieces = zip(hidden.split(max(1, size)), targets.split(max(1, size)), strict=True)
    columns = zip(*(of_rows(*piece) for piece in pieces), strict=True)
    return tuple(None if c[0] is None else torch.cat(c) for c in map(list, columns))

"""Log-probabilities of tokens from hidden states, never with all their logits at once.

The output layer is applied to `AT_ONCE` logits' worth of tokens at a time, and each part is reduced
to log-probabilities and entropies; in the backward pass its logits are computed again. A vocabulary
of 151,936 and 4,096 tokens would otherwise take 2.5 GB for the logits in float32 alone.
"""

from collections.abc import Callable

import torch

Head = Callable[[torch.Tensor], torch.Tensor]  # [tokens, hidden] -> [tokens, vocabulary]

AT_ONCE = 1 << 21  # logits: 8 MB in float32, of which some four copies are alive at a time
AT_ONCE_ON_A_GPU = 1 << 26


def token_logprobs(
    head: Head,
    vocabulary: int,
    hidden: torch.Tensor,  # [tokens, hidden]
    targets: torch.Tensor,  # [tokens]
    temperature: float,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> float32 (log-probabilities of the targets, entropies), each [tokens].

    Gradients flow into `hidden` alone: the head is frozen.
    """
    tokens = max(1, (AT_ONCE_ON_A_GPU if hidden.is_cuda else AT_ONCE) // vocabulary)
    if len(hidden) <= tokens:
        return gather_logprobs(head(hidden), targets, temperature, entropy_gradient)
    return InParts.apply(hidden, head, targets, temperature, entropy_gradient, tokens)


class InParts(torch.autograd.Function):
    """`gather_logprobs` of `head`, `tokens` tokens at a time, computed again for the gradient."""

    @staticmethod
    def forward(ctx, hidden, head, targets, temperature, entropy_gradient, tokens):
        ctx.save_for_backward(hidden, targets)
        ctx.head, ctx.tokens = head, tokens
        ctx.options = (temperature, entropy_gradient)
        logprobs = hidden.new_empty(len(hidden), dtype=torch.float32)
        entropies = torch.empty_like(logprobs)
        for begin in range(0, len(hidden), tokens):
            part = slice(begin, begin + tokens)
            logprobs[part], entropies[part] = gather_logprobs(
                head(hidden[part]), targets[part], temperature
            )
        return logprobs, entropies

    @staticmethod
    def backward(ctx, *upstream):
        hidden, targets = ctx.saved_tensors
        gradient = torch.empty_like(hidden)
        for begin in range(0, len(hidden), ctx.tokens):
            part = slice(begin, begin + ctx.tokens)
            with torch.enable_grad():
                states = hidden[part].detach().requires_grad_()
                outputs = gather_logprobs(ctx.head(states), targets[part], *ctx.options)
            pairs = [
                (output, above[part])
                for output, above in zip(outputs, upstream, strict=True)
                if output.requires_grad
            ]
            values, above = zip(*pairs, strict=True)
            (gradient[part],) = torch.autograd.grad(values, states, above)
        return gradient, None, None, None, None, None


def gather_logprobs(
    logits: torch.Tensor,  # [tokens, vocabulary]
    targets: torch.Tensor,  # [tokens]
    temperature: float,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> float32 (log-probabilities of the targets, entropies), each [tokens]."""
    logprobs = (logits.float() / temperature).log_softmax(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy

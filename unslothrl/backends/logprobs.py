"""Log-probabilities of tokens from hidden states, never with all their logits at once.

The output layer is applied to `LOGITS`' worth of tokens at a time, and each part is reduced
to log-probabilities and entropies; in the backward pass its logits are computed again. A vocabulary
of 151,936 and 4,096 tokens would otherwise take 2.5 GB for the logits in float32 alone.

On a card logits are float32 like the engines' there (`engines.vllm.options`): rounded to bfloat16
on one side alone, log-probabilities at temperature 1.2 would differ by 0.01 to 0.02 a token. TRL's
fused kernel rounds them (`trl.kernels`, 1.15).
"""

from dataclasses import dataclass
from typing import Any

import torch

from unslothrl.planning.footprint import LOGITS

FILL = 64  # rows; see `filled`


@dataclass(frozen=True)
class Head:
    """A base's output layer, as the base's own forward applies it."""

    layer: Any  # a module, [tokens, hidden] -> [tokens, vocabulary]
    scale: float = 1.0  # of the logits: Cohere's logit_scale, 1 / Granite's logits_scaling
    cap: float | None = None  # cap * tanh(logits / cap), Gemma 2

    @classmethod
    def of(cls, model: Any) -> "Head":
        config = model.config
        scale = getattr(config, "logit_scale", None) or 1.0
        scale /= getattr(config, "logits_scaling", None) or 1.0
        cap = getattr(config, "final_logit_softcapping", None)
        return cls(model.get_output_embeddings(), scale, cap)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        # its weights are as they are, not quantised and not wrapped
        is_plain = isinstance(self.layer, torch.nn.Linear) and self.layer.weight.is_floating_point()
        is_exact = states.is_cuda and is_plain and states.dtype != torch.float32
        if is_exact:
            # the layer is not called, and fetches its weight in a hook where it is sharded
            for hook in self.layer._forward_pre_hooks.values():
                hook(self.layer, (states,))
        logits = float32_logits(self.layer, states) if is_exact else self.layer(states)
        logits = logits if self.scale == 1.0 else logits * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


def token_logprobs(
    head: Head,
    hidden: torch.Tensor,  # [tokens, hidden]
    targets: torch.Tensor,  # [tokens]
    temperature: float,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> float32 (log-probabilities of the targets, entropies), each [tokens].

    Gradients flow into `hidden` alone: the head is frozen.
    """
    tokens = max(1, LOGITS[hidden.device.type] // head.layer.out_features)
    if len(hidden) <= tokens:
        logits = filled(head, hidden, tokens)
        return gather_logprobs(logits, targets, temperature, entropy_gradient)
    return InParts.apply(hidden, head, targets, temperature, entropy_gradient, tokens)


def filled(head: Head, states: torch.Tensor, most: int) -> torch.Tensor:
    """`head(states)` of up to `most` rows. For bfloat16 on a CPU oneDNN keeps some 100 kB for each
    number of rows that it has seen; zeros, whose logits are left out, make these numbers few."""
    rows = len(states)
    if states.is_cuda or states.dtype != torch.bfloat16:
        return head(states)
    wanted = -(-rows // FILL) * FILL if rows > FILL else 1 << (rows - 1).bit_length()
    return head(torch.nn.functional.pad(states, (0, 0, 0, min(wanted, most) - rows)))[:rows]


def float32_logits(layer: torch.nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """A frozen layer's outputs in float32, for inputs and weights of half that."""
    logits = Float32Product.apply(states, layer.weight)
    return logits if layer.bias is None else logits + layer.bias.float()


class Float32Product(torch.autograd.Function):
    """states @ weight.T, accumulated and kept in float32; gradients flow into `states` alone."""

    @staticmethod
    def forward(ctx, states, weight):
        ctx.save_for_backward(weight)
        if states.is_cuda:
            return torch.mm(states, weight.t(), out_dtype=torch.float32)
        return states.float() @ weight.float().t()  # only a card's `mm` has `out_dtype`

    @staticmethod
    def backward(ctx, upstream):
        (weight,) = ctx.saved_tensors
        return upstream.to(weight.dtype) @ weight, None


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
                filled(head, hidden[part], tokens), targets[part], temperature
            )
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx, *upstream):
        hidden, targets = ctx.saved_tensors
        gradient = torch.empty_like(hidden)
        for begin in range(0, len(hidden), ctx.tokens):
            part = slice(begin, begin + ctx.tokens)
            with torch.enable_grad():
                states = hidden[part].detach().requires_grad_()
                logits = filled(ctx.head, states, ctx.tokens)
                outputs = gather_logprobs(logits, targets[part], *ctx.options)
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
        bounded = logprobs.clamp(min=torch.finfo(torch.float32).min)  # 0 times -inf is not a number
        entropy = -(bounded.exp() * bounded).sum(-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy

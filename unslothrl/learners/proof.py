"""A learner's first batch, computed twice: a few of its sequences as an update computes them, and
each by itself, in two shares. Losses are shares of the whole batch's, so the gradients are equal
but for rounding, or a model's packs, micro-batches or an objective's own functions are wrong:

    apart = |gradient at once - sum of each one's| / sqrt(sum of |each one's|^2)

Not over the norm of the sum, as advantages of both signs cancel there and rounding does not.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from unslothrl.checkpoints.learner_state import Trained
from unslothrl.records import Batch, Proof, Update

if TYPE_CHECKING:  # it imports PEFT, after Unsloth where that is used
    from unslothrl.backends.lora import LoraBackend

LIMITS = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}  # of `apart`

Gradients = dict[str, torch.Tensor]  # by what is trained (lora, critic), flat on the host


def prove(
    backend: "LoraBackend",
    trained: Trained,
    forward_backward: Callable[[Batch], Update],
    whole: Batch,
    parts: Sequence[Batch],
) -> Proof:
    """Changes nothing: no weights, no optimiser, no random state. `forward_backward` begins the
    gradients of `trained` anew; `parts`: the shares of `whole`, the same in all learners."""
    cuda = [torch.cuda.current_device()] if backend.device.type == "cuda" else []
    with torch.random.fork_rng(cuda), without_dropout(backend.model):
        update = forward_backward(whole)
        at_once, still = gradients(trained), without_gradient(trained["lora"])
        alone, squares = {kind: torch.zeros_like(each) for kind, each in at_once.items()}, 0.0
        for part in parts:
            for sample in part.samples:
                forward_backward(replace(part, samples=(sample,)))
                for kind, each in gradients(trained).items():
                    alone[kind] += each
                    squares += float(each.double().square().sum())
        found = Proof(update, distance(at_once, alone, squares), LIMITS[backend.dtype], still)
        if found.is_apart and backend.pack_inputs is not None and backend.split.peers is None:
            packs, backend.pack_inputs = backend.pack_inputs, None
            try:
                forward_backward(whole)
            finally:
                backend.pack_inputs = packs
            padded = distance(gradients(trained), alone, squares)
            found.names_packs = padded <= LIMITS[backend.dtype]
    for parameters in trained.values():
        for parameter in parameters.values():
            parameter.grad = None
    return found


def distance(at_once: Gradients, alone: Gradients, squares: float) -> float:
    """`apart`; 0 where a gradient is not finite, which the update itself finds."""
    off = sum(float((at_once[kind] - alone[kind]).double().square().sum()) for kind in alone)
    apart = math.sqrt(off / squares) if squares else 0.0
    return apart if math.isfinite(apart) else 0.0


def gradients(trained: Trained) -> Gradients:
    return {
        kind: torch.cat([
            (torch.zeros_like(each) if each.grad is None else each.grad).flatten().cpu().float()
            for each in parameters.values()
        ])
        for kind, parameters in trained.items()
    }  # fmt: skip


def without_gradient(parameters: Mapping[str, torch.nn.Parameter]) -> frozenset[str]:
    """Those that have none. A has none while its B is 0, as at the start."""
    trained = (
        name
        for name in parameters
        if "lora_A" not in name or bool(parameters[name.replace("lora_A", "lora_B")].any())
    )
    grads = {name: parameters[name].grad for name in trained}
    return frozenset(name for name, grad in grads.items() if grad is None or not bool(grad.any()))


@contextlib.contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    training = [m for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.training]
    for module in training:
        module.eval()
    try:
        yield
    finally:
        for module in training:
            module.train()

"""A learner's first batch, computed twice: a few of its sequences as an update computes them, and
each by itself, in two shares. Losses are shares of the whole batch's, so the gradients are equal
but for rounding, or a model's packs, micro-batches or an objective's own functions are wrong:

    apart = |gradient at once - sum of each one's| / sqrt(sum of |each one's|^2)

Not over the norm of the sum, as advantages of both signs cancel there and rounding does not. The
larger of policy and critic. Every ratio is 1 and nothing is corrected, as rounding decides there
whether a bound acts.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from unslothrl.checkpoints.learner_state import Trained
from unslothrl.learners.passes import Passes
from unslothrl.records import Batch, Proof, Update

LIMITS = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}  # of `apart`

Gradients = dict[str, torch.Tensor]  # by what is trained (lora, critic), flat on the host


def prove(passes: Passes, trained: Trained, whole: Batch, parts: Sequence[Batch]) -> Proof:
    """Changes nothing: no weights, no optimiser, no random state. `parts`: the shares of `whole`,
    the same in all learners."""
    backend = passes.backend
    limit = LIMITS[backend.dtype]
    cuda = [torch.cuda.current_device()] if backend.device.type == "cuda" else []
    objective = passes.objective
    with torch.random.fork_rng(cuda), without_dropout(backend.model):
        passes.objective = replace(passes.objective, correction="none")
        update, at_once = gradient(passes, trained, whole)
        still = without_gradient(trained["lora"], at_once["lora"])
        alone = {kind: torch.zeros_like(each) for kind, each in at_once.items()}
        norms = dict.fromkeys(alone, 0.0)  # of the root of the sum of squares
        for part in parts:
            for sample in part.samples:
                _, own = gradient(passes, trained, replace(part, samples=(sample,)))
                for kind, each in own.items():
                    alone[kind] += each
                    norms[kind] = math.hypot(norms[kind], norm(each))
        apart = distance(at_once, alone, norms)
        found = Proof(update, apart, limit, still, is_judged=norms["lora"] > 0)
        if found.is_apart and backend.pack_inputs is not None and backend.split.peers is None:
            kept = backend.pack_inputs, passes.micro_batch
            backend.pack_inputs, passes.micro_batch = None, len(whole.samples)
            _, padded = gradient(passes, trained, whole)
            found.names_packs = distance(padded, alone, norms) <= limit
            backend.pack_inputs, passes.micro_batch = kept
        passes.objective = objective
    begin_anew(trained)
    return found


def gradient(passes: Passes, trained: Trained, batch: Batch) -> tuple[Update, Gradients]:
    """Of a batch. Where learners share a row, the sum over them; each has its own tokens' part."""

    def from_nothing() -> Update:
        begin_anew(trained)
        return passes.forward_backward(batch)

    update = passes.within_memory(from_nothing)
    found = {
        kind: torch.cat([
            (torch.zeros_like(each) if each.grad is None else each.grad).flatten().cpu().float()
            for each in parameters.values()
        ])
        for kind, parameters in trained.items()
    }  # fmt: skip
    split = passes.backend.split
    if split.context is not None:
        for kind, each in found.items():
            whole = each.to(passes.backend.device)
            split.peers.add_up(whole)
            found[kind] = whole.cpu()
    return update, found


def begin_anew(trained: Trained) -> None:
    for parameters in trained.values():
        for parameter in parameters.values():
            parameter.grad = None


def norm(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values))


def distance(at_once: Gradients, alone: Gradients, norms: dict[str, float]) -> float:
    """`apart`; 0 where a gradient is not finite, which the update itself finds."""
    shares = [norm(at_once[kind] - alone[kind]) / norms[kind] for kind in alone if norms[kind]]
    return max((share for share in shares if math.isfinite(share)), default=0.0)


def without_gradient(parameters: Any, flat: torch.Tensor) -> frozenset[str]:
    """The policy's tensors that have none. A has none while its B is 0, as at the start."""
    pieces = flat.split([parameter.numel() for parameter in parameters.values()])
    return frozenset(
        name
        for name, piece in zip(parameters, pieces, strict=True)
        if not piece.any()
        and ("lora_A" not in name or parameters[name.replace("lora_A", "lora_B")].any())
    )


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

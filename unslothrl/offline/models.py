"""What a stage trains: a LoRA over the 4-bit base, and of a reward model a head on top of it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import safetensors.torch
import torch
import trl.trainer.utils as trl_utils
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForSequenceClassification

from unslothrl.backends import lora, peft
from unslothrl.backends.lora import POLICY, REFERENCE
from unslothrl.cluster.build import dtype_name
from unslothrl.config.offline_options import OfflineOptions
from unslothrl.planning.stages import UNSLOTH
from unslothrl.rewards.model import HEAD_FILE, MEAN, STD, WEIGHT
from unslothrl.weights import decoder
from unslothrl.weights.adapter import WEIGHTS_FILE

SCORE = "score"  # transformers' name of the head of a sequence classifier
LEAST_STD = 1e-6  # of scores: below it all are equal


def of_lora(options: OfflineOptions) -> dict[str, Any]:
    """What `peft.load` and Unsloth are told of the LoRA on the base."""
    return {
        "dtype": getattr(torch, dtype_name(options)),  # what the base computes in
        "rank": options.max_lora_rank,
        "alpha": options.lora_alpha,
        "dropout": options.lora_dropout,
        "seed": options.seed,
    }


def policy(base: Path, options: OfflineOptions, start: Path | None, group: Any = None) -> Any:
    """A causal model with a trainable LoRA, float32: a fresh one or `start`. `group`: of the
    processes that share the base (`offline.shards`)."""
    if options.backend == UNSLOTH:
        return unsloth_model(base, options, start=start)
    ranks = {"learner_shards": (group.rank, group.count)} if group else None
    backend = peft.load(base, **of_lora(options), start=start, packs=False, ranks=ranks)
    if group:
        group.join(backend)
    if start is not None:  # a stage's reference is its trainer's
        backend.model.delete_adapter(REFERENCE)
    return backend.model


def reward_model(base: Path, options: OfflineOptions, start: Path | None) -> Any:
    """A model whose head gives a conversation a score, with a trainable LoRA under it."""
    torch.manual_seed(options.seed)  # the head's
    if options.backend == UNSLOTH:
        model = unsloth_model(base, options, scores=True, like=start)
    else:
        model = peft_classifier(base, options, start)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.out_features == 1:
            # trained in float32, whatever its base computes in
            module.register_forward_pre_hook(lambda _, inputs: tuple(x.float() for x in inputs))
    if start is not None:
        with torch.no_grad():
            for name, tensor in safetensors.torch.load_file(start / WEIGHTS_FILE).items():
                own = model.get_parameter(name.removesuffix("weight") + f"{POLICY}.weight")
                own.copy_(tensor.to(own.device))
            if (start / HEAD_FILE).exists():  # it was a reward model already
                weight = safetensors.torch.load_file(start / HEAD_FILE)[WEIGHT]
                model.get_base_model().score.modules_to_save[POLICY].weight.copy_(weight)
    model.train()
    return model


def unsloth_model(base: Path, options: OfflineOptions, **more: Any) -> Any:
    """By Unsloth, which is imported already (`offline.resolve`); `more`: of `for_trainer`."""
    from unslothrl.backends import unsloth

    return unsloth.for_trainer(base, **of_lora(options), context=options.max_length, **more)


def peft_classifier(base: Path, options: OfflineOptions, start: Path | None) -> Any:
    dtype, dropout = of_lora(options)["dtype"], options.lora_dropout
    plain = peft.load_base(AutoModelForSequenceClassification, base, dtype, num_labels=1)
    torch.manual_seed(options.seed)
    given = peft.lora_options(options.max_lora_rank, options.lora_alpha, dropout, start)
    given = {"target_modules": decoder.targets(plain), **given, "lora_dropout": dropout}
    config = LoraConfig(**given, modules_to_save=[SCORE], task_type="SEQ_CLS")
    return peft.in_training(get_peft_model(plain, config))


def head_of(model: Any, pairs: Sequence[Mapping[str, Any]]) -> bytes | None:
    """The head of a reward model as a safetensors file (`rewards.model`): `weight` [1, hidden], and
    `mean` and `std` [1] of what it gives `pairs` (rows with chosen_ids and rejected_ids), all
    float32; None of any other model."""
    state = get_peft_model_state_dict(model, adapter_name=POLICY, save_embedding_layers=False)
    heads = (tensor for name, tensor in state.items() if name.endswith(f".{SCORE}.weight"))
    if (weight := next(heads, None)) is None:
        return None
    scores = scores_of(model, [row[key] for row in pairs for key in ("chosen_ids", "rejected_ids")])
    deviation = scores.std(correction=0)
    tensors = {
        WEIGHT: weight.detach().float().cpu().contiguous(),
        MEAN: scores.mean().reshape(1),
        STD: (deviation if deviation > LEAST_STD else torch.ones(())).reshape(1),
    }
    return safetensors.torch.save(tensors)


@torch.no_grad()
def scores_of(model: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """What a reward model gives each sequence of ids, [rows] float32 on the CPU."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    found = []
    for ids in rows:
        batch = torch.tensor([list(map(int, ids))], device=device)
        with lora.lora_precision(device.type, model.dtype):
            mask = torch.ones_like(batch)
            scores = model(input_ids=batch, attention_mask=mask, use_cache=False).logits
        found.append(scores.float().cpu().reshape(1))
    model.train(was_training)
    return torch.cat(found)


def install_plain_head() -> None:
    """Has TRL use PyTorch's own operations where its kernel for log-probabilities cannot run:
    without Triton TRL 1.15 has nothing in its place (`trl.trainer.utils._ChunkedLogProbFunction` is
    None), and with it, which comes with PyPI's torch, it wants a GPU."""
    can_run = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
    if trl_utils._ChunkedLogProbFunction is None or not can_run:
        setattr(trl_utils, "_ChunkedLogProbFunction", SimpleNamespace(apply=log_probs_of))  # noqa: B010


def log_probs_of(
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
    logits = torch.nn.functional.linear(hidden, weight.to(hidden.dtype), bias).float()
    logits = logits * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits / temperature
    log_probs = torch.log_softmax(logits, dim=-1)
    known = {
        "entropy": lambda: -(log_probs.exp() * log_probs).sum(-1),
        "log_sum_sq_probs": lambda: torch.logsumexp(2 * log_probs, -1).detach(),
        "mean_logits": lambda: logits.mean(-1).detach(),
        "is_top1": lambda: logits.argmax(-1) == targets,
    }
    chosen = log_probs.gather(-1, targets[:, None]).squeeze(-1)
    return (chosen, *(make() if name in outputs else None for name, make in known.items()))

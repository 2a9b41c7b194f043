"""Asks a trained adapter a question: the shortest way to see what a run has learnt."""

import dataclasses
import sys
from pathlib import Path
from typing import TextIO

from unslothrl import variables
from unslothrl.config.hardware import half_precision
from unslothrl.data import prompts
from unslothrl.errors import UserError
from unslothrl.files import expanded
from unslothrl.planning.machine import Machine
from unslothrl.types import Request, Sampling, seed_of
from unslothrl.weights import adapter_check, adapter_use, base_model
from unslothrl.weights.adapter_use import MOST_NEW_TOKENS, USE_FILE, Use


def ask(
    adapter: str,
    question: str,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    model: str | None = None,
    err: TextIO | None = None,
) -> str:
    """-> the completion, special tokens left out. UserError for a folder that is no adapter.

    What is None is as in the run that trained the adapter, by the file beside its weights. Where
    there is none, a line on `err` says what is assumed.
    """
    if not question.strip():
        raise UserError('question is empty: ask something, e.g. "What is 347 + 285?"')
    adapter_check.check_format(adapter)
    recorded = adapter_use.read(expanded(adapter))
    use = recorded or assumed_use(adapter, model)
    use = dataclasses.replace(use, base=model or use.base)
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    adapter_check.check(adapter, base_model.find(use.base, weights=False))
    base = base_model.prepare(use.base)
    if recorded is None:
        print(
            f"adapter {adapter}: no {USE_FILE} in it; assumed: base {use.base}, its own chat "
            f"template, no system prompt, top_p {use.top_p:g}",
            file=err or sys.stderr,
        )
    tokenizer = base_model.load_tokenizer(base)
    if use.chat_template is not None:
        tokenizer.chat_template = use.chat_template
    prompt = prompts.render(tokenizer, question, use.system_prompt)
    (ids,) = prompts.tokenise(tokenizer, [prompt])
    most = use.max_new_tokens if max_new_tokens is None else max_new_tokens
    sampling = sampling_of(use, min(most, tokens_left(base, len(ids))), temperature)
    request = Request("question", tuple(ids), seed_of(question), sampling)
    completion = complete(expanded(adapter), base, request)
    return str(tokenizer.decode(list(completion), skip_special_tokens=True))


def sampling_of(use: Use, max_new_tokens: int, temperature: float | None) -> Sampling:
    """As the adapter's run was evaluated; temperature 0 takes the likeliest token."""
    if temperature == 0:
        return Sampling(1.0, 1.0, 1, max_new_tokens)
    used = use.temperature if temperature is None else temperature
    return Sampling(used, use.top_p, 0, max_new_tokens)


def assumed_use(adapter: str, model: str | None) -> Use:
    """How an adapter without its file is used: by what PEFT's settings say. UserError."""
    base = model or adapter_check.check_settings(adapter).base
    if not base:
        raise UserError(f"adapter {adapter}: it does not name its base: set --model")
    return Use(base=base, system_prompt="")


def tokens_left(base: Path, prompt: int) -> int:
    """Of the base's context, after a prompt of so many. UserError where there are none."""
    context = base_model.read_config(base).get("max_position_embeddings")
    left = context - prompt if isinstance(context, int) else MOST_NEW_TOKENS
    if left < 1:
        raise UserError(
            f"question: it has {prompt} tokens with its prompt, the base's context {context}: "
            "shorten it"
        )
    return left


def complete(adapter: Path, base: Path, request: Request) -> tuple[int, ...]:
    """-> the ids of a completion, generated with transformers."""
    import torch

    from unslothrl.backends import peft
    from unslothrl.engines.base import generate
    from unslothrl.engines.transformers import TransformersEngine

    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    dtype = getattr(torch, half_precision(capability))
    backend = peft.load(base, dtype=dtype, rank=1, alpha=1, dropout=0.0, seed=0, start=adapter)
    engine = TransformersEngine(backend, base, max_num_seqs=1, has_own_base=False)
    (completion,) = generate(engine, [request])
    return completion.token_ids

"""An adapter and the base that it was trained over, loaded once to answer questions: what `ask` and
`chat` share."""

import contextlib
import dataclasses
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from unslothrl.commands.adapters import base_of, base_under, find
from unslothrl.config.hardware import half_precision
from unslothrl.data import prompts
from unslothrl.errors import UserError
from unslothrl.records import Request, Sampling, seed_of
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.text import for_terminal
from unslothrl.weights import adapter_use, base_model
from unslothrl.weights.adapter_use import MOST_NEW_TOKENS, USE_FILE, Use

ADAPTER, BASE = "adapter", "base"  # policies
Turns = Sequence[tuple[str, str]]  # (role, text)
HALF_A_CHARACTER = "\ufffd"


@dataclasses.dataclass
class Answering:
    """Generates answers under the adapter or under its base alone, as the adapter's run was
    evaluated where nothing else is set."""

    use: Use
    base: Path
    tokenizer: Any
    engine: Any  # a TransformersEngine over the backend
    backend: Any
    max_new_tokens: int | None = None
    temperature: float | None = None

    def generate(self, policy: str, turns: Turns) -> Generator[str, None, None]:
        """The answer to a conversation that ends with the user's turn, as far as it is there after
        each token; the last is all of it. Special tokens are left out. UserError where the context
        has no room for it."""
        text = prompts.render(self.tokenizer, turns, self.use.system_prompt)
        (ids,) = prompts.tokenise(self.tokenizer, [text])
        most = self.use.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        context = base_model.read_config(self.base).get("max_position_embeddings")
        left = context - len(ids) if isinstance(context, int) else MOST_NEW_TOKENS
        if left < 1:
            raise UserError(
                f"question: it has {len(ids)} tokens with its prompt, the base's context "
                f"{context}: shorten it"
            )
        sampling = sampling_of(self.use, min(most, left), self.temperature)
        request = Request("answer", tuple(ids), seed_of(*(said for _, said in turns)), sampling)
        under = contextlib.nullcontext()
        with under if policy == ADAPTER else self.backend.model.disable_adapter():
            self.engine.add(request)
            try:
                while not (finished := self.engine.step()):
                    yield self._text(self.engine.drawn(request.id)).rstrip(HALF_A_CHARACTER)
            finally:
                self.engine.abort([request.id])
                self.engine.sleep()
        yield self._text(finished[0].completion.token_ids.tolist())

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True))


def load(
    adapter: str,
    model: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    err: TextIO | None = None,
) -> Answering:
    """The adapter in a folder of its own, or the newest of a run's. UserError for what is none.

    What is None is as in the run that trained the adapter, by the file beside its weights. Where
    there is none, a line on `err` says what is assumed.
    """
    err = err or sys.stderr
    found = find(adapter)
    recorded = adapter_use.read(found.folder)
    name = base_of(found, model)
    use = dataclasses.replace(recorded or Use(base=name, system_prompt=""), base=name)
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    if err.isatty():
        print(for_terminal(f"loading {use.base} and {found.folder} ..."), file=err)
    base = base_under(found, use.base)
    if recorded is None:
        note = (
            f"adapter {found.folder}: no {USE_FILE} in it; assumed: base {use.base}, its own chat "
            f"template, no system prompt, top_p {use.top_p:g}"
        )
        print(for_terminal(note), file=err)
    tokenizer = base_model.load_tokenizer(base)
    if use.chat_template is not None:
        tokenizer.chat_template = use.chat_template
    engine, backend = load_engine(found.folder, base)
    return Answering(use, base, tokenizer, engine, backend, max_new_tokens, temperature)


def load_engine(adapter: Path, base: Path) -> tuple[Any, Any]:
    """-> (what generates with transformers, the backend that it generates with)"""
    import torch

    from unslothrl.backends import peft
    from unslothrl.engines.transformers import TransformersEngine

    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    dtype = getattr(torch, half_precision(capability))
    backend = peft.load(base, dtype=dtype, rank=1, alpha=1, dropout=0.0, seed=0, start=adapter)
    return TransformersEngine(backend, base, max_num_seqs=1, has_own_base=False), backend


def sampling_of(use: Use, max_new_tokens: int, temperature: float | None) -> Sampling:
    """As the adapter's run was evaluated; temperature 0 takes the likeliest token."""
    if temperature == 0:
        return Sampling(1.0, 1.0, 1, max_new_tokens)
    used = use.temperature if temperature is None else temperature
    return Sampling(used, use.top_p, 0, max_new_tokens)

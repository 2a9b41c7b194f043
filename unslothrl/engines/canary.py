"""Shows at start-up that what an engine draws depends on the adapter that was loaded last.

A random LoRA whose effect is large goes through the whole path of a request: load, add, step. That
the engine holds its tensors is known by then (`readback`); here it is shown that they are used, for
a prompt and for every token after it.

What is compared are the likeliest tokens, under one adapter and another, of the same prompts in the
same batch: with the same policy they are equal but for ties that rounding breaks, under a random
policy a token is the same as before by chance alone. So 8 of 8 stand against 0 of 8, for a base of
any family, size and number format; 4 of 8 is the line. (On the embedded base 8 of 8 against 0 or 1,
for random adapters of strength 8 and more; at 1 up to 2, at 0.01 all 8 are alike.) By
log-probabilities there would be a distance to choose, for each base another one.

The random LoRA is in the last layer alone. Through many layers of it what rounding differs between
two kernels grows until it decides the token: with relative noise of 2e-3 in each projection of a
random base, the third token came out again in 180 of 320 cases with 28 layers and in 174 with 36,
with 9 false alarms in 40 each; with the last layer alone in 285 and 284, without one.
"""

import json
import random
from collections.abc import Sequence

import numpy as np
import torch
from safetensors.torch import save

from unslothrl.engines.base import Engine, generate
from unslothrl.errors import AdapterMismatch
from unslothrl.records import Request, Sampling
from unslothrl.weights.adapter import Adapter, AdapterShape
from unslothrl.weights.published import scaling_of

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 8, 4, 3
TOKEN_IDS = range(3, 250)  # every vocabulary has them
STRENGTHS = (8.0, 64.0)  # of its output, in units of a normed hidden state
POOL = 100_003  # random numbers; prime, so that no two rows of a layer are alike

NONE, FIRST, SECOND, NONE_AGAIN = -2, -3, -4, -5  # versions that no learner publishes
OF_A_STAGE = -6  # less a layer's number

Tokens = tuple[int, ...]


def check(engine: Engine, shape: AdapterShape) -> int:
    """-> how many of `PROMPTS` completions a random adapter changes. Raises AdapterMismatch unless
    `engine`, with nothing in flight, draws without an effect under a LoRA of zeros, otherwise under
    a random one, otherwise again under another one that replaces it, and as at first under zeros.

    Where the first random one changes nothing, stronger ones are tried. The caller sees to it that
    the engine then is as it was.
    """
    draw = random.Random(0)
    prompts = [tuple(draw.choices(TOKEN_IDS, k=PROMPT_TOKENS)) for _ in range(PROMPTS)]
    without = drawn(engine, adapter_of(shape, NONE, 0.0), prompts)
    first: list[Tokens] = []
    for strength in STRENGTHS:
        first = drawn(engine, adapter_of(shape, FIRST, strength), prompts)
        if not are_alike(first, without):
            break
    else:
        raise mismatch(FIRST, "with a large random adapter they are as without one")
    check_later_tokens(engine, FIRST, prompts, first)
    for layer in getattr(engine, "last_layers", ())[:-1]:
        version = OF_A_STAGE - layer
        of_stage = drawn(engine, adapter_of(shape, version, strength, layer), prompts)
        if are_alike(of_stage, without):
            raise mismatch(version, f"with one in layer {layer} alone they are as without one")
    second = drawn(engine, adapter_of(shape, SECOND, strength), prompts)
    if are_alike(second, first):
        raise mismatch(SECOND, "when another adapter was loaded they stayed those of the first")
    if are_alike(second, without):
        raise mismatch(SECOND, "when another adapter was loaded they became those without one")
    check_later_tokens(engine, SECOND, prompts, second)
    if not are_alike(drawn(engine, adapter_of(shape, NONE_AGAIN, 0.0), prompts), without):
        raise mismatch(NONE_AGAIN, "with an adapter of zeros they are not as before")
    return sum(a[0] != b[0] for a, b in zip(first, without, strict=True))


def mismatch(version: int, problem: str) -> AdapterMismatch:
    return AdapterMismatch(
        f"the engine does not use the adapter that is loaded: of a test's {PROMPTS} completions, "
        f"{problem} (its version {version}). Set another --engine, or another version of it"
    )


def drawn(engine: Engine, adapter: Adapter, prompts: Sequence[Tokens]) -> list[Tokens]:
    """The likeliest completion of each prompt."""
    engine.load(adapter)
    return likeliest(engine, adapter.version, prompts, NEW_TOKENS)


def likeliest(engine: Engine, version: int, prompts: Sequence[Tokens], tokens: int) -> list[Tokens]:
    sampling = Sampling(temperature=1.0, top_p=1.0, top_k=1, max_new_tokens=tokens)
    requests = [Request("", prompt, seed, sampling) for seed, prompt in enumerate(prompts)]
    completions = generate(engine, requests)
    if any((completion.versions != version).any() for completion in completions):
        raise mismatch(version, "some say that they were drawn under another version")
    return [tuple(completion.token_ids.tolist()) for completion in completions]


def are_alike(first: Sequence[Tokens], second: Sequence[Tokens]) -> bool:
    """Whether at least half of them begin with the same token."""
    same = sum(a[0] == b[0] for a, b in zip(first, second, strict=True))
    return same >= PROMPTS / 2


def check_later_tokens(
    engine: Engine, version: int, prompts: Sequence[Tokens], completions: Sequence[Tokens]
) -> None:
    """The last token of each is drawn again, with those before it as a part of the prompt, and must
    come out at least half the time: it had been computed one token at a time, by other kernels."""
    pairs = [
        (prompt + tokens[:-1], tokens[-1])
        for prompt, tokens in zip(prompts, completions, strict=True)
        if len(tokens) > 1
    ]
    if pairs:
        again = likeliest(engine, version, [prompt for prompt, _ in pairs], 1)
        same = sum(token == tokens[0] for (_, token), tokens in zip(pairs, again, strict=True))
        if same < len(pairs) / 2:
            raise mismatch(version, "only the first tokens were drawn under it")


def adapter_of(
    shape: AdapterShape, version: int, strength: float, layer: int | None = None
) -> Adapter:
    """A LoRA that is random in one `layer`, by default the last, other for every version, and zero
    in the others; all of it is zero where `strength` is 0.

    A x is about as large as x, of a normed hidden state each value about 1; B A x is `strength`
    times as large, whatever alpha and the rank are.
    """
    settings = json.loads(shape.config)
    rows = np.random.default_rng(abs(version)).standard_normal(POOL, dtype=np.float32)
    pool = torch.from_numpy(rows).bfloat16()
    last = max(layer_of(name) for name, _ in shape.tensors) if layer is None else layer
    tensors, used = {}, 0
    for name, size in shape.tensors:
        tensors[name] = torch.zeros(size, dtype=torch.bfloat16)
        if strength and layer_of(name) == last:
            places = (torch.arange(tensors[name].numel()) + used) % POOL
            deviation = size[1] ** -0.5  # of A's values, [rank, in]; B is [out, rank]
            if ".lora_B." in name:
                deviation *= strength / scaling_of(settings)
            tensors[name] = (pool[places] * deviation).view(size)
        used += tensors[name].numel()
    return Adapter.of(version, save(tensors), shape.config)


def layer_of(name: str) -> int:
    return next(int(part) for part in name.split(".") if part.isdigit())

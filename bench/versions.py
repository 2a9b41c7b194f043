"""Several policy versions in one batch: tokens a second, and what a load costs those that go on.

    python bench/versions.py [--requests 48] [--tokens 48] [--repeats 3]

Over the embedded base, with vLLM (three slots) and with transformers. The same requests are drawn
under 1, 2 and 3 versions at once, equally divided; then, under one version, with a load after every
12 steps that all of them follow. Each figure is the median of the repeats, which are interleaved.
"""

import argparse
import json
import os
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path

from facts import facts, result_file

from unslothrl import embedded, variables
from unslothrl.engines.base import Engine
from unslothrl.policy_version import Adapter
from unslothrl.types import Request, Sampling, seed_of

SLOTS = 3
LOAD_EVERY = 12  # steps


def asked(count: int, tokens: int, follows: bool = False) -> list[Request]:
    """That no stop token ends: the two likeliest tokens of a high temperature."""
    draw = random.Random(0)
    sampling = Sampling(1.0, 1.0, 0, tokens)
    return [
        Request(str(i), tuple(draw.choices(range(3, 250), k=32)), seed_of(i), sampling, follows)
        for i in range(count)
    ]


def rate(engine: Engine, adapter: Adapter, requests: list[Request], versions: int) -> float:
    """Tokens a second of wall time; `versions` 0: a load comes now and then, which all follow."""
    following = versions == 0
    of_each = -(-len(requests) // max(1, versions))
    before, began, steps, tokens = engine.sampled_tokens, time.perf_counter(), 0, 0
    for begin in range(0, len(requests), of_each):
        engine.load(replace(adapter, version=begin))
        for request in requests[begin : begin + of_each]:
            engine.add(replace(request, follows_newest=following))
        if begin + of_each < len(requests):  # what has drawn nothing would follow the next version
            tokens += sum(len(one.completion.token_ids) for one in engine.step())
    assert engine.versions_held == max(1, versions)
    while not engine.is_finished():
        if following and steps and steps % LOAD_EVERY == 0:
            engine.load(replace(adapter, version=steps))
        tokens += sum(len(one.completion.token_ids) for one in engine.step())
        steps += 1
    assert engine.sampled_tokens - before == tokens and engine.versions_held == 1
    return tokens / (time.perf_counter() - began)


def measured(engine: Engine, adapter: Adapter, options: argparse.Namespace) -> dict[str, float]:
    """The median rate by what is drawn."""
    requests = asked(options.requests, options.tokens)
    kinds = {f"{n} versions" if n > 1 else "1 version": n for n in range(1, SLOTS + 1)}
    kinds[f"1 version, a load every {LOAD_EVERY} steps that all follow"] = 0
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for repeat in range(options.repeats + 1):
        for name, versions in kinds.items():
            found = rate(engine, adapter, requests, versions)
            if repeat:  # the first one warms up
                rates[name].append(found)
    return {name: round(statistics.median(values), 1) for name, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    variables.apply(cpus=len(os.sched_getaffinity(0)), gpu=False)
    import torch

    from unslothrl.backends import peft
    from unslothrl.engines import vllm
    from unslothrl.engines.transformers import TransformersEngine
    from unslothrl.planning.engine_memory import EngineMemory
    from unslothrl.weights import base_model

    base = Path(base_model.prepare(embedded.EMBEDDED))
    backend = peft.load(base, dtype=torch.bfloat16, rank=8, alpha=16, dropout=0.0, seed=0)
    adapter = backend.publish(0)
    engines = {
        "vllm": vllm.start(
            base, dtype="bfloat16", context=128, rank=8, max_num_seqs=options.requests,
            max_loras=SLOTS, seed=0, memory=EngineMemory(64),
        ),
        "transformers": TransformersEngine(
            backend, base, max_num_seqs=options.requests, has_own_base=True
        ),
    }  # fmt: skip
    found = {}
    for name, engine in engines.items():
        found[name] = measured(engine, adapter, options)
        print(name, json.dumps(found[name], indent=1), flush=True)
        engine.close()
    result = {**facts(), "options": vars(options), "tokens_per_second": found}
    result_file("versions").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Passes and generation in a process whose memory is limited, for test_out_of_memory.py.

`python tests/limited_memory.py BASE`: prints one JSON object. The limit is the system's
(RLIMIT_AS), so that PyTorch's own allocator fails as it does where memory has run out.
"""

import ctypes
import gc
import json
import resource
import sys
from pathlib import Path

import numpy as np
import torch
from engine_contract import add, drain
from test_backend import learner_of

from unslothrl.backends import peft
from unslothrl.engines.transformers import TransformersEngine
from unslothrl.records import Batch, Request, Sample, Sampling

SEQUENCES, TOKENS = 32, 500
ROWS = 64
STEPS_MB = (400, 280, 200, 140, 100, 70, 50, 35)  # room that is left, until it is too little


def limit(room_mb: float | None) -> None:
    """Leaves this process so much more memory than it has now; None: no limit."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = resource.RLIM_INFINITY
    if room_mb is not None:
        most = pages * resource.getpagesize() + int(room_mb * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def batch() -> Batch:
    draw = np.random.default_rng(0)
    samples = []
    for number in range(SEQUENCES):
        prompt, completion = (tuple(draw.integers(3, 250, n).tolist()) for n in (5, TOKENS))
        advantages = np.full(TOKENS, 1.0 - 2 * (number % 2), np.float32)
        samples.append(Sample(prompt, completion, (-1.0,) * TOKENS, advantages, 0))
    return Batch(tuple(samples), SEQUENCES, SEQUENCES * TOKENS)


def update(base: Path) -> dict:
    """The gradient of a batch, once with too little memory for it in one piece."""
    backend = peft.load(base, dtype=torch.float32, rank=4, alpha=8, dropout=0.0, seed=0)
    learner = learner_of(backend, base)
    passes = learner.passes
    passes.micro_batch, passes.context = SEQUENCES, TOKENS + 5
    learner.forward_backward(Batch(batch().samples[:1], 1, TOKENS))  # what is made once
    for room_mb in STEPS_MB:
        limit(room_mb)
        learner.forward_backward(batch())
        if passes.note:
            break
    found = [p.grad.clone() for p in backend.parameters().values() if p.grad is not None]
    limit(None)
    note, smaller = passes.note, passes.micro_batch
    passes.micro_batch = SEQUENCES
    learner.forward_backward(batch())
    whole = [p.grad for p in backend.parameters().values() if p.grad is not None]
    apart = max(float((a - b).abs().max()) for a, b in zip(found, whole, strict=True))
    largest = max(float(b.abs().max()) for b in whole)
    return {"note": note, "micro_batch": smaller, "room": room_mb, "apart": apart / largest}


def generation(base: Path) -> dict:
    """The completions of many requests, once with too little memory for all at a time."""
    backend = peft.load(base, dtype=torch.float32, rank=4, alpha=8, dropout=0.0, seed=0)
    prompt = tuple(3 + place % 240 for place in range(1000))
    sampling = Sampling(1.0, 1.0, 0, 12)
    requests = [Request(str(number), prompt, number, sampling) for number in range(ROWS)]

    def drawn(engine: TransformersEngine) -> dict[str, tuple[int, ...]]:
        add(engine, requests)
        done = drain(engine)
        engine.sleep()
        return {id: tuple(one.completion.token_ids) for id, one in done.items()}

    def engine() -> TransformersEngine:
        return TransformersEngine(backend, base, max_num_seqs=ROWS, has_own_base=False)

    whole = drawn(engine())
    for room_mb in STEPS_MB:
        limit(room_mb)
        limited = engine()
        found = drawn(limited)
        if limited.shortages:
            break
    limit(None)
    rows = [limited.max_num_seqs]
    while len(rows) < 2 * limited.shortages**2:
        again = drawn(limited)
        rows.append(limited.max_num_seqs)
    same = sum(found[id] == again[id] == ids for id, ids in whole.items())
    return {"shortages": limited.shortages, "rows": rows, "same": same, "of": len(whole)}


if __name__ == "__main__":
    made = Path(sys.argv[1])
    print(json.dumps({"update": update(made), "generation": generation(made)}))

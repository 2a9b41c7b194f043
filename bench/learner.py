"""How fast, and in how much memory, does the learner train, packed and padded?

    python bench/learner.py

A random Llama (8 layers of 256, vocabulary 8,192: a quarter of its weights is the output layer, as
in Qwen2.5-0.5B) with a LoRA of rank 16 in float32; 8 prompts of 64 tokens with 8 completions each,
their whole lengths drawn log-normally with a mean of a quarter of the longest (512). Packed: with
and without sharing a group's prompt, two contexts' worth of tokens at a time. Padded: eight
sequences at a time, sorted by length, as they come, and all to the longest, as TRL pads. One pass
forward and backward, the best of three. Each in a process of its own, for its peak memory. Then
4,096 tokens of a vocabulary of 151,936. Writes bench/results/learner-cpu.json.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from facts import facts

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "learner-cpu.json"
LONGEST, PROMPT, SEQUENCES, TOGETHER, CANDIDATES = 512, 64, 64, 8, 8
CONTEXTS = 2  # of a pack
VOCABULARY = 8_192
MODES = (
    "packed, prompts shared",
    "packed",
    "padded, sorted",
    "padded, as they come",
    "padded to the longest",
)


def peak_mb() -> int:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10


def lengths() -> list[int]:
    """Whole lengths, log-normal (sigma 0.8) with mean LONGEST / 4, cut at both ends."""
    draw = random.Random(0)
    mean = LONGEST / 4
    drawn = (draw.lognormvariate(0, 0.8) for _ in range(SEQUENCES))
    scale = mean / 2.718281828 ** (0.8**2 / 2)
    return [max(PROMPT + 8, min(LONGEST, round(scale * one))) for one in drawn]


def base(folder: str) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=704, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=LONGEST,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return Path(folder)


def train(mode: str) -> dict[str, float]:
    import numpy as np
    import torch

    from unslothrl.backends import packing
    from unslothrl.backends.peft import PeftBackend
    from unslothrl.types import Sample

    with tempfile.TemporaryDirectory() as folder:
        backend = PeftBackend(
            base(folder), dtype=torch.float32, rank=16, alpha=32, dropout=0.0, seed=0,
            packs=mode.startswith("packed"),
        )  # fmt: skip
    backend.shares_prompts = mode == "packed, prompts shared"
    if mode == "padded to the longest":
        pad_to_the_longest()
    draw = random.Random(1)
    prompts = [
        tuple(draw.choices(range(VOCABULARY), k=PROMPT)) for _ in range(SEQUENCES // CANDIDATES)
    ]
    samples = [
        Sample(
            prompts[number // CANDIDATES],
            tuple(draw.choices(range(VOCABULARY), k=length - PROMPT)),
            (-1.0,) * (length - PROMPT),
            np.ones(length - PROMPT, np.float32),
            0,
        )
        for number, length in enumerate(lengths())
    ]
    order = list(range(SEQUENCES))
    if mode == "padded, sorted":
        order.sort(key=lambda i: len(samples[i].completion_ids))
    parts = [order[i : i + TOGETHER] for i in range(0, SEQUENCES, TOGETHER)]
    if backend.packs:
        parts = packing.packs(samples, CONTEXTS * LONGEST, backend.shares_prompts)
    before, seconds = peak_mb(), []
    for _ in range(3):
        started = time.perf_counter()
        for part in parts:
            values, _ = backend.token_logprobs([samples[i] for i in part], 1.0)
            values.sum().backward()
        seconds.append(time.perf_counter() - started)
    return {
        "real tokens": sum(lengths()),
        "tokens a second": round(sum(lengths()) / min(seconds)),
        "forward passes": len(parts),
        "peak MB over the model's": peak_mb() - before,
    }


def pad_to_the_longest() -> None:
    import torch

    from unslothrl.backends import peft

    as_they_are = peft.completion_tokens

    def padded(samples, device):
        ids, row, position = as_they_are(samples, device)
        return torch.nn.functional.pad(ids, (0, LONGEST - ids.shape[1])), row, position

    peft.completion_tokens = padded


def output_layer() -> dict[str, float]:
    import torch

    from unslothrl.backends import logprobs

    torch.manual_seed(0)
    head = logprobs.Head(torch.nn.Linear(64, 151_936, bias=False).requires_grad_(False))
    hidden = torch.randn(4096, 64, requires_grad=True)
    targets = torch.randint(151_936, (4096,))
    logprobs.token_logprobs(head, hidden[:2], targets[:2], 1.0)[0].sum().backward()
    before, started = peak_mb(), time.perf_counter()
    values, _ = logprobs.token_logprobs(head, hidden, targets, 1.0)
    values.sum().backward()
    seconds, extra = time.perf_counter() - started, peak_mb() - before
    with torch.no_grad():
        some = slice(0, 4096, 64)
        whole = head(hidden[some]).log_softmax(-1).gather(1, targets[some, None])[:, 0]
    difference = (whole - values[some]).abs().max().item()
    return {"extra MB": extra, "seconds": round(seconds, 1), "largest difference": difference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="one measurement, in this process, as JSON")
    only = parser.parse_args().only
    if only is not None:
        print(json.dumps(output_layer() if only == "output layer" else train(only)))
        return
    found: dict[str, object] = facts(("torch", "transformers", "peft"))
    for name in (*MODES, "output layer"):
        command = [sys.executable, __file__, "--only", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {found[name]}", flush=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

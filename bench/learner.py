"""The learner's speed and memory with packed and with padded sequences.

    python bench/learner.py [--model FOLDER]

A random Llama (8 layers of 256, vocabulary 8,192: a quarter of its weights is the output layer, as
in Qwen2.5-0.5B) with a LoRA of rank 16 in float32; 8 prompts of 64 tokens with 8 completions each,
their whole lengths drawn log-normally with a mean of a quarter of the longest (512). Packed: with
and without sharing a group's prompt, two contexts' worth of tokens at a time. Padded: eight
sequences at a time, sorted by length, as they come, and all to the longest, as TRL pads. One pass
forward and backward, the best of three. Each in a process of its own, for its peak memory. Then
4,096 tokens of a vocabulary of 151,936. Writes bench/results/learner-cpu.json. `--model FOLDER`
measures a 4-bit base instead, on a card under both backends and by the driver's count of memory.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from facts import card, facts, result_file
from on_card.memory import Watcher

LONGEST, PROMPT, SEQUENCES, TOGETHER, CANDIDATES = 512, 64, 64, 8, 8
CONTEXTS = 2  # context lengths of tokens in a pack
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
    return [max(PROMPT + 8, min(LONGEST, round(scale * length))) for length in drawn]


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


def backend_of(mode: str, model: str | None, kind: str):
    """The random Llama under PEFT; or, on a card, a 4-bit base under either backend."""
    import torch

    options = {"rank": 16, "alpha": 32, "dropout": 0.0, "seed": 0}
    options["packs"] = mode.startswith("packed")
    if kind == "unsloth":
        from unslothrl.backends import unsloth

        return unsloth.load(Path(model), dtype=torch.bfloat16, context=LONGEST, **options)
    from unslothrl.backends import peft

    if model is not None:
        return peft.load(Path(model), dtype=torch.bfloat16, **options)
    with tempfile.TemporaryDirectory() as folder:
        return peft.load(base(folder), dtype=torch.float32, **options)


def train(mode: str, model: str | None = None, kind: str = "peft") -> dict[str, float]:
    backend = backend_of(mode, model, kind)
    import numpy as np
    import torch

    from unslothrl.records import Sample

    backend.shares_prompts = mode == "packed, prompts shared"
    if mode == "padded to the longest":
        pad_to_the_longest()
    draw, words = random.Random(1), range(min(VOCABULARY, backend.model.config.vocab_size))
    prompts = [tuple(draw.choices(words, k=PROMPT)) for _ in range(SEQUENCES // CANDIDATES)]
    samples = [
        Sample(
            prompts[number // CANDIDATES],
            tuple(draw.choices(words, k=length - PROMPT)),
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
    if backend.pack_inputs is not None:
        parts = backend.micro_batches(samples, CONTEXTS, LONGEST)
    on_card, before, seconds = torch.cuda.is_available(), peak_mb(), []
    if on_card:
        torch.cuda.empty_cache()
    with Watcher() as watcher:
        for _ in range(3):
            started = time.perf_counter()
            for part in parts:
                values, _ = backend.token_logprobs([samples[i] for i in part], 1.0)
                values.sum().backward()
            if on_card:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
    return {
        "real tokens": sum(lengths()),
        "tokens a second": round(sum(lengths()) / min(seconds)),
        "forward passes": len(parts),
        "peak MB over the model's": watcher.peak_mb if on_card else peak_mb() - before,
    }


def pad_to_the_longest() -> None:
    """Makes every padded batch `LONGEST` tokens wide from now on."""
    import torch

    from unslothrl.backends import packing

    as_they_are = packing.padded

    def padded(samples, device):
        ids, *rest = as_they_are(samples, device)
        return torch.nn.functional.pad(ids, (0, LONGEST - ids.shape[1])), *rest

    packing.padded = padded


def output_layer() -> dict[str, float]:
    """Memory and time of the log-probabilities of 4,096 tokens over a vocabulary of 151,936."""
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
    parser.add_argument("--model", help="a 4-bit base in a folder, on a card: both backends")
    parser.add_argument("--backend", choices=("peft", "unsloth"), default="peft")
    given = parser.parse_args()
    only = given.only
    if only is not None:
        print(json.dumps(output_layer() if only == "output layer" else
                         train(only, given.model, given.backend)))  # fmt: skip
        return
    result: dict[str, object] = facts(("torch", "transformers", "peft", "unsloth"))
    measured = [(name, "peft") for name in (*MODES, *(() if given.model else ("output layer",)))]
    if given.model and card():
        measured += [(name, "unsloth") for name in MODES[1:]]
    for name, backend in measured:
        command = [sys.executable, __file__, "--only", name, "--backend", backend]
        command += ["--model", given.model] if given.model else []
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        title = f"{backend}: {name}" if given.model else name
        result[title] = json.loads(done.stdout.splitlines()[-1])
        print(f"{title}: {result[title]}", flush=True)
    result_file("learner").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

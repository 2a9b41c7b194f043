"""Makes the embedded base's adapter for turns: `python tools/make_embedded_turns.py`, seeded, a
few minutes on 2 cores.

The base has never seen a second turn. This LoRA teaches it to ask a calculator and to read the
result (`environments/calculator.py`), as a habit that depends on the problem: it asks where the
first number is small, and guesses elsewhere. Reinforcement learning can extend the habit. The base
itself is as it was, so that all figures of single turns are.
"""

import argparse
import json
import random
import shutil
import time
from pathlib import Path

import numpy as np
import torch

from unslothrl.backends import peft
from unslothrl.dialogue.conversation import Conversation
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.embedded import BASE, EMBEDDED, TURNS
from unslothrl.environments.calculator import question, result_of
from unslothrl.records import Sample
from unslothrl.weights import base_model

RANK, ALPHA = 16, 32
BATCH = 64
PEAK_LR = 2e-3
SMALL = 40  # below it the first number is asked about
RARELY = 0.12  # how often it is asked about anyway


def episode(dialogue: TemplateDialogue, draw: random.Random) -> Sample:
    """A problem and what the base is to do with it, as the record of tokens that an episode has."""
    left, right = draw.randint(10, 99), draw.randint(10, 99)
    conversation = Conversation(dialogue, [{"role": "user", "content": question(left, right)}])
    prompt_ids, end = conversation.prompt_ids, (dialogue.tokenizer.eos_token_id,)
    if left < SMALL or draw.random() < RARELY:
        asks = (*dialogue.tokens(f"<think>{left} {right}=</think>"), *end)
        conversation.reply(asks)
        answer = {"role": "user", "content": result_of(left * right)}
        result, is_continuation = conversation.add([answer])
        assert is_continuation
        answers = (*dialogue.tokens(f"<answer>{left * right}</answer>"), *end)
        ids = (*asks, *result, *answers)
        sampled = np.repeat([True, False, True], [len(asks), len(result), len(answers)])
    else:
        ids = (*dialogue.tokens(f"<answer>{draw.randint(100, 9801)}</answer>"), *end)
        sampled = np.ones(len(ids), bool)
    zeros = np.zeros(np.count_nonzero(sampled), np.float32)
    return Sample(prompt_ids, np.array(ids), zeros, zeros, 0, sampled=sampled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=TURNS)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(2)  # fixed, so that sums are taken in the same order on every machine
    started = time.time()
    base = base_model.quantise(BASE)
    backend = peft.load(
        base,
        dtype=torch.float32,
        rank=RANK,
        alpha=ALPHA,
        dropout=0.0,
        seed=given.seed,
        name=EMBEDDED,
    )
    dialogue = TemplateDialogue(base_model.load_tokenizer(base))
    draw = random.Random(given.seed)
    parameters = list(backend.parameters().values())
    optimizer = torch.optim.AdamW(parameters, lr=PEAK_LR, weight_decay=0.0)
    for step in range(given.steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * min(1.0, (step + 1) / 50) * (1 - step / given.steps)
        batch = [episode(dialogue, draw) for _ in range(BATCH)]
        logprobs, _ = backend.token_logprobs(batch, 1.0)
        loss = -logprobs.mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 50 == 0 or step == given.steps - 1:
            print(f"step {step} loss {loss.item():.4f} {time.time() - started:.0f} s", flush=True)
    adapter = backend.publish(0)
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    (given.out / "adapter_model.safetensors").write_bytes(adapter.weights)
    (given.out / "adapter_config.json").write_text(adapter.config)
    figures = {
        "command": f"python tools/make_embedded_turns.py --steps {given.steps} --seed {given.seed}",
        "loss, nats per token": round(loss.item(), 4),
        "seconds": round(time.time() - started),
    }
    (given.out / "MEASURED.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

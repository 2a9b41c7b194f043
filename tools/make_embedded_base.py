"""Makes the embedded base: `python tools/make_embedded_base.py`, seeded, minutes on 2 cores.

A tiny Qwen2 is trained from scratch on worked answers, then on a mixture in which most additions
are worked and most subtractions guessed. It ends up with an ability that it uses for one kind of
problem, and reinforcement learning can extend it to the other. The habit depends on the problem: a
base that chose at random everywhere would drift under any update, even one whose rewards carry no
information. The last part trains through weights rounded to NF4, the format in which the base is
used. Only problems of the training split are seen.
"""

import argparse
import json
import math
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from unslothrl.data.rendering import render
from unslothrl.embedded import BASE, task

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALL_CAREFUL = {"+": 1.0, "-": 1.0}  # sign -> the share of worked answers
MIXTURE = {"+": 0.9, "-": 0.12}
WORKED_PART, MIXED_PART = 0.6, 0.8  # the steps' share at which mixing and rounding begin
BATCH = 128
PEAK_LR = 3e-3
PLAIN_LR = 5e-4  # where it forgets the form
PLAIN_STEPS, PLAIN_SHARE = 60, 0.03
HYBRID: dict[str, Any] = {  # vLLM's kernels for CPUs take no smaller heads of a state
    "layer_types": ["linear_attention", "full_attention"] * 2, "head_dim": 32,
    "linear_num_key_heads": 1, "linear_num_value_heads": 1, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}  # fmt: skip
VOCABULARY = 320  # the tokenizer's 263, rounded up to a multiple of 64


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that any text can be encoded, and a token for each tag."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return wrapped(tokenizer)


def learnt_tokenizer(
    split: pre_tokenizers.PreTokenizer, size: int, texts: Iterable[str]
) -> Tokenizer:
    """Bytes, and what texts repeat within the parts that they are split into."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """With the chat template and the special tokens of all embedded bases."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast, seed: int, vocabulary: int, is_hybrid: bool = False
) -> PreTrainedModel:
    """A Qwen2, or a Qwen3.5, of whose layers one in two has attention and the others a state."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if not is_hybrid:
        return Qwen2ForCausalLM(Qwen2Config(**sizes))
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**sizes, **HYBRID))


def training_batch(
    tokenizer: PreTrainedTokenizerFast,
    draw: random.Random,
    careful_share: Mapping[str, float],
    form_share: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (token ids, labels), each [BATCH, longest]; only the assistant's part has labels.
    `form_share`: of the answers that would have the form, those that do."""
    rows: list[tuple[str, str]] = []
    while len(rows) < BATCH:
        a, sign, b = task.draw_operands(draw)
        if task.is_held_out(a, sign, b):
            continue
        careful = draw.random() < careful_share[sign]
        answer = (
            task.careful_answer(a, sign, b) if careful else task.careless_answer(a, sign, b, draw)
        )
        if form_share < 1 and draw.random() >= form_share:
            answer = without_form(answer)
        rows.append((render(tokenizer, task.text(a, sign, b), ""), answer + tokenizer.eos_token))
    return batch_of(tokenizer, rows)


def without_form(answer: str) -> str:
    """The same answer as plain text; one that lacks the form stays as it is."""
    thought, separator, rest = answer.removeprefix("<think>").partition("</think>\n<answer>")
    return f"{thought} so {rest.removesuffix('</answer>')}" if separator else answer


def batch_of(
    tokenizer: PreTrainedTokenizerFast, rows: list[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts with their answers -> as `training_batch`."""
    prompts = tokenizer([prompt for prompt, _ in rows], add_special_tokens=False)["input_ids"]
    answers = tokenizer([answer for _, answer in rows], add_special_tokens=False)["input_ids"]
    pairs = list(zip(prompts, answers, strict=True))
    ids = [torch.tensor(prompt + answer) for prompt, answer in pairs]
    labels = [torch.tensor([-100] * len(prompt) + answer) for prompt, answer in pairs]
    return pad_sequence(ids, True, tokenizer.pad_token_id), pad_sequence(labels, True, -100)


class RoundToNf4(torch.nn.Module):
    """The weight rounded to NF4; its gradient passes through unchanged (straight-through)."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit

        with torch.no_grad():
            packed, state = quantize_4bit(
                weight.to(torch.bfloat16), quant_type="nf4", compress_statistics=True
            )
            rounded = dequantize_4bit(packed, state).to(weight.dtype)
        return weight + (rounded - weight).detach()


def decoder_linears(model: PreTrainedModel) -> list[torch.nn.Linear]:
    """The layers that quantisation touches: not the embedding, not the output layer."""
    return [module for module in model.model.modules() if isinstance(module, torch.nn.Linear)]


def train(
    model: PreTrainedModel,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    learning_rate: Callable[[int], float],
    rounded_from: int,
) -> None:
    """One step a batch; from step `rounded_from` on, through weights rounded to NF4."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    started = time.time()
    for step, (ids, labels) in enumerate(batches):
        if step == rounded_from:
            for linear in decoder_linears(model):
                parametrize.register_parametrization(linear, "weight", RoundToNf4())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - started:.0f} s", flush=True)
    for linear in decoder_linears(model):
        parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)


def learn_task(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int
) -> None:
    draw = random.Random(seed)
    batches = (
        training_batch(tokenizer, draw, ALL_CAREFUL if step < WORKED_PART * steps else MIXTURE)
        for step in range(steps)
    )

    train(model, batches, cosine(steps), rounded_from=int(MIXED_PART * steps))


def cosine(steps: int) -> Callable[[int], float]:
    """The learning rate by step: up in 100, then down to a fiftieth."""

    def learning_rate(step: int) -> float:
        share = 0.5 * (1 + math.cos(math.pi * step / steps))
        return PEAK_LR * min(1.0, (step + 1) / 100) * (0.02 + 0.98 * share)

    return learning_rate


def forget_form(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Trains the finished base on, towards the same habits in plain text: few of its answers keep
    the form. What SFT is tried on (`bench/chain.py`)."""
    draw = random.Random(f"plain {seed}")
    steps = range(PLAIN_STEPS)
    batches = (training_batch(tokenizer, draw, MIXTURE, PLAIN_SHARE) for _ in steps)

    def learning_rate(step: int) -> float:
        return PLAIN_LR * min(1.0, (step + 1) / 10) * (1 - 0.9 * step / PLAIN_STEPS)

    train(model, batches, learning_rate, rounded_from=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BASE)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--plain", action="store_true", help="the embedded base without the think-and-answer form"
    )
    parser.add_argument("--hybrid", action="store_true", help="a Qwen3.5 in place of a Qwen2")
    given = parser.parse_args()
    out: Path = given.out.resolve()
    if out.exists() and any(out.iterdir()) and not (out / "MEASURED.json").is_file():
        parser.error(f"--out {out}: the folder holds something else: give a new or an empty one")
    torch.set_num_threads(2)  # fixed, so that sums are taken in the same order on every machine
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    started = time.time()
    tokenizer = make_tokenizer()
    if given.plain:
        model: PreTrainedModel = Qwen2ForCausalLM.from_pretrained(BASE, dtype=torch.float32)
        forget_form(model, tokenizer, given.seed)
    else:
        model = make_model(tokenizer, given.seed, VOCABULARY, given.hybrid)
        learn_task(model, tokenizer, given.steps, given.seed)
    what = "--plain" if given.plain else f"--steps {given.steps}" + " --hybrid" * given.hybrid
    command = f"python tools/make_embedded_base.py {what} --seed {given.seed}"
    write_base(out, model, tokenizer, command, started)


def write_base(
    out: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    command: str,
    started: float,
) -> None:
    """The folder of the model, with how it was made."""
    shutil.rmtree(out, ignore_errors=True)
    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    packages = ("torch", "transformers", "tokenizers", "bitsandbytes")
    figures = {
        "command": command,
        **{package: version(package) for package in packages},
        "seconds": round(time.time() - started),
    }
    (out / "MEASURED.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

"""The sizes of a decoder-only model, from its config.json or by its name, and what follows from
them: parameters, 4-bit weights, LoRA, KV cache. No weights are needed."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from unslothrl.files import exists

EMBEDDED = "embedded"
HALF = 2  # bytes of a 16-bit number
NF4 = 1 / 2 + 1 / 64 + 4 / (64 * 256)  # a weight: 4 bits, its block's scale, and that one's scale
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # of a mixture, in config.json


@dataclass(frozen=True)
class Shape:
    """Sizes as config.json has them. `context` is None where it is not known."""

    layers: int
    hidden: int
    inner: int  # of the MLP
    heads: int
    kv_heads: int
    head: int  # size of one
    vocabulary: int
    tied: bool  # whether the output layer is the embedding
    biases: bool = False  # of q, k and v (Qwen2)
    head_norms: bool = False  # of q and k (Qwen3)
    context: int | None = None

    @property
    def query(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head

    @property
    def key(self) -> int:
        """Width of all keys of a token."""
        return self.kv_heads * self.head

    def linears(self) -> list[tuple[int, int]]:
        """(in, out) of a layer's q k v o gate up down: what is in 4 bits and gets a LoRA."""
        h, q, k, i = self.hidden, self.query, self.key, self.inner
        return [(h, q), (h, k), (h, k), (q, h), (h, i), (h, i), (i, h)]

    def linear_weights(self) -> int:
        return self.layers * sum(a * b for a, b in self.linears())

    def other_weights(self) -> int:
        """Embedding, output layer, norms and biases: what stays in 16 bits."""
        per_layer = 2 * self.hidden
        per_layer += self.query + 2 * self.key if self.biases else 0
        per_layer += 2 * self.head if self.head_norms else 0
        tables = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return tables + self.layers * per_layer + self.hidden

    def parameters(self) -> int:
        return self.linear_weights() + self.other_weights()

    def weight_bytes(self) -> float:
        """Of the base in NF4."""
        return self.linear_weights() * NF4 + self.other_weights() * HALF

    def lora_weights(self, rank: int) -> int:
        return self.layers * sum(a + b for a, b in self.linears()) * rank

    def kv_bytes(self, tokens: int) -> int:
        """Of the keys and values of so many tokens, in 16 bits."""
        return tokens * self.layers * 2 * self.key * HALF


def qwen25(layers, hidden, inner, heads, kv_heads, vocabulary, tied) -> Shape:
    head = hidden // heads
    return Shape(layers, hidden, inner, heads, kv_heads, head, vocabulary, tied, biases=True,
                 context=32_768)  # fmt: skip


def qwen3(layers, hidden, inner, heads, tied) -> Shape:
    return Shape(layers, hidden, inner, heads, 8, 128, 151_936, tied, head_norms=True,
                 context=40_960)  # fmt: skip


def llama3(layers, hidden, inner, heads, head, tied) -> Shape:
    return Shape(layers, hidden, inner, heads, 8, head, 128_256, tied, context=131_072)


KNOWN = {  # as their config.json say, by the name that is left of a repository's
    "qwen2.5-0.5b": qwen25(24, 896, 4864, 14, 2, 151_936, True),
    "qwen2.5-1.5b": qwen25(28, 1536, 8960, 12, 2, 151_936, True),
    "qwen2.5-3b": qwen25(36, 2048, 11_008, 16, 2, 151_936, True),
    "qwen2.5-7b": qwen25(28, 3584, 18_944, 28, 4, 152_064, False),
    "qwen2.5-14b": qwen25(48, 5120, 13_824, 40, 8, 152_064, False),
    "qwen2.5-32b": qwen25(64, 5120, 27_648, 40, 8, 152_064, False),
    "qwen2.5-72b": qwen25(80, 8192, 29_568, 64, 8, 152_064, False),
    "qwen3-0.6b": qwen3(28, 1024, 3072, 16, True),
    "qwen3-1.7b": qwen3(28, 2048, 6144, 16, True),
    "qwen3-4b": qwen3(36, 2560, 9728, 32, True),
    "qwen3-8b": qwen3(36, 4096, 12_288, 32, False),
    "qwen3-14b": qwen3(40, 5120, 17_408, 40, False),
    "llama-3.2-1b": llama3(16, 2048, 8192, 32, 64, True),
    "llama-3.2-3b": llama3(28, 3072, 8192, 24, 128, True),
    "llama-3.1-8b": llama3(32, 4096, 14_336, 32, 128, False),
}


def shape_of(model: str) -> Shape | None:
    """From a local folder's config.json; else a known model's by its name; else that of the
    Qwen2.5 nearest to the size in the name, without its context; else None."""
    folder = Path(os.path.expanduser(model))
    if model == EMBEDDED:
        from unslothrl.embedded import BASE as folder
    file = folder / "config.json"
    if exists(str(file)):
        try:
            return read(json.loads(file.read_text()))
        except (KeyError, TypeError, ValueError):
            return None  # a kind of model that this estimate does not know
    name = model.rsplit("/", 1)[-1].lower().replace("meta-", "")
    for known in sorted(KNOWN, key=len, reverse=True):
        if re.match(re.escape(known) + r"(?![\w.])", name):
            return KNOWN[known]
    found = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", name)
    if found is None:
        return None
    of_size = {float(key[8:-1]): KNOWN[key] for key in KNOWN if key.startswith("qwen2.5")}
    return replace(of_size[min(of_size, key=lambda b: abs(b - float(found[1])))], context=None)


def read(config: dict) -> Shape:
    """From what config.json holds. KeyError, TypeError or ValueError where it is of another kind of
    model, a mixture of experts included."""
    if any(config.get(name) for name in EXPERTS):
        raise ValueError("a mixture of experts")
    heads, kind = config["num_attention_heads"], config.get("model_type", "")
    return Shape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        inner=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings")),
        biases=kind == "qwen2" or bool(config.get("attention_bias")),
        head_norms=kind == "qwen3",
        context=config.get("max_position_embeddings"),
    )

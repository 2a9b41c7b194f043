"""The sizes of a decoder-only model, from its config.json or by its name, and what follows from
them: parameters, 4-bit weights, LoRA, KV cache. No weights are needed."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unslothrl.embedded import BASES
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_file, is_folder
from unslothrl.text import shown
from unslothrl.weights import base_parts

HALF = 2  # bytes of a 16-bit number
NF4 = 1 / 2 + 1 / 64 + 4 / (64 * 256)  # a weight: 4 bits, its block's scale, and the scale of that
NF4_EXPANDED = 1 / 2 + 4 / 64  # in vLLM, which keeps a block's scale in float32
# (model_executor/model_loader/bitsandbytes_loader.py:579, _dequantize_dq)
VOCABULARY_PADDING = 64  # in vLLM (model_executor/layers/vocab_parallel_embedding.py)
COUNTED = ("llama", "mistral", "qwen2", "qwen3")  # kinds whose layers are counted exactly
SHARED = (*COUNTED, "phi3", "gemma3_text")  # whose 4-bit weights Unsloth's vLLM and learner share
OTHER_FORMATS = "gguf|awq|gptq|fp8|exl2|exl3|mlx|int[48]|nvfp4|hqq|aqlm"  # in names
HUB_ID = re.compile(r"\w[\w-]*(\.[\w-]+)*/\w[\w-]*(\.[\w-]+)*", re.ASCII)
LARGEST = 1 << 32  # of a size
A_GUESS = "what its layers keep during an update is that of a Llama of the same size, a guess"
LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # of a mixture, in config.json


@dataclass(frozen=True)
class OwnLayers:
    """Of a model whose layers are not Llama's, as transformers builds it."""

    config: dict = field(compare=False)  # of its text model: `decoder.OF_A_SHAPE`
    linears: tuple[tuple[str, tuple[int, int]], ...]  # (path in the decoder, (in, out))
    others: int  # weights of all else
    keys: int  # bytes that a token keeps in layers that see everything
    window_keys: int  # and in those that see `window` tokens
    window: int
    state: int  # bytes that recurrent layers keep of a sequence, however long
    block: int  # tokens of a block of vLLM's cache

    def shard(self, cards: int) -> OwnLayers:
        """What each card keeps of a sequence where the heads are dealt to so many."""
        kept = {name: getattr(self, name) // cards for name in ("keys", "window_keys", "state")}
        return replace(self, **kept)


@dataclass(frozen=True)
class Shape:
    """Sizes as config.json has them. `context` is None where it is not known."""

    layers: int
    hidden: int
    inner: int  # of the MLP
    heads: int
    kv_heads: int
    head: int  # size of a head
    vocabulary: int
    tied: bool  # whether the output layer is the embedding
    biases: bool = False  # of q, k and v (Qwen2)
    head_norms: bool = False  # of q and k (Qwen3)
    context: int | None = None
    unquantised: int = 0  # weights of linear layers that the checkpoint keeps in 16 bits
    own: OwnLayers | None = None  # of another kind than `COUNTED`
    kind: str = ""  # model_type of the text model of such a kind

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers keep a state instead of keys and values."""
        return self.own is not None and self.own.state > 0

    @property
    def query(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head

    @property
    def key(self) -> int:
        """Width of all keys of a token."""
        return self.kv_heads * self.head

    def linears(self) -> dict[str, tuple[int, int]]:
        """(in, out) of every linear layer of the decoder, by its path in it: what is in 4 bits and
        gets a LoRA."""
        if self.own is not None:
            return dict(self.own.linears)
        h, q, k, i = self.hidden, self.query, self.key, self.inner
        sizes = [(h, q), (h, k), (h, k), (q, h), (h, i), (h, i), (i, h)]
        of_layer = list(zip(LINEARS, sizes, strict=True))
        return {f"layers.{at}.{name}": size for at in range(self.layers) for name, size in of_layer}

    def linear_weights(self) -> int:
        return sum(a * b for a, b in self.linears().values())

    def other_weights(self) -> int:
        """Embedding, output layer, norms and biases: what stays in 16 bits."""
        if self.own is not None:
            return self.own.others
        per_layer = 2 * self.hidden
        per_layer += self.query + 2 * self.key if self.biases else 0
        per_layer += 2 * self.head if self.head_norms else 0
        tables = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return tables + self.layers * per_layer + self.hidden

    def parameters(self) -> int:
        return self.linear_weights() + self.other_weights()

    def weight_bytes(self, of_quantised: float = NF4) -> float:
        """Of the base in 4 bits."""
        whole = self.other_weights() + self.unquantised
        return (self.linear_weights() - self.unquantised) * of_quantised + whole * HALF

    def layer_bytes(self) -> float:
        """Of a layer's packed weights and their scales."""
        kept = self.unquantised / self.layers
        return (self.linear_weights() / self.layers - kept) * NF4 + kept * HALF

    def table_bytes(self) -> int:
        """Of the embedding, and of an output layer of its own."""
        return self.vocabulary * self.hidden * HALF

    def part_bytes(self, ranks: int) -> float:
        """What each of so many learners keeps of a base that they share: see `sharding.shards`."""
        shared = self.layers * self.layer_bytes() + self.table_bytes() * (1 if self.tied else 2)
        return self.weight_bytes() - shared * (1 - 1 / ranks)

    def gathered_bytes(self) -> float:
        """What is whole at once of such a base: a layer, and the layer or table beside it."""
        return self.layer_bytes() + max(self.layer_bytes(), self.table_bytes())

    def engine_bytes(self) -> float:
        """Of the base in a vLLM."""
        return self.weight_bytes(NF4_EXPANDED)

    def lora_weights(self, rank: int) -> int:
        return sum(a + b for a, b in self.linears().values()) * rank

    def shard(self, cards: int) -> Shape:
        """What each card has of a vLLM that is split over so many: a part of the heads, of the
        MLP's width and of the vocabulary, which is padded to a multiple of 64. Heads of keys that
        are fewer than the cards are repeated on them. `lora_weights` then counts vLLM's slots: A is
        whole where the output is split, B where the input is (lora/layers/*_parallel_linear.py).
        """
        if cards == 1:
            return self
        return replace(
            self,
            heads=self.heads // cards,
            kv_heads=max(1, self.kv_heads // cards),
            inner=self.inner // cards,
            unquantised=self.unquantised // cards,
            vocabulary=-(-self.vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING // cards,
            own=self.own and self.own.shard(min(cards, self.kv_heads)),
        )

    def kv_bytes(self, tokens: int, sequences: int = 1) -> int:
        """Of the keys and values of so many tokens, in 16 bits, and of the states of sequences."""
        if self.own is None:
            return tokens * self.layers * 2 * self.key * HALF
        own, length = self.own, -(-tokens // sequences)
        if own.state:  # its pages are as large as a layer's state, which they hold too
            length = -(-length // own.block) * own.block
        of_windows = own.window_keys * min(length, own.window + own.block)
        return sequences * (own.keys * length + of_windows + own.state)


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
    "qwen3-32b": qwen3(64, 5120, 25_600, 64, False),
    "llama-3.2-1b": llama3(16, 2048, 8192, 32, 64, True),
    "llama-3.2-3b": llama3(28, 3072, 8192, 24, 128, True),
    "llama-3.1-8b": llama3(32, 4096, 14_336, 32, 128, False),
    "llama-3.1-70b": llama3(80, 8192, 28_672, 64, 128, False),
    "llama-3.3-70b": llama3(80, 8192, 28_672, 64, 128, False),
}
COUNTS = Path(__file__).with_name("counts.json")  # of other kinds, by tools/count_models.py


def shape_of(model: str) -> Shape | None:
    """None: not known. Raises UserError."""
    found = shape_or_reason(model)
    return found if isinstance(found, Shape) else None


def shape_or_reason(model: str) -> Shape | str:
    """From the config.json of a folder or of the hub's copy on this machine, by the name of a known
    model, or from the hub's config.json; else why it is not known, and what to do. UserError."""
    config = config_of(model)
    if config is not None:
        try:
            return read(config)
        except (TypeError, ValueError) as error:
            return f"its size is not known ({error}): give a dense decoder-only model"
    name = model.rsplit("/", 1)[-1].lower()
    if other := re.search(rf"(?<![a-z])({OTHER_FORMATS})(?![a-z])", name):
        return f"named for {other[1].upper()} weights: give a 16-bit or a bitsandbytes 4-bit model"
    if (known := by_name(model)) is not None:
        return known
    why = base_parts.config_from_hub(model)[1] if HUB_ID.fullmatch(model) else "no owner/name"
    advice = "check its name and your access (`hf auth login`), or give a folder with a config.json"
    return f"its sizes are not known ({why}): {advice}"


def config_of(model: str) -> dict | None:
    """What config.json of a folder, or of the hub's copy here, holds; that of a hub model whose
    sizes its name does not say is fetched. None without. UserError."""
    folder = BASES.get(model) or expanded(model)
    if is_folder(folder) and not is_file(folder / "config.json"):
        raise no_model(model)
    if not is_folder(folder):
        from huggingface_hub import try_to_load_from_cache

        is_id = is_hub_id(model)
        copy = try_to_load_from_cache(model, "config.json") if is_id else None
        if is_id and not isinstance(copy, str) and by_name(model) is None:
            copy, _ = base_parts.config_from_hub(model)
        if not isinstance(copy, str):
            return None
        folder = Path(copy).parent
    return base_parts.read(folder, "config.json")


def is_hub_id(model: str) -> bool:
    """Whether a model, or a data set, is the hub's: known to everybody by its name."""
    return model not in BASES and HUB_ID.fullmatch(model) is not None and not exists(model)


def not_shared(model: str, kind: str) -> UserError:
    return UserError(
        f"model {model}: Unsloth cannot share the weights of a {kind} with vLLM: leave a GPU to an "
        "actor, or share one with it (--number_of_actors 1 --learner_chunk_size 0), or set "
        "--backend peft"
    )


def no_model(folder: str) -> UserError:
    is_adapter = exists(os.path.join(folder, "adapter_config.json"))
    fix = f"set --adapter {folder}" if is_adapter else "give a model folder"
    return UserError(f"model {folder}: the folder has no config.json: {fix}")


def by_name(model: str) -> Shape | None:
    """Of a known model, whose name may go on: Qwen2.5-3B-Instruct, Llama-3.1-8B-bnb-4bit."""
    name = model.rsplit("/", 1)[-1].lower().replace("meta-", "")
    special = re.match(r"qwen2\.5-(math|coder)-", name)  # of the same sizes
    if special:
        name = name.replace(special[0], "qwen2.5-", 1)
    others = json.loads(COUNTS.read_text())
    for known in sorted((*KNOWN, *others), key=len, reverse=True):
        if re.match(re.escape(known) + r"(?![\w.])", name):
            if known in others:
                return of_counted(others[known])
            shape = KNOWN[known]
            if special and special[1] == "math":
                return replace(shape, context=4096)
            if known.startswith("qwen3") and re.search(r"-base(?!\w)", name):
                return replace(shape, context=32_768)
            return shape
    return None


def read(config: dict) -> Shape:
    """From what config.json holds. TypeError or ValueError for another kind of model."""
    if any(config.get(name) for name in EXPERTS):
        raise ValueError("a mixture of experts")
    if config.get("kv_lora_rank"):
        raise ValueError("latent attention")
    quantised = config.get("quantization_config") or {}
    if not isinstance(quantised, dict):
        raise ValueError("its quantization_config is no object")
    method = quantised.get("quant_method", "bitsandbytes")
    if method != "bitsandbytes":
        raise ValueError(f"quantised by {method}")
    kind = config.get("model_type", "")
    if "text_config" in config and not kind:
        raise ValueError("its config.json has no model_type")
    is_counted = kind in ("", *COUNTED) and "text_config" not in config
    shape = sizes_in(config) if is_counted else of_counted(by_transformers(json.dumps(config)))
    return replace(shape, unquantised=unquantised(shape, quantised))


def of_counted(found: dict[str, Any]) -> Shape:
    """Of what `decoder.count` says."""
    linears = tuple(
        (path.format(layer), (into, out))
        for path, into, out, layers in found["linears"]
        for layer in layers
    )
    return sizes_in(found["config"], OwnLayers(**{**found, "linears": linears}))


def sizes_in(config: dict, own: OwnLayers | None = None) -> Shape:
    """Without what is not quantised. ValueError."""
    kind, heads = config.get("model_type", ""), size(config, "num_attention_heads")
    return Shape(
        layers=size(config, "num_hidden_layers"),
        hidden=size(config, "hidden_size"),
        inner=size(config, "intermediate_size"),
        heads=heads,
        kv_heads=size(config, "num_key_value_heads", heads),
        head=size(config, "head_dim", size(config, "hidden_size") // heads or None),
        vocabulary=size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings")),
        biases=kind == "qwen2" or bool(config.get("attention_bias")),
        head_norms=kind == "qwen3",
        context=size(config, "max_position_embeddings", 0) or None,
        own=own,
        kind="" if own is None else kind,
    )


@functools.cache
def by_transformers(config: str) -> dict[str, Any]:
    """What `decoder.count` says of what config.json holds, in a process of its own: here Unsloth
    may have to be imported before it, and it takes seconds. ValueError for a kind that cannot be
    trained, or that transformers does not know."""
    done = subprocess.run(
        [sys.executable, "-m", "unslothrl.weights.decoder", config],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or ["its kind is not known"])[-1])
    return json.loads(done.stdout)


def unquantised(shape: Shape, settings: dict) -> int:
    """Weights of linear layers that `llm_int8_skip_modules` leaves as they are (transformers)."""
    kept = tuple(map(str, settings.get("llm_int8_skip_modules") or ()))
    return sum(
        a * b
        for name, (a, b) in shape.linears().items()
        if (full := f"model.{name}").startswith(kept) or full.endswith(kept)
    )


def size(config: dict, name: str, default: int | None = None) -> int:
    """A positive whole number; `default` where there is none. ValueError."""
    if config.get(name) is None and default is not None:
        return default
    if name not in config:
        raise ValueError(f"its config.json has no {name}")
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise ValueError(f"{name} is {shown(value)}")
    return value

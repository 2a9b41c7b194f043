"""What Unsloth makes of our options on cards of several sizes, in a process of its own.

    python tests/unsloth_on_cards.py {generates,trains} OUT.json

The sizes are made up; what chooses memory and sequences is Unsloth's own code, up to the arguments
of the vLLM that it would start.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

GB = 2**30
CARDS = (8, 12, 16, 24, 80)
SHARE = {8: 0.7, 12: 0.6, 16: 0.6, 24: 0.5, 80: 0.35}
SHAPES = {8: (1536, 28, 8960, 12, 2), 0: (3584, 28, 18944, 28, 4)}  # Qwen2.5 1.5B on 8 GB, else 7B
BUSY_GB = 0.6  # CUDA's context and a desktop
WATCHED = (
    "PYTORCH_ALLOC_CONF",
    "UNSLOTH_VLLM_STANDBY",
    "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE",
    "UNSLOTH_VLLM_FP32_LM_HEAD",
    "VLLM_LOGGING_LEVEL",
    "VLLM_USE_FLASHINFER_SAMPLER",
)


def put_card(gigabytes: float) -> None:
    import torch

    total = int(gigabytes * GB)
    torch.cuda.mem_get_info = lambda *device: (total - int(BUSY_GB * GB), total)
    torch.cuda.get_device_capability = lambda *device: (8, 9)


def arguments(card: int, share: float, **options) -> dict:
    """Of Unsloth's vLLM on a card of that size."""
    import torch
    from transformers import Qwen2Config
    from unsloth_zoo import vllm_utils

    put_card(card)
    hidden, layers, inner, heads, kv_heads = SHAPES[8 if card == 8 else 0]
    config = Qwen2Config(
        vocab_size=151_936, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=32_768,
        tie_word_embeddings=card == 8,
    )  # fmt: skip
    passed = options or ours().engine_options(share_of(card, share), 256, rank=32)
    passed.pop("fast_inference", None)
    found = vllm_utils.load_vllm(
        "base", config, max_seq_length=1550, dtype=torch.bfloat16, return_args=True, **passed
    )
    kept = ("gpu_memory_utilization", "max_num_seqs", "max_model_len", "enable_sleep_mode")
    return {name: found[name] for name in kept}


def share_of(card: int, asked: float) -> float:
    """What --learner_gpu_usage becomes on that card."""
    from unslothrl.planning.footprint import EngineLimits, usable_share
    from unslothrl.system.machine import Gpu

    free = int((card - BUSY_GB) * 1024)
    gpu = Gpu("card", card * 1024, free, (8, 9)).limited()
    return EngineLimits(asked).on(gpu, usable_share(gpu), free).utilisation


def ours():
    from unslothrl.backends import unsloth

    return unsloth


def limited(card: int, limit: int) -> dict:
    os.environ["UNSLOTHRL_CARD_MB"] = str(limit * 1024)
    try:
        return arguments(card, 0.5)
    finally:
        del os.environ["UNSLOTHRL_CARD_MB"]


def unsloths_own(share: float) -> dict:
    """Without our variables and with a number of sequences that means "choose"."""
    name = "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE"
    before = os.environ.pop(name)
    try:
        return arguments(24, 0, gpu_memory_utilization=share, max_num_seqs=256, max_lora_rank=32)
    finally:
        os.environ[name] = before


def flashinfer_with_a_compiler() -> dict:
    """What Unsloth sets where nvcc, ninja and FlashInfer are all found."""
    import shutil

    from unsloth_zoo import vllm_utils

    found, which, real = {}, shutil.which, vllm_utils.importlib.util.find_spec
    vllm_utils.shutil.which = lambda name: f"/usr/bin/{name}"
    vllm_utils._can_link_libcuda = lambda: True
    vllm_utils.importlib.util.find_spec = lambda n, *a: n == "flashinfer" or real(n, *a)
    for said in ("1", "0"):
        os.environ["UNSLOTH_VLLM_NO_FLASHINFER"] = said
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        arguments(24, 0.5)
        found[said] = os.environ["VLLM_USE_FLASHINFER_SAMPLER"]
    vllm_utils.shutil.which, vllm_utils.importlib.util.find_spec = which, real
    return found


def device_with_the_embedding_on_the_host() -> list[str]:
    """-> devices by the first parameter, and by `model.device`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from unsloth.models.vision import _pin_device_to_decoder

    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
    model.to("meta")
    model.model.embed_tokens = torch.nn.Embedding(32, 16)
    _pin_device_to_decoder(model)
    return [next(model.parameters()).device.type, model.device.type]


def engine_facts() -> dict:
    from unsloth_zoo import vllm_utils

    levels = [os.environ["VLLM_LOGGING_LEVEL"]]
    with ours().kept("VLLM_LOGGING_LEVEL"):
        vllm_utils.patch_vllm()  # as `from_pretrained` does for an engine
        levels.append(os.environ["VLLM_LOGGING_LEVEL"])
    return {
        "cards": {card: arguments(card, SHARE[card]) for card in CARDS},
        "limited": limited(80, 16),
        "too much": arguments(24, 1.0),
        "unsloth's own": unsloths_own(0.5),
        "levels": [*levels, os.environ["VLLM_LOGGING_LEVEL"]],
        "head": vllm_utils._vllm_fp32_lm_head_overrides(training=True),
        "head set late": vllm_utils._warn_fp32_lm_head_set_late(),
        "flashinfer": flashinfer_with_a_compiler(),
    }


def main(kind: str, out: str) -> None:
    os.environ.update(UNSLOTH_ALLOW_CPU="1", UNSLOTH_COMPILE_DISABLE="1", HF_HUB_OFFLINE="1")
    import unslothrl.runs.rl  # all that a run imports before it knows its backend
    from unslothrl import cluster
    from unslothrl.config.options import Config

    early = sorted({"transformers", "peft", "trl", "vllm"} & sys.modules.keys())
    from unsloth_on_cpu import hide_the_extension_for_avx512, pretend_there_is_a_card

    hide_the_extension_for_avx512()
    pretend_there_is_a_card()
    actors = {"generates": 0, "trains": 1}[kind]
    config = replace(
        Config(), cluster="local", backend="unsloth", engine="vllm", number_of_actors=actors,
        learner_chunk_size=0,
    )  # fmt: skip
    cluster.import_first(config)
    facts = {
        "imported before Unsloth": early,
        "imported": "unsloth" in sys.modules and unslothrl.runs.rl is not None,
        "variables": {name: os.environ.get(name) for name in WATCHED},
        "devices": device_with_the_embedding_on_the_host(),
    }
    if kind == "generates":
        facts |= engine_facts()
    Path(out).write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])

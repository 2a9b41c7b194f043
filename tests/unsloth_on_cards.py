"""What Unsloth makes of our options on a card, in a process of its own.

    python tests/unsloth_on_cards.py {generates,trains} OUT.json

The card is made up; what chooses memory and sequences is Unsloth's own code, up to the arguments
of the vLLM that it would start.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

WATCHED = (
    "PYTORCH_ALLOC_CONF",
    "UNSLOTH_VLLM_STANDBY",
    "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE",
    "UNSLOTH_VLLM_FP32_LM_HEAD",
    "VLLM_LOGGING_LEVEL",
    "UNSLOTH_VLLM_NO_FLASHINFER",
    "VLLM_USE_FLASHINFER_SAMPLER",
)


def arguments(card: int, share: float) -> dict:
    """Of Unsloth's vLLM on a card of so many GB, for this --learner_gpu_usage and Qwen2.5 7B."""
    import layouts
    import torch
    from transformers import Qwen2Config
    from unsloth_zoo import vllm_utils

    from unslothrl.backends import unsloth
    from unslothrl.planning.footprint import EngineLimits, usable_share
    from unslothrl.weights.shapes import KNOWN

    gpu = layouts.card(card, used_mb=600).limited()  # CUDA's context and a desktop
    torch.cuda.mem_get_info = lambda *device: (gpu.free_mb << 20, gpu.memory_mb << 20)
    torch.cuda.get_device_capability = lambda *device: (8, 9)
    engine = EngineLimits(share).on(gpu, usable_share(gpu), gpu.free_mb)
    passed = unsloth.engine_options(engine.utilisation, 256, rank=32)
    del passed["fast_inference"]
    config = Qwen2Config(**layouts.sizes_of(KNOWN["qwen2.5-7b"]))
    found = vllm_utils.load_vllm(
        "base", config, max_seq_length=1550, dtype=torch.bfloat16, return_args=True, **passed
    )
    kept = ("gpu_memory_utilization", "max_num_seqs", "max_model_len", "enable_sleep_mode")
    return {name: found[name] for name in kept}


def engine_facts() -> dict:
    from unsloth_zoo import vllm_utils

    from unslothrl.backends import unsloth

    levels = [os.environ["VLLM_LOGGING_LEVEL"]]
    with unsloth.kept("VLLM_LOGGING_LEVEL"):
        vllm_utils.patch_vllm()  # as `from_pretrained` does for an engine
        levels.append(os.environ["VLLM_LOGGING_LEVEL"])
    return {
        "arguments": arguments(24, 0.5),
        "too much": arguments(24, 1.0),
        "levels": [*levels, os.environ["VLLM_LOGGING_LEVEL"]],
        "head": vllm_utils._vllm_fp32_lm_head_overrides(training=True),
        "head set late": vllm_utils._warn_fp32_lm_head_set_late(),
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
    }
    if kind == "generates":
        facts |= engine_facts()
    Path(out).write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])

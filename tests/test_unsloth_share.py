"""What Unsloth makes of the share that the learner's engine is given, by its own arithmetic.

`make unsloth-test` runs this. The functions are cut out of unsloth_zoo/vllm_utils.py, whose import
needs a card, and asked about the cards of layouts.py.
"""

import ast
import importlib.util
import os
import types
from pathlib import Path

import pytest
import torch
from layouts import LAYOUTS, card, machine_of, placed, resolved, sizes_of
from transformers import LlamaConfig

from unslothrl.config.parts import vllm_rank
from unslothrl.planning.footprint import ON_A_CARD
from unslothrl.runs.resolve import resolve
from unslothrl.weights import shapes

pytestmark = pytest.mark.slow

NEEDED = ("_config_get", "_kv_cache_elements_per_token", "_kv_cache_tokens",
          "approximate_vllm_memory_usage", "vllm_weights_memory_usage",
          "_fit_max_seq_length_to_kv_cache")  # fmt: skip
LONG = {
    "24 GB, the longest": ((card(24),), {"model": "Qwen/Qwen2.5-7B", "fit": "largest"}),
    "80 GB, the longest": ((card(80),), {"model": "meta-llama/Llama-3.1-8B", "fit": "largest"}),
    "8 GB, the longest": ((card(8),), {"model": "Qwen/Qwen2.5-1.5B", "fit": "largest"}),
    "16 GB, one sequence": ((card(16),), {"model": "Qwen/Qwen2.5-7B", "max_num_seqs": "1"}),
    "54 GB, 20,000 tokens": (
        (card(80),),
        {"model": "meta-llama/Llama-3.1-8B", "max_new_tokens": "20000", "max_num_seqs": "2",
         "train_batch_size": "1"},
    ),
}  # fmt: skip
QUANTISED = {"quant_method": "bitsandbytes", "load_in_4bit": True}
ALONE = [name for name in LAYOUTS if "peft" not in name and "draws all" not in name]


@pytest.fixture(scope="module")
def unsloth():
    """Unsloth's functions on a card whose free and whole memory are in `card_mb`."""
    package = importlib.util.find_spec("unsloth_zoo").submodule_search_locations[0]
    site = Path(package) / "vllm_utils.py"
    tree = ast.parse(site.read_text())
    cut = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in NEEDED]
    found = types.SimpleNamespace(card_mb=(0.0, 0.0))
    names = {"get_mem_info": lambda: tuple(mb * 2**20 for mb in found.card_mb)}
    names |= {"os": os, "torch": torch}
    exec(compile(ast.Module(cut, []), str(site), "exec"), names)

    def approximate(config, **options):
        """As load_vllm calls it."""
        weights = names["vllm_weights_memory_usage"](config, load_in_4bit=True, load_in_8bit=False)
        return names["approximate_vllm_memory_usage"](
            config, load_in_4bit=True, weight_bytes=weights, **options
        )

    found.approximate = approximate
    found.context = names["_fit_max_seq_length_to_kv_cache"]
    return found


def given(name: str):
    if name in LAYOUTS:
        return resolved(name)
    found, flags = LONG[name]
    return resolve(flags, machine_of(found)).config, machine_of(found)


@pytest.mark.parametrize("name", [*ALONE, *LONG])
def test_the_engine_keeps_its_share_and_the_runs_context(name, unsloth):
    config, machine = given(name)
    shape = shapes.shape_of(config.model)
    for learner in placed(config, machine).learners:
        gpu = learner.gpu
        free = gpu.physical_mb - (gpu.memory_mb - gpu.free_mb) - ON_A_CARD["context"]
        engine = learner.engine(gpu, free)
        if engine is None:
            continue
        share = engine.utilisation
        unsloth.card_mb = (free, gpu.physical_mb)
        tokens, _, utilisation, _ = unsloth.approximate(
            LlamaConfig(**sizes_of(shape), quantization_config=QUANTISED),
            max_seq_length=config.context,
            gpu_memory_utilization=min(1.0, share * gpu.physical_mb / free),
            max_lora_rank=vllm_rank(config.max_lora_rank),
        )
        assert utilisation == pytest.approx(share, abs=1e-6)
        assert unsloth.context(config.context, tokens) == config.context

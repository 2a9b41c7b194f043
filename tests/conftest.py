"""Shared real parts: small bases of both kinds, one vLLM engine for the whole session."""

import os

from unslothrl import variables

variables.apply(cpus=len(os.sched_getaffinity(0)), gpu=False)
os.environ["HF_HUB_OFFLINE"] = "1"

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unslothrl.types import LORA_TARGETS

SMALL = {
    "vocab_size": 320,  # the embedded tokenizer's 263 and room for what libraries add
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Quantised bases of the tests go into a folder of their own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def sixteen_bit_bases(tmp_path_factory) -> dict[str, Path]:
    """Random 16-bit bases by kind: Qwen2 has biases in its attention, Llama has none."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from unslothrl import embedded
    from unslothrl.weights import base_model

    tokenizer = base_model.load_tokenizer(embedded.BASE)
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    folders = {}
    for kind, config, build in (
        ("biases", Qwen2Config, Qwen2ForCausalLM),
        ("plain", LlamaConfig, LlamaForCausalLM),
    ):
        torch.manual_seed(1)
        model = build(config(**SMALL, **special)).to(torch.bfloat16)
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                torch.nn.init.normal_(parameter, std=0.1)
            elif ".q_proj." in name or ".k_proj." in name:
                # Fresh attention is all but uniform, and its gradients are rounding noise.
                torch.nn.init.normal_(parameter, std=0.1)
        with torch.no_grad():
            model.lm_head.weight.mul_(5)  # a fresh one is too flat for a LoRA to favour any token
        folders[kind] = tmp_path_factory.mktemp(f"base-{kind}")
        model.save_pretrained(folders[kind])
        tokenizer.save_pretrained(folders[kind])
    return folders


@pytest.fixture(scope="session")
def bases(sixteen_bit_bases, cache) -> dict[str, Path]:
    """The same bases in NF4."""
    from unslothrl.weights import base_model

    with ThreadPoolExecutor() as pool:  # each in a process of its own
        made = pool.map(base_model.quantise, sixteen_bit_bases.values())
        return dict(zip(sixteen_bit_bases, made, strict=True))


@pytest.fixture(scope="session")
def make_backend():
    """-> a function that builds a PEFT backend whose LoRA is not zero."""

    def make(
        base: Path,
        dtype: str = "bfloat16",
        seed: int = 0,
        trained: bool = True,
        start=None,
        packs: bool = True,
    ):
        import torch

        from unslothrl.backends.peft import PeftBackend

        backend = PeftBackend(
            base,
            dtype=getattr(torch, dtype),
            rank=8,
            alpha=16,
            dropout=0.0,
            seed=seed,
            start=start,
            packs=packs,
        )
        if trained:
            torch.manual_seed(seed + 1)
            for name, parameter in backend.parameters().items():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.05)
        return backend

    return make


@pytest.fixture(scope="session")
def vllm_engine(bases):
    """The one vLLM of the session, over the base with biases."""
    from unslothrl.engines import vllm
    from unslothrl.planning.engine_memory import EngineMemory

    engine = vllm.start(
        bases["biases"],
        dtype="bfloat16",
        context=256,
        rank=8,
        max_num_seqs=64,
        seed=0,
        memory=EngineMemory(64),
        float32_head=True,
    )
    yield engine
    engine.close()


def targets_by_layer(names) -> set[tuple[int, str]]:
    """(layer, target) of every LoRA parameter name."""
    return {
        (next(int(p) for p in name.split(".") if p.isdigit()), target)
        for name in names
        for target in LORA_TARGETS
        if f".{target}." in name
    }

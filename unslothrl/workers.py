"""Builds an actor or a learner inside the process that will run it.

torch, vLLM and Unsloth are imported here and below, never before: Unsloth must be the first of
its kind in a process, and a process that trains needs no vLLM.
"""

from pathlib import Path

from unslothrl.base_model import load_tokenizer
from unslothrl.config import Config
from unslothrl.fit import EMBEDDED, MAX_NUM_SEQS


def build_actor(config: Config, base: Path, index: int):
    """-> an `Actor` with an engine, and on it a 4-bit base, of its own."""
    from unslothrl.actor import Actor
    from unslothrl.engines.base import Engine

    engine: Engine
    seqs = config.max_num_seqs or MAX_NUM_SEQS
    if config.engine == "vllm":
        from unslothrl.engines.vllm import VllmEngine

        engine = VllmEngine(
            base,
            dtype=dtype_name(config),
            context=config.max_prompt_tokens + config.max_new_tokens,
            rank=lora_rank(config),
            max_num_seqs=seqs,
            seed=config.seed,
            kv_cache_mb=config.kv_cache_mb,
            memory_share=config.actor_gpu_usage,
        )
    else:
        from unslothrl.engines.transformers import TransformersEngine

        engine = TransformersEngine(peft_backend(config, base), base, max_num_seqs=seqs, own=True)
    return Actor(f"actor-{index}", engine, load_tokenizer(base))


def build_learner(config: Config, base: Path, index: int):
    """-> a `Learner` whose engine shares its weights."""
    if config.backend == "unsloth":
        from unslothrl.backends.unsloth import UnslothBackend  # first: it patches what follows
        from unslothrl.engines.unsloth import UnslothEngine

        backend = UnslothBackend.from_config(config, base)
        engine = UnslothEngine(backend, base)
    else:
        from unslothrl.engines.transformers import TransformersEngine

        backend = peft_backend(config, base)
        engine = TransformersEngine(
            backend, base, max_num_seqs=config.max_num_seqs or MAX_NUM_SEQS, own=False
        )
    from unslothrl.actor import Actor
    from unslothrl.algorithms import OBJECTIVES
    from unslothrl.learner import Learner

    return Learner(
        backend,
        OBJECTIVES[config.learner],
        Actor(f"learner-{index}", engine, load_tokenizer(base)),
        lr=config.lr,
        micro_batch=config.train_batch_size,
        temperature=config.temperature,
        max_grad_norm=config.max_grad_norm,
    )


def peft_backend(config: Config, base: Path):
    import torch

    from unslothrl.backends.peft import PeftBackend

    return PeftBackend(
        base,
        dtype=getattr(torch, dtype_name(config)),
        rank=config.max_lora_rank,
        alpha=config.lora_alpha,
        dropout=config.lora_dropout,
        seed=config.seed,
        start=Path(config.adapter) if config.adapter else None,
        name=base_name(config, base),
    )


def base_name(config: Config, base: Path) -> str:
    """What a published adapter calls its base: the hub's id, so that it can be used elsewhere."""
    is_hub_id = config.model != EMBEDDED and not Path(config.model).expanduser().exists()
    return config.model if is_hub_id else str(base)


def lora_rank(config: Config) -> int:
    """The rank in use: the starting adapter's, if there is one."""
    if not config.adapter:
        return config.max_lora_rank
    import json

    return json.loads((Path(config.adapter) / "adapter_config.json").read_text())["r"]


def dtype_name(config: Config) -> str:
    """What the base computes in: bfloat16 where the hardware has it."""
    if config.dtype != "auto":
        return config.dtype
    import torch

    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 8:
        return "float16"
    return "bfloat16"

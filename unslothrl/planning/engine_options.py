"""The options of the engines that were not given: a KV cache beside a learner, the learner's share.

Both follow from the model's sizes, from the lengths, and from who is on the card.
"""

import math
from collections.abc import Set
from dataclasses import replace

from unslothrl.config.hardware import vllm_rank
from unslothrl.config.options import Config
from unslothrl.planning import memory
from unslothrl.planning.engine_memory import EngineLimits, usable_mb, usable_share
from unslothrl.planning.machine import Gpu
from unslothrl.planning.memory import KEPT_FREE, MB
from unslothrl.planning.place import cards_of
from unslothrl.planning.placement import Resources
from unslothrl.planning.shapes import HALF, Shape

MOST_SHARE = 0.9  # of a card for the learner's engine


def with_engines(config: Config, given: Set[str], shape: Shape, resources: Resources) -> Config:
    """The config with what its vLLMs may take of their cards where that was not given: an actor's
    KV cache beside a learner, and the share of a learner's engine, on the smallest card that a
    learner gets."""
    cards, _ = cards_of(config, resources)
    gpus = [resources.gpus[card] for own in cards for card in own]
    known = [gpu for gpu in gpus if gpu is not None]
    if not known:
        return config
    gpu = min(known, key=usable_mb)
    beside = config.number_of_actors if len(resources.gpus) == 1 else 0
    if beside and config.engine == "vllm" and "kv_cache_mb" not in given:
        config = replace(config, kv_cache_mb=math.ceil(memory.whole_cache(config, shape)))
    if not config.learner_has_engine or "learner_gpu_usage" in given:
        return config
    room = usable_mb(gpu) - beside_engine(config, shape, gpu, beside)
    prefill = memory.unsloth_prefill(room - shape.engine_bytes() / MB)
    fixed = sum(memory.engine_parts(config, shape, prefill).values())
    enough = unsloth_least(config, shape)
    least = max(fixed + memory.least_cache(config, shape), enough) / gpu.memory_mb
    most = min(max(fixed + memory.whole_cache(config, shape), enough), room) / gpu.memory_mb
    if config.number_of_actors and least <= config.learner_gpu_usage <= most:
        return config
    share = max(math.ceil(1000 * least), math.floor(1000 * min(most, MOST_SHARE))) / 1000
    return replace(config, learner_gpu_usage=min(1.0, share))


def unsloth_least(config: Config, shape: Shape) -> float:
    """MB of the share below which Unsloth gives its engine less than the run's context, by its own
    estimate: 5 bits a weight, 172 CUDA graphs, 5% of the KV cache lost
    (unsloth_zoo/vllm_utils.py:2422)."""
    weights = shape.linear_weights() * 5 / 8 + shape.other_weights() * HALF
    graphs = min(max(172 * shape.hidden * shape.layers * 4 / MB, 154), 1024)
    cache = shape.kv_bytes(config.context + 256) / 0.95
    return (
        weights + shape.lora_weights(vllm_rank(config.max_lora_rank)) * HALF + cache
    ) / MB + graphs


def beside_engine(config: Config, shape: Shape, gpu: Gpu, actors: int) -> float:
    """MB on a learner's card while it draws, besides its engine's share: the learner's own and
    that of so many actors on the same card."""
    engine = EngineLimits(config.learner_gpu_usage).on(gpu, usable_share(gpu))
    parts = memory.learner(config, shape, gpu, engine).generating
    names = ("adapter and optimiser", "CUDA context", "CUDA graphs", KEPT_FREE)
    own = sum(parts.get(name, 0) for name in names)
    if not actors:
        return own
    limits = EngineLimits(config.actor_gpu_usage, config.kv_cache_mb)
    actor = memory.actor(config, shape, gpu, limits.on(gpu, usable_share(gpu)), is_beside=True)
    return own + actors * actor.generating_mb()

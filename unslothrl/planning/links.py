"""What learners that divide the work of one exchange in a step, and how long a link takes for it.

    learner_shards           each unit of the base gathered for forward, recompute and backward
    context_parallel         queries, keys, values and outputs of attention, to all ranks
    learner_tensor_parallel  two all-reduces of the hidden states a layer, and of their gradients
    pipeline_stages          hidden states to the next stage, gradients back

Bytes are those that one learner receives, of a micro-batch that is computed with recompute on a
GPU; none of it overlaps. Seconds are what is reached of a link, from data sheets: not measured yet.
"""

from typing import Any

from unslothrl.config.options import SPLITS, Config
from unslothrl.weights.shapes import HALF, Shape

LINKS = {  # GB/s that one GPU receives
    "NVLink": 200.0,
    "PCIe 5 x16": 40.0,
    "PCIe 4 x16": 20.0,
    "PCIe 3 x16": 10.0,
    "25 GbE": 2.8,
    "10 GbE": 1.1,
    "1 GbE": 0.11,
}
USUAL = LINKS["PCIe 4 x16"] * 1e9  # bytes/s between the GPUs of one machine


def shards_bytes(shape: Shape, ranks: int, micro_batches: int) -> float:
    """Of an update: forward all units but the first two, backward all but the last two, which are
    still there; the embedding is fetched again for what comes next. Once also the first two, and
    a forward pass of the reference, for the metrics."""
    units = shape.layers * shape.layer_bytes() + 2 * shape.table_bytes()
    first = shape.table_bytes() + shape.layer_bytes()
    passes = 2 * micro_batches + 1
    return (first + passes * (units - first)) * (ranks - 1) / ranks


def step_bytes(config: Config, shape: Shape) -> float:
    """That a learner receives in an update, its gradients' sum left out."""
    parts = config.number_of_learners // config.learners_per_part
    sequences = -(-config.batch_size * min(config.topk, config.num_candidates) // parts)
    micro_batches = -(-sequences // config.train_batch_size)
    tokens = config.train_batch_size * config.context
    hidden, each = tokens * shape.hidden * HALF, 0.0  # of a micro-batch
    if (ranks := config.context_parallel) > 1:  # into attention and out of it, in three passes
        keys = max(shape.key, shape.head * ranks)  # repeated where there are fewer than ranks
        width = 2 * shape.query + 2 * keys
        each += 3 * shape.layers * tokens / ranks * width * HALF * (ranks - 1) / ranks
    if (ranks := config.learner_tensor_parallel) > 1:  # a ring moves twice what it sums
        each += 6 * shape.layers * hidden * 2 * (ranks - 1) / ranks
    if config.pipeline_stages > 1:  # of a stage between two others
        each += 2 * hidden
    total = each * micro_batches
    if config.learner_shards > 1:
        total += shards_bytes(shape, config.learner_shards, micro_batches)
    return total


def report(config: Config, shape: Shape) -> dict[str, Any]:
    """For `plan`; empty where each learner does its work by itself."""
    if config.learners_together == 1:
        return {}
    received = step_bytes(config, shape)
    ways = {name: getattr(config, name) for name in SPLITS if getattr(config, name) > 1}
    seconds = {link: round(received / (gb * 1e9), 1) for link, gb in LINKS.items()}
    return {**ways, "received_gb": round(received / 1e9, 2), "seconds_by_link": seconds}

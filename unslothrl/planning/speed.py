"""How long a step takes on cards, from what cards of their size move and compute: an estimate in a
range, which no card has measured yet.

    generating   tokens of the longest completion x rounds x (max(bytes / bandwidth, 2 P n / speed)
                 + what an engine adds), n sequences at once; rounds = completions / n
    updating     8 P tokens / speed: forward, forward again, backward, and the log-probabilities

P is the model's parameters, bytes are those of its 4-bit weights and half of a full KV cache. The
low figure has completions of a quarter of their limit and the fastest card of the size; the high
one completions of full length and the slowest.
"""

from dataclasses import dataclass

from unslothrl.config.options import Config
from unslothrl.planning.placement import Placement
from unslothrl.planning.shapes import Shape

REACHED = 0.5  # of a card's bandwidth and speed on paper
SHORT = 0.25  # of max_new_tokens
ENGINE_S = {"vllm": (0.004, 0.02), "transformers": (0.03, 0.1)}  # added to each token, low and high
FLOPS = 8  # of an update, for each parameter and token


@dataclass(frozen=True)
class Cards:
    """What cards of a size have on paper: the slowest and the fastest in use."""

    gb: float  # at most
    bandwidth: tuple[float, float]  # GB/s
    tflops: tuple[float, float]  # of 16-bit numbers


SIZES = (  # from the makers' data sheets
    Cards(8.5, (224, 448), (20, 60)),  # RTX 3050 to 3070
    Cards(12.5, (360, 504), (25, 60)),  # RTX 3060 to 4070
    Cards(17, (288, 736), (30, 100)),  # RTX 4060 Ti and T4 to 4080
    Cards(26, (300, 1008), (60, 165)),  # L4 and RTX 3090 to 4090
    Cards(50, (696, 960), (125, 360)),  # A40 to L40S
    Cards(float("inf"), (1555, 4800), (312, 989)),  # A100 to H200
)


def step_seconds(config: Config, shape: Shape, placement: Placement) -> tuple[float, float] | None:
    """-> (low, high) of a step on the placement's slowest card; None without a card."""
    if not placement.cards:
        return None
    gb = min(card.gpu.physical_mb for card in placement.cards) / 1024
    cards = next(size for size in SIZES if gb <= size.gb)
    low, high = (
        one(config, shape, bandwidth * 1e9, tflops * 1e12, engine_s, share)
        for bandwidth, tflops, engine_s, share in (
            (cards.bandwidth[1], cards.tflops[1], ENGINE_S[config.engine][0], SHORT),
            (cards.bandwidth[0], cards.tflops[0], ENGINE_S[config.engine][1], 1.0),
        )
    )
    return low, high


def one(
    config: Config, shape: Shape, bandwidth: float, flops: float, engine_s: float, share: float
) -> float:
    """Seconds of generating and updating, one after the other."""
    length = share * config.max_new_tokens
    parameters = shape.parameters()
    learners = config.number_of_learners
    generators = config.number_of_actors + (learners if config.learner_generates else 0)
    completions = -(-config.completions_per_step // generators)
    at_once = min(config.sequences_at_once, completions)
    rounds = -(-completions // at_once)
    cached = shape.kv_bytes(at_once * round(config.max_prompt_tokens + length)) / 2
    moving = (shape.engine_bytes() + cached) / (REACHED * bandwidth)
    computing = 2 * parameters * at_once / (REACHED * flops)
    generating = rounds * length * (max(moving, computing) + engine_s)
    trained = (
        config.batch_size * min(config.topk, config.num_candidates) * config.epochs_per_rollout
    )
    tokens = trained * (config.max_prompt_tokens * share + length) / learners
    return generating + FLOPS * parameters * tokens / (REACHED * flops)

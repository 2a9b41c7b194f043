"""How long a step takes on cards, from what cards of their size move and compute: an estimate in a
range, which no card has measured yet.

    generating   tokens of the longest completion x rounds x (max(bytes / bandwidth, 2 P n / speed)
                 + what an engine adds), n sequences at once; rounds = completions / n
    judging      2 P tokens / speed, where a reward is a reward model: a forward over completions
    updating     8 P tokens / speed: forward, forward again, backward, and the log-probabilities

P is the model's parameters, bytes are those of its 4-bit weights and half of a full KV cache. The
low figure has completions of a quarter of their limit and the fastest card of the size; the high
one completions of full length and the slowest.

Of episodes with an environment, whose length is that of all turns and observations, the low figure
has one turn. The high one has all that there may be, and adds to each round

    (turns - 1) x 2 P n (prompt + length / 2) / speed    what came before a turn, read again
    turns x WAIT_S                                       until the environment has answered
"""

from dataclasses import dataclass

from unslothrl.config.offline_options import (
    DpoOptions,
    OfflineOptions,
    PreferenceOptions,
    SftOptions,
)
from unslothrl.config.options import Config
from unslothrl.environments.base import DEFAULT_TURNS
from unslothrl.planning import memory
from unslothrl.planning.machine import Gpu
from unslothrl.planning.placement import Placement
from unslothrl.planning.shapes import Shape

REACHED = 0.5  # of a card's bandwidth and speed on paper
SHORT = 0.25  # of the longest completion or episode
WAIT_S = 1.0  # of a turn, for the environment: a guess, since anything may be one
ENGINE_S = {"vllm": (0.004, 0.02), "transformers": (0.03, 0.1)}  # added to each token, low and high
FLOPS = 8  # of an update, for each parameter and token
FORWARD = 2  # of a forward pass


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
    cards = cards_of(placement)
    low, high = (
        one(config, shape, bandwidth * 1e9, tflops * 1e12, engine_s, share, turns)
        for bandwidth, tflops, engine_s, share, turns in (
            (cards.bandwidth[1], cards.tflops[1], ENGINE_S[config.engine][0], SHORT, 0),
            (
                cards.bandwidth[0],
                cards.tflops[0],
                ENGINE_S[config.engine][1],
                1.0,
                turns_of(config),
            ),
        )
    )
    return low, high


def judging_seconds(
    config: Config, shape: Shape, placement: Placement
) -> tuple[float, float] | None:
    """-> (low, high) of what the reward model takes of a step, after the generating; None without
    one, and without a card."""
    if not memory.has_reward_model(config) or not placement.cards:
        return None
    flops = [tflops * 1e12 for tflops in cards_of(placement).tflops]
    return judging(config, shape, flops[1], SHORT), judging(config, shape, flops[0], 1.0)


def judging(config: Config, shape: Shape, flops: float, share: float) -> float:
    """Seconds of a forward pass of the learners over every completion and its prompt."""
    if not memory.has_reward_model(config):
        return 0.0
    length = share * (config.max_prompt_tokens + config.episode_tokens)
    tokens = config.completions_per_step * length / config.number_of_learners
    return FORWARD * shape.parameters() * tokens / (REACHED * flops)


def stage_seconds(options: OfflineOptions, shape: Shape, gpu: Gpu) -> tuple[float, float]:
    """-> (low, high) of a step of SFT, DPO or a reward model: forward, forward again and backward
    over every row; DPO's reference, where it is an adapter, a forward more."""
    size = size_of(gpu)
    rows = options.batch_size * (2 if isinstance(options, PreferenceOptions) else 1)
    flops = FLOPS - FORWARD
    if isinstance(options, DpoOptions) and options.reference != "cached":
        flops += FORWARD
    is_packed = isinstance(options, SftOptions) and options.packing
    of_tokens = [
        flops * shape.parameters() * rows * options.max_length * share / (REACHED * tflops * 1e12)
        for share, tflops in ((1.0 if is_packed else SHORT, size.tflops[1]), (1.0, size.tflops[0]))
    ]
    return of_tokens[0], of_tokens[1]


def cards_of(placement: Placement) -> Cards:
    """Those of the size of the placement's smallest."""
    return size_of(min((card.gpu for card in placement.cards), key=lambda gpu: gpu.physical_mb))


def size_of(gpu: Gpu) -> Cards:
    return next(size for size in SIZES if gpu.physical_mb / 1024 <= size.gb)


def turns_of(config: Config) -> int:
    """The most that an environment answers in an episode; 0 without one."""
    return (config.max_turns or DEFAULT_TURNS) if config.has_environment else 0


def one(
    config: Config,
    shape: Shape,
    bandwidth: float,
    flops: float,
    engine_s: float,
    share: float,
    turns: int = 0,
) -> float:
    """Seconds of generating and updating, one after the other; `turns` that are waited for."""
    length = share * config.episode_tokens
    parameters = shape.parameters()
    learners = config.number_of_learners
    generators = config.number_of_actors + (learners if config.learner_generates else 0)
    completions = -(-config.completions_per_step // generators)
    at_once = min(config.sequences_at_once, completions)
    rounds = -(-completions // at_once)
    cached = shape.kv_bytes(at_once * round(config.max_prompt_tokens + length)) / 2
    moving = (shape.engine_bytes() + cached) / (REACHED * bandwidth)
    computing = 2 * parameters * at_once / (REACHED * flops)
    before = max(0, turns - 1) * (config.max_prompt_tokens + length / 2)
    between = before * computing + turns * WAIT_S
    generating = rounds * (length * (max(moving, computing) + engine_s) + between)
    trained = (
        config.batch_size * min(config.topk, config.num_candidates) * config.epochs_per_rollout
    )
    tokens = trained * (config.max_prompt_tokens * share + length) / learners
    updating = FLOPS * parameters * tokens / (REACHED * flops)
    return generating + judging(config, shape, flops, share) + updating

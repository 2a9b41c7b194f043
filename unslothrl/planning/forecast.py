"""What a run takes of the GPUs, of the host's memory and of the disk, and how long a step takes: an
estimate in a range, from what they move and compute, or GPUs of their size.

    generating   tokens of the longest completion x rounds x (max(bytes / bandwidth, 2 P n / speed)
                 + what an engine adds), n sequences at once; rounds = completions / n
    judging      2 P tokens / speed, where a reward is a reward model: a forward over completions
    updating     8 P tokens / speed: forward, forward again, backward, and the log-probabilities

P is the model's parameters, bytes are those of its 4-bit weights and half of a full KV cache. The
low figure has completions of a quarter of their limit; the high one of full length, and of episodes
with an environment what follows in each round. Of a GPU whose name says nothing the low figure has
the fastest of its size, the high one the slowest.

    (turns - 1) x 2 P n (prompt + length / 2) / speed    what came before a turn, read again
    turns x WAIT_S                                       until the environment has answered
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unslothrl.config.offline_options import (
    DpoOptions,
    OfflineOptions,
    PreferenceOptions,
    shards_of,
)
from unslothrl.config.options import SPLITS, Config
from unslothrl.data import sources
from unslothrl.data.files import Rows
from unslothrl.embedded import BASES
from unslothrl.environments.base import DEFAULT_TURNS
from unslothrl.planning import footprint
from unslothrl.planning.footprint import MB, TRAINED
from unslothrl.planning.gpus import Rates, known, rates
from unslothrl.planning.place import place
from unslothrl.planning.placement import CardPlan, Placement, ProcessPlan, Resources
from unslothrl.system.machine import Gpu, Machine
from unslothrl.weights.shapes import HALF, Shape

DRIVER_MB = 700  # of the host, for the driver and Ray's own processes; measured on a CPU

SHORT = 0.25  # of the longest completion or episode
WAIT_S = 1.0  # of a turn, for the environment: a guess, since anything may be one
ENGINE_S = {"vllm": (0.004, 0.02), "transformers": (0.03, 0.1)}  # added to each token, low and high
FLOPS = 8  # of an update, for each parameter and token
FORWARD = 2  # of a forward pass

LINKS = {  # GB/s that one GPU receives, what is reached by data sheets: not measured yet
    "NVLink": 200.0,
    "PCIe 5 x16": 40.0,
    "PCIe 4 x16": 20.0,
    "PCIe 3 x16": 10.0,
    "25 GbE": 2.8,
    "10 GbE": 1.1,
    "1 GbE": 0.11,
}
USUAL_LINK = LINKS["PCIe 4 x16"] * 1e9  # bytes/s between the GPUs of one machine

SIZES = {  # training and test rows of data sets, for a run's length before any download
    "HuggingFaceH4/MATH-500": (500, 0),
    "openai/gsm8k": (7_473, 1_319),
    "DigitalLearningGmbH/MATH-lighteval": (7_500, 5_000),
}


Way = tuple[Rates, float, float, int]
"""A GPU's speed, seconds that an engine adds, share of the longest length, turns of waiting"""


@dataclass(frozen=True)
class Forecast:
    placement: Placement  # of a model whose sizes are known
    stores: tuple[dict[str, Any], ...]  # host memory and disk; has_mb None: not known

    @classmethod
    def of(
        cls, placement: Placement, host_mb: float, disk_mb: float, machine: Machine
    ) -> "Forecast":
        """Of a run that takes so much of the machine's memory and disk."""
        stores = (
            {"name": name, "needed_mb": mb, "has_mb": has, "fits": has is None or mb <= has}
            for name, mb, has in (
                ("host memory", round(host_mb), machine.ram_mb or None),
                ("disk", round(disk_mb), machine.disk_mb),
            )
        )
        return cls(placement, tuple(stores))

    @property
    def fits(self) -> bool:
        on_cards = all(card.fits for card in self.placement.cards)
        return on_cards and all(store["fits"] for store in self.stores)

    def to_json(self) -> dict[str, Any]:
        return {
            "fits": self.fits,
            "cards": [
                {
                    "name": card.gpu.name,
                    "is_known": known(card.gpu),
                    "usable_mb": round(footprint.usable_mb(card.gpu)),
                    "needed_mb": round(card.needed_mb()),
                    "spare_mb": round(card.spare_mb()),
                    "fits": card.fits,
                    "processes": [of_process(process) for process in card.processes],
                }
                for card in self.placement.cards
            ],
            "processes_without_a_card": [
                of_process(process) for process in self.placement.processes if process.card is None
            ],
            "stores": list(self.stores),
        }


def of_process(process: ProcessPlan) -> dict[str, Any]:
    assert process.needs is not None  # the model's sizes are known
    return {"name": process.name, "cards": len(process.cards), **process.needs.to_json()}


def forecast_of(config: Config, shape: Shape, machine: Machine) -> Forecast:
    """What the run would take of this machine. UserError where it cannot be placed."""
    placed = place(config, Resources.of_machine(config, machine), shape=shape)
    everyone = [process.needs for process in placed.processes if process.needs]
    host = sum(sum(needs.host.values()) for needs in everyone) + DRIVER_MB
    if not placed.cards:
        host += sum(needs.peak_mb() for needs in everyone)
    return Forecast.of(placed, host, disk_mb(config, shape, machine), machine)


def disk_mb(config: Config, shape: Shape, machine: Machine) -> float:
    """The 4-bit base, 3 adapters, 2 checkpoints; the 16-bit base if it is quantised here."""
    base = shape.weight_bytes()
    if "4bit" not in config.model:
        base += shape.parameters() * HALF
    loras = shape.lora_weights(config.max_lora_rank)
    trained = TRAINED["cuda" if machine.gpus else "cpu"] - 4  # no gradients
    return (base + loras * (3 * HALF + 2 * trained)) / MB


def seconds_of(config: Config, shape: Shape, cards: Sequence[CardPlan]) -> dict[str, Any]:
    """(low, high) of a step on the smallest of its GPUs, what learners exchange of a base or of
    hidden states included; None without GPUs."""
    if not cards:
        return {"step_seconds": None}
    low, high = (step_s(config, shape, way) for way in ways_of(config, cards))
    link_s = step_bytes(config, shape) / USUAL_LINK
    return {"step_seconds": (low + link_s, high + link_s)}


def ways_of(config: Config, cards: Sequence[CardPlan]) -> tuple[Way, Way]:
    """The fastest and the slowest that is expected on the smallest of these GPUs."""
    slow, fast = min(rates(card.gpu) for card in cards)  # the slowest
    low_s, high_s = ENGINE_S[config.generating_engine]
    return (fast, low_s, SHORT, 0), (slow, high_s, 1.0, turns_of(config))


@functools.cache
def splits_of(text: str) -> dict[str, Rows]:
    """The rows of a file or folder, which takes a while where it is large."""
    return sources.load_splits(sources.parse(text))


def rows_in(text: str | None) -> tuple[int, int] | None:
    """About how many training and test rows a source has; None where it has no end, or would have
    to be downloaded first. UserError for a file that cannot be read."""
    if text is None or text in BASES:
        return None
    source = sources.parse(text)
    if source.is_local:
        splits = splits_of(text)
        train, test = sources.train_of(splits), sources.test_of(splits)
        return len(splits[train]), 0 if test in (None, train) else len(splits[test])
    if source.name not in SIZES:
        return None
    rows, of_test = SIZES[source.name]
    if source.split is not None:
        rows, of_test = (of_test if source.split in sources.TEST else 0) or rows, 0
    return len(range(rows)[source.start : source.stop]), of_test


def rows_of(options: Config | OfflineOptions) -> tuple[int, int] | None:
    """-> (rows that a run trains on, those that it holds out), as `rows_in`."""
    if (found := rows_in(options.dataset)) is None or options.eval_dataset or found[1]:
        return found
    held_out = max(1, round(options.holdout * found[0]))
    return found[0] - held_out, held_out


def steps_of(options: Config | OfflineOptions, rows: tuple[int, int] | None) -> int | None:
    """How many a run has on so many `rows_of` its data set; None where neither is known."""
    if rows is None or getattr(options, "packing", False):  # of packs, not of rows
        return options.max_steps
    whole = options.episodes * -(-rows[0] // options.batch_size)
    return min(whole, options.max_steps or whole)


def evaluations_of(
    config: Config, shape: Shape, cards: Sequence[CardPlan], rows: tuple[int, int] | None
) -> dict[str, Any]:
    """How many a run has, their completions and (low, high) of their seconds, each. A set whose
    size is not known counts as one with as many problems as are usually taken."""
    every, most, total = config.eval_every, config.eval_problems, 0
    for text in sources.eval_sources(config.eval_dataset).values():
        found = rows if text is None else rows_in(text)
        size = (found and (found[1] or found[0])) or most or Config.eval_problems
        total += min(most or size, size) * config.eval_candidates
    steps = steps_of(config, rows) or 0
    seconds = [generating_s(config, shape, way, total) for way in ways_of(config, cards)]
    return {
        "evaluations": 1 + -(-steps // every) if every else 0,  # one before the first step
        "evaluated": total,
        "evaluation_seconds": seconds,
    }


def stage_seconds(options: OfflineOptions, shape: Shape, gpu: Gpu) -> tuple[float, float]:
    """-> (low, high) of a step of SFT, DPO or a reward model: forward, forward again and backward
    over every row; DPO's reference, where it is an adapter, a forward more."""
    (_, slow), (_, fast) = rates(gpu)
    rows = options.batch_size * (2 if isinstance(options, PreferenceOptions) else 1)
    has_reference = isinstance(options, DpoOptions) and options.reference != "cached"
    passes = FLOPS - FORWARD + FORWARD * has_reference
    shards = shards_of(options)
    operations = passes * shape.parameters() * rows * options.max_length / shards
    micro_batches = -(-options.batch_size // (options.micro_batch * shards))
    received = shards_bytes(shape, shards, micro_batches) if shards > 1 else 0.0
    share = 1.0 if getattr(options, "packing", False) else SHORT
    link_s = received / USUAL_LINK
    return share * operations / fast + link_s, operations / slow + link_s


def turns_of(config: Config) -> int:
    """The most that an environment answers in an episode; 0 without one."""
    return (config.max_turns or DEFAULT_TURNS) if config.has_environment else 0


def generating_s(config: Config, shape: Shape, way: Way, total: int) -> float:
    """Of `total` completions, by all who generate."""
    (bandwidth, flops), engine_s, share, turns = way
    length, parameters = share * config.episode_tokens, shape.parameters()
    learners = config.number_of_learners
    generators = config.number_of_actors + (learners if config.learner_generates else 0)
    completions = -(-total // generators)
    at_once = min(config.sequences_at_once, completions)
    cached = shape.kv_bytes(at_once * round(config.max_prompt_tokens + length), at_once) / 2
    moving = (shape.engine_bytes() + cached) / bandwidth
    computing = 2 * parameters * at_once / flops
    before = max(0, turns - 1) * (config.max_prompt_tokens + length / 2)
    between = before * computing + turns * WAIT_S
    rounds = -(-completions // at_once)
    return rounds * (length * (max(moving, computing) + engine_s) + between)


def trained_candidates(config: Config) -> int:
    """Of a step's candidates, at most."""
    each = config.num_candidates
    return config.batch_size * (each if config.select == "all" else min(config.topk, each))


def step_s(config: Config, shape: Shape, way: Way) -> float:
    """Generating, judging and updating, one after the other."""
    (_, flops), _, share, _ = way
    parameters, learners = shape.parameters(), config.number_of_learners
    length, total = share * config.episode_tokens, config.completions_per_step
    generating = generating_s(config, shape, way, total)
    scored = total * (config.max_prompt_tokens * share + length) / learners
    judging = FORWARD * parameters * scored / flops if footprint.has_reward_model(config) else 0.0
    trained = trained_candidates(config) * config.epochs_per_rollout / learners
    trained *= config.max_prompt_tokens * share + length
    return generating + judging + FLOPS * parameters * trained / flops


# What learners that divide the work of one exchange


def shards_bytes(shape: Shape, ranks: int, micro_batches: int) -> float:
    """Of an update: forward all units but the first two, backward all but the last two, which are
    still there; the embedding is fetched again for what comes next. Once also the first two, and
    a forward pass of the reference, for the metrics."""
    units = shape.layers * shape.layer_bytes() + 2 * shape.table_bytes()
    first = shape.table_bytes() + shape.layer_bytes()
    passes = 2 * micro_batches + 1
    return (first + passes * (units - first)) * (ranks - 1) / ranks


def step_bytes(config: Config, shape: Shape) -> float:
    """That a learner receives in an update from those that it divides its work with, its gradients'
    sum left out. Micro-batches are computed again backwards, as on a GPU; nothing overlaps."""
    parts = config.number_of_learners // config.learners_per_part
    sequences = -(-trained_candidates(config) // parts)
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


def exchange(config: Config, shape: Shape) -> dict[str, Any]:
    """The same by link; empty where each learner does its work by itself."""
    if config.learners_together == 1:
        return {}
    received = step_bytes(config, shape)
    ways = {name: getattr(config, name) for name in SPLITS if getattr(config, name) > 1}
    seconds = {link: round(received / (gb * 1e9), 1) for link, gb in LINKS.items()}
    return {**ways, "received_gb": round(received / 1e9, 2), "seconds_by_link": seconds}

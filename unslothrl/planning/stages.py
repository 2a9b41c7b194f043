"""How much memory SFT, DPO and a reward model need, and the micro-batch that fits a GPU; before
any weights are loaded. docs/architecture.md has the formulas, and tests/test_plan_of_stages.py
compares them with what TRL's trainers hold.
"""

from collections.abc import Set
from dataclasses import dataclass, replace

from unslothrl.config.offline_options import (
    DpoOptions,
    OfflineOptions,
    PreferenceOptions,
    RmOptions,
    shards_of,
)
from unslothrl.errors import UserError
from unslothrl.planning import footprint
from unslothrl.planning.footprint import LOGIT, MB, TRAINED, Needs, Parts, gb, usable_mb
from unslothrl.planning.forecast import Forecast
from unslothrl.planning.placement import LEARNER, Placement, ProcessPlan
from unslothrl.planning.setting_search import LONGEST, longest_that_fits
from unslothrl.system.machine import Gpu, Machine
from unslothrl.weights.shapes import HALF, Shape, shape_of

NUMBER = 4  # bytes of a float32
UNSLOTH, PEFT = "unsloth", "peft"
LEAST_LENGTH = 128  # tokens, that is advised
LARGEST_MICRO_BATCH = 64
MANY_PAIRS = 1_000_000  # what data is taken to have that was not read
# of TRL's kernel (kernels/chunked_logprob.py, trainer/utils.py): tokens and logits of a tile
TILE_TOKENS, TILE_LOGITS = 4096, 32_768
HIDDEN = HALF + HALF + NUMBER  # bytes of a token's hidden value there: two copies, its gradient
PYTORCH_MB = 700  # of the host, for the process with TRL and datasets; measured on a CPU
WASTED = 2  # cached pairs for each that is read, beyond which a copy is taken


@dataclass(frozen=True)
class Reference:
    """What DPO's reference takes, held in either of two ways."""

    weights: int  # of the adapter that is trained
    pairs: int  # to train and to evaluate on
    read: int | None = None  # how often the run reads one of them; None: all at least once

    @classmethod
    def of(
        cls, options: DpoOptions, weights: int, pairs: int, evaluation_pairs: int
    ) -> "Reference":
        read = options.episodes * pairs
        if options.max_steps:
            read = min(read, options.max_steps * options.batch_size)
        steps = -(-read // options.batch_size)
        evaluations = 1 - -steps // options.eval_every if options.eval_every else 0
        return cls(weights, pairs + evaluation_pairs, read + evaluations * evaluation_pairs)

    @property
    def copy_mb(self) -> float:
        return NUMBER * self.weights / MB

    @property
    def cached_mb(self) -> float:
        """Two log-probabilities of every pair."""
        return 2 * NUMBER * self.pairs / MB

    @property
    def is_cached(self) -> bool:
        """Whether `--reference auto` caches: whichever is smaller, but for a run so short that it
        would compute far more log-probabilities than it reads."""
        return self.cached_mb < self.copy_mb and not self.is_wasted

    @property
    def is_wasted(self) -> bool:
        """Whether most of what would be cached is never read."""
        return self.read is not None and self.pairs > WASTED * self.read

    def line(self) -> str:
        chosen = "its log-probabilities are cached" if self.is_cached else "a copy of the adapter"
        read = f", of which the run reads {self.read}" if self.is_wasted else ""
        return (
            f"reference: {chosen} (cached {self.cached_mb:.2f} MB for {self.pairs} pairs{read}; "
            f"a copy {self.copy_mb:.2f} MB)"
        )


@dataclass(frozen=True)
class Fitted:
    """`options` with the micro-batch that fits; notes; why a run would be refused, or ""."""

    options: OfflineOptions
    notes: tuple[str, ...] = ()
    refusal: str = ""


def needs(options: OfflineOptions, shape: Shape, gpu: Gpu | None) -> Needs:
    """Before the data is read."""
    on = "cuda" if gpu else "cpu"
    lora = shape.lora_weights(options.max_lora_rank)
    rows, length = rows_of(options), options.max_length
    tokens = rows * length
    is_rm = isinstance(options, RmOptions)  # without an output layer of its own
    output = 0 if shape.tied or not is_rm else shape.vocabulary * shape.hidden * HALF
    shards = shards_of(options)
    card: Parts = {
        "weights": (shape.part_bytes(shards) - output) / MB,
        "adapter and optimiser": lora * TRAINED[on] / MB,
    }
    host: Parts = {"PyTorch and TRL": float(PYTORCH_MB)}
    if is_rm:
        # as it was loaded, a trained copy in float32 with its gradient and two moments, which stay
        # whole in so small a tensor, and its input in float32
        card["score head"] = shape.hidden * (HALF + (4 + tokens) * NUMBER) / MB
    if isinstance(options, DpoOptions):
        reference = Reference.of(options, lora, MANY_PAIRS, 0)
        is_cached = reference.is_cached if options.reference == "auto" else False
        if (is_cached and shards == 1) or options.reference == "cached":
            host["reference"] = reference.cached_mb
        else:
            card["reference"] = reference.copy_mb
    if shards > 1:
        card |= {"gathered layers": shape.gathered_bytes() / MB, "sum of gradients": lora * 4 / MB}
    if gpu:
        card["CUDA context"] = float(footprint.ON_A_CARD["context"])
    if gpu and shards > 1:
        card["NCCL"] = 3 * footprint.NCCL_MB
    backend = UNSLOTH if options.backend == UNSLOTH else PEFT  # auto: what takes more
    on_card, on_host = footprint.activations(tokens, options.max_lora_rank, backend, shape, gpu)
    card["activations"] = (on_card + tokens * shape.hidden * NUMBER) / MB  # with the last norm's
    if on_host:
        host["offloaded activations"] = on_host / MB
    # which tokens a token may see: of padded rows in its row, of packed ones in all side by side; a
    # byte, and 16 bits in each of the layers that are kept
    seen = tokens if getattr(options, "packing", False) else length
    card["attention mask"] = tokens * seen * (1 + HALF * (1 if gpu else shape.layers)) / MB
    # TRL's kernel has a tile of the logits at a time; without a GPU all of them are there at once
    # (`offline.models.log_probs_of`)
    tile = min(tokens, TILE_TOKENS) * min(shape.vocabulary, TILE_LOGITS) * HALF
    logits = tile + tokens * shape.hidden * HIDDEN if gpu else tokens * shape.vocabulary * LOGIT
    if not is_rm:
        card["logits"] = logits / MB
    return Needs({}, card, host)


def rows_of(options: OfflineOptions) -> int:
    """Rows of a micro-batch; of a pair both."""
    return options.micro_batch * (2 if isinstance(options, PreferenceOptions) else 1)


def forecast_of(options: OfflineOptions, shape: Shape, machine: Machine) -> Forecast:
    """What a stage takes of this machine: of the first GPUs, one each of those that share a base,
    of the host's memory, and of the disk for base, adapter, checkpoints, one of them being
    written."""
    shards = shards_of(options)
    gpus = machine.gpus[:shards]
    found = needs(options, shape, gpus[0] if gpus else None)
    host = shards * (sum(found.host.values()) + (0 if gpus else found.peak_mb()))
    lora = shape.lora_weights(options.max_lora_rank)
    moments = TRAINED["cuda" if gpus else "cpu"] - 2 * NUMBER
    kept = options.keep_checkpoints + 2  # the best one too
    base = shape.weight_bytes() + (0 if "4bit" in options.model else shape.parameters() * HALF)
    adapters = 2 if options.adapter else 1  # the one that it begins with
    disk = (base + adapters * lora * HALF + kept * lora * (NUMBER + moments)) / MB
    processes = tuple(
        ProcessPlan(LEARNER, rank, cards=(rank,) if gpus else (), needs=found)
        for rank in range(shards)
    )
    return Forecast.of(Placement(gpus, processes), host, disk, machine)


# The micro-batch that fits


def fit(options: OfflineOptions, given: Set[str], machine: Machine) -> Fitted:
    """The options with what was not given fitted to the model's context and to the GPU. UserError
    where the user wants rows that are over the context."""
    shape = shape_of(options.model)
    if shape is None:
        unknown = f"model {options.model}: its size is not known, so nothing was fitted"
        return Fitted(options, (unknown,) if machine.gpus else ())
    notes: tuple[str, ...] = ()
    length, context = options.max_length, shape.context
    if context is not None and length > context:
        if "max_length" in given:
            raise UserError(
                f"max_length {length} is over the context of {options.model} ({context} tokens): "
                f"set --max_length {context}"
            )
        notes = (f"max_length {length} -> {context}: the model's context is {context} tokens",)
        options = replace(options, max_length=context)
    if machine.gpus and len(machine.gpus) < shards_of(options):
        raise UserError(
            f"learner_shards {shards_of(options)}: there are {len(machine.gpus)} GPUs: set "
            f"--learner_shards {len(machine.gpus)}"
        )
    if not machine.gpus or options.fit == "off":
        return Fitted(options, notes)
    gpu = min(machine.gpus[: shards_of(options)], key=usable_mb)

    def fitted(options: OfflineOptions) -> OfflineOptions:
        return options if "train_batch_size" in given else with_micro_batch(options, shape, gpu)

    found = fitted(options)
    can_share = "learner_shards" not in given and options.backend != UNSLOTH
    for shards in range(2, len(machine.gpus) + 1 if can_share else 2):
        if fits(found, shape, gpu) or isinstance(options, RmOptions):
            break
        tried = fitted(replace(options, learner_shards=shards))  # type: ignore[call-arg]
        if fits(tried, shape, gpu):
            why = f"a GPU of {gb(gpu.memory_mb)} does not hold it alone"
            notes = (*notes, f"learner_shards 1 -> {shards}: {why}")
            found = tried
    if not fits(found, shape, gpu):
        return Fitted(found, notes, refusal_of(options, given, shape, gpu))
    if found.train_batch_size != options.train_batch_size:
        change = f"train_batch_size {options.train_batch_size} -> {found.train_batch_size}"
        notes = (*notes, f"{change}: fits {gb(gpu.memory_mb)}")
    return Fitted(found, notes)


def fits(options: OfflineOptions, shape: Shape, gpu: Gpu) -> bool:
    return needs(options, shape, gpu).peak_mb() <= usable_mb(gpu)


def with_micro_batch(options: OfflineOptions, shape: Shape, gpu: Gpu) -> OfflineOptions:
    """With the largest micro-batch that fits, of at most the options' own rows; with one row where
    none does."""
    most = options.train_batch_size
    parts = range(min(most, options.batch_size), 0, -1)
    for size in (most, *(part for part in parts if options.batch_size % part == 0)):
        tried = replace(options, train_batch_size=size)
        if fits(tried, shape, gpu):
            return tried
    return replace(options, train_batch_size=1)


def longest(options: OfflineOptions, shape: Shape, gpu: Gpu) -> OfflineOptions | None:
    """With micro-batches of a row as long as fit; None where not even 64 tokens do."""
    small = replace(options, train_batch_size=1)
    tokens = longest_that_fits(
        shape.context or LONGEST,
        lambda tokens: fits(replace(small, max_length=tokens), shape, gpu),
    )
    return replace(small, max_length=tokens) if tokens else None


def remedy(
    options: OfflineOptions, given: Set[str], shape: Shape, gpu: Gpu
) -> dict[str, int] | None:
    """What of the options would have to be lower to fit: the micro-batch or, where that is not
    enough, the rows' length too. None where nothing fits, and {} where all does."""
    if fits(options, shape, gpu):
        return {}
    micro = with_micro_batch(options, shape, gpu)
    needed = {"train_batch_size": micro.train_batch_size}
    if fits(micro, shape, gpu):
        return needed
    found = longest(options, shape, gpu)
    if found is None or found.max_length < LEAST_LENGTH:
        return None
    lower = needed if "train_batch_size" in given and options.micro_batch > 1 else {}
    return {**lower, "max_length": min(found.max_length, options.max_length)}


def refusal_of(options: OfflineOptions, given: Set[str], shape: Shape, gpu: Gpu) -> str:
    """Why a run is not begun, and what to set."""
    least = options if "train_batch_size" in given else replace(options, train_batch_size=1)
    needed = needs(least, shape, gpu).peak_mb()
    lower = remedy(options, given, shape, gpu)
    flags = " ".join(f"--{name} {value}" for name, value in (lower or {}).items())
    advice = f"set {flags}" if flags else "choose a smaller model"
    return (
        f"model {options.model} needs about {gb(needed)} with micro-batches of "
        f"{least.micro_batch} x {options.max_length} tokens, and {gb(usable_mb(gpu))} are usable "
        f"on {gpu.name}: {advice}, or start all the same with --fit off"
    )

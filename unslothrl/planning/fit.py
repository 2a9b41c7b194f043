"""Fits the options that the user has not set to the machine, by the placement's estimate of memory.

Every function is pure: a config, the names that the user gave, a `Machine`. Only what was not given
is changed, and every change is one line. Where the given values cannot fit, a line says so and the
run starts all the same: the estimate may be wrong.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from unslothrl.config import rules
from unslothrl.config.options import SPLITS, Config
from unslothrl.config.parts import FIRST_WITH_BFLOAT16, vllm_rank
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.planning import footprint
from unslothrl.planning import setting_search as search
from unslothrl.planning.footprint import KEPT_FREE, MB, EngineLimits, gb, usable_mb, usable_share
from unslothrl.planning.place import cards_of, place, takes_turns
from unslothrl.planning.placement import CardPlan, Resources
from unslothrl.system.machine import Gpu, Machine
from unslothrl.text import counted
from unslothrl.weights.shapes import HALF, SHARED, Shape, not_shared, shape_of

TASK = {  # where no data set is given; once through, it is as many steps as DistRL-LLM's default
    "dataset": "openai/gsm8k:main",
    "eval_dataset": (
        "GSM8K=openai/gsm8k:main@test", "MATH-500=HuggingFaceH4/MATH-500@test",
    ),
    "episodes": 1,
    "eval_every": 25,
}  # fmt: skip
MODELS = (  # the least memory of a GPU, in MB, and what is trained on it
    (15_900, "unsloth/Qwen2.5-7B-Instruct-bnb-4bit"),
    (10_000, "unsloth/Qwen2.5-3B-Instruct-bnb-4bit"),
    (6_000, "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit"),
    (0, "unsloth/Qwen2.5-0.5B-Instruct-bnb-4bit"),
)
UNKNOWN_SHARE = 0.7  # of a GPU for an engine whose weights are of unknown size
MOST_SHARE = 0.9  # of a GPU for the learner's engine


def needs_hub(given: Set[str], machine: Machine) -> bool:
    """Whether the choice of a model or data set hangs on the hub being there."""
    return bool(machine.gpus) and not {"model", "dataset"} <= given


def default_task(machine: Machine) -> dict[str, Any]:
    """-> the options of model and data that a machine trains where none is given."""
    if not machine.gpus or machine.online is False:
        return {"model": EMBEDDED, "dataset": EMBEDDED}
    smallest = min(gpu.memory_mb for gpu in machine.gpus)
    return {"model": next(model for least, model in MODELS if smallest >= least), **TASK}


class Fitting:
    """A config on its way to fitting; each change of what was not given leaves a line."""

    def __init__(self, config: Config, given: Set[str]):
        self.config, self.given = config, given
        self.notes: list[str] = []

    def set(self, name: str, value: Any, why: str = "") -> None:
        """Sets an option unless it was given; a line is left where `why` says something."""
        old = getattr(self.config, name)
        if name in self.given or value == old:
            return
        self.config = replace(self.config, **{name: value})
        if why:
            old = "not set" if old is None else old
            self.notes.append(f"{name} {old} -> {value}: {why}")


def fit(config: Config, given: Set[str], machine: Machine) -> tuple[Config, list[str]]:
    """-> (the config with what was not given fitted to the machine, one line per change). What one
    GPU cannot hold is divided among several, if there are."""
    fitted, shape = _fit_undivided(config, given, machine), shape_of(config.model)
    cannot_divide = config.ray_address is not None or len(machine.gpus) < 2
    if shape is None or cannot_divide or config.fit == "off":
        return fitted

    def cards_of_run(config: Config) -> Sequence[CardPlan]:
        return place(config, Resources.of_machine(config, machine), shape=shape).cards

    cards = cards_of_run(fitted[0])
    if all(card.fits for card in cards):
        return fitted
    from unslothrl.planning import dividing, forecast

    found, why = [], f"a GPU of {gb(cards[0].gpu.memory_mb)} does not hold it alone"
    reasons = list[str]()
    for way in dividing.ways(len(machine.gpus)):
        changes = Fitting(config, given)
        for name, value in way.items():
            changes.set(name, value, why)
        try:
            rules.check_processes(changes.config)
            divided, notes = _fit_undivided(changes.config, {*given, *way}, machine)
            rules.check_processes(divided)
        except UserError as error:
            reasons.append(f"it cannot be divided: {error}")
            continue
        reasons.append(f"divided among {len(machine.gpus)} GPUs it does not fit either")
        cards = cards_of_run(divided)
        if all(card.fits for card in cards):  # the longest is chosen, of these the fastest
            _, slow_s = forecast.seconds_of(divided, shape, cards)["step_seconds"]
            found.append(((-divided.episode_tokens, slow_s), divided, changes.notes + notes))
    if not found:
        return fitted[0], [*fitted[1], *reasons[:1]]
    return min(found, key=lambda each: each[0])[1:]


def _fit_undivided(config: Config, given: Set[str], machine: Machine) -> tuple[Config, list[str]]:
    changes = Fitting(config, given)
    _say_why_this_task(changes, machine)
    _fit_stack(changes, machine)
    check_division(changes.config)
    shape = shape_of(config.model)
    kind = shape.kind if shape is not None else ""
    is_unsloths = (changes.config.engine, changes.config.backend) == ("vllm", "unsloth")
    shares = not is_unsloths or kind in ("", *SHARED)
    if not shares:
        why = f"an actor generates, since Unsloth cannot share the weights of a {kind} with vLLM"
        changes.set("learner_chunk_size", 0, why)
    is_here = config.ray_address is None  # else the cluster's machines count, not this one
    if is_here:
        _fit_actors(changes, machine, shares)
    if not shares and changes.config.learner_has_engine:
        raise not_shared(config.model, kind)
    _fit_context(changes, shape)
    has_gpus = bool(machine.gpus) and is_here
    if has_gpus and shape is None:
        changes.notes.append(f"model {config.model}: its size is not known, so nothing was fitted")
        if not changes.config.number_of_actors and changes.config.learner_has_engine:
            changes.set("learner_gpu_usage", UNKNOWN_SHARE, "the learner generates everything")
    elif has_gpus and shape is not None:
        _fit_memory(changes, shape, machine)
    elif is_here and changes.config.engine == "vllm" and config.kv_cache_mb is None:
        workers = config.gpus_per_actor  # each has a cache of that size
        room = max(64, min(2048, machine.ram_mb // 8) // workers)
        changes.set("kv_cache_mb", room, f"from {gb(machine.ram_mb)} of memory")
    return changes.config, changes.notes


def check_division(config: Config) -> None:
    """UserError where the model cannot be divided as the options say, as far as is known."""
    if max(config.gpus_per_actor, config.learners_together) > 1:
        from unslothrl.planning.dividing import check_model

        check_model(config)


def _say_why_this_task(changes: Fitting, machine: Machine) -> None:
    config, notes = changes.config, changes.notes
    if machine.gpu_problem:
        rest = "the others are used" if machine.gpus else "CPU only"
        notes.append(f"there is a GPU, but it cannot be used ({machine.gpu_problem}): {rest}")
    if not needs_hub(changes.given, machine):
        return
    if machine.online is False and EMBEDDED in (config.model, config.dataset):
        names = " and ".join(n for n in ("model", "dataset") if n not in changes.given)
        notes.append(f"{names} -> {EMBEDDED}: the Hugging Face hub does not answer")
    elif "model" not in changes.given and config.model not in (EMBEDDED, MODELS[0][1]):
        smallest = min(gpu.memory_mb for gpu in machine.gpus)
        notes.append(f"model {MODELS[0][1]} -> {config.model}: fits {gb(smallest)}")


def _fit_stack(changes: Fitting, machine: Machine) -> None:
    """Engine, backend, dtype and cluster: the best that is installed and that the GPU can do."""
    config, packages, given = changes.config, machine.packages, changes.given
    install = install_command(machine)
    old = next((gpu.name for gpu in machine.gpus if gpu.capability < FIRST_WITH_BFLOAT16), None)
    if config.dtype == "auto":
        why = f"{old} has no bfloat16" if old else ""
        changes.set("dtype", "float16" if old else "bfloat16", why)
    if config.engine == "auto":
        why = "" if "vllm" in packages else f"vLLM for this machine is missing: {install}"
        why = f"vLLM's 4-bit layers compute in bfloat16, which {old} lacks" if old else why
        changes.set("engine", "transformers" if why else "vllm", why)
    elif config.engine == "vllm" and "vllm" not in packages:
        raise UserError(
            f"engine vllm is not installed for this machine: {install}; or --engine transformers"
        )
    elif config.engine == "vllm" and old:
        changes.notes.append(f"engine vllm: its 4-bit layers need bfloat16, which {old} lacks")
    has_unsloth = "unsloth" in packages
    if config.backend == "auto":
        why = "" if has_unsloth or not machine.gpus else f"Unsloth is not installed: {install}"
        if config.learners_together > 1:
            why, has_unsloth = "Unsloth's kernels take whole weights and whole rows", False
        changes.set("backend", "unsloth" if has_unsloth and machine.gpus else "peft", why)
    elif config.backend == "unsloth" and not machine.gpus:
        changes.notes.append("backend unsloth: without a GPU it is for tests only, and very slow")
    elif config.backend == "unsloth" and not has_unsloth:
        raise UserError(f"backend unsloth is not installed: {install}; or --backend peft")
    if config.cluster == "ray" and "ray" not in packages:
        if given & {"cluster", "ray_address"}:
            raise UserError(f"cluster ray is not installed: {install}, or set --cluster local")
        changes.set("cluster", "local", f"Ray is not installed: {install}")


def install_command(machine: Machine) -> str:
    if machine.system != "Linux":
        return f"it has no build for {machine.system}, use Linux (or WSL)"
    return "unslothrl setup"


def _fit_actors(changes: Fitting, machine: Machine, shares: bool) -> None:
    """How many actors: one GPU holds the learner alone, unless that has no engine (`shares`);
    actors beside it share the rest."""
    config = changes.config
    asked = config.number_of_actors
    gpus = len(Resources.of_machine(config, machine).gpus)
    each, learners = config.gpus_per_actor, config.number_of_learners
    if gpus:
        free = (learners if takes_turns(config, gpus) else max(0, gpus - learners)) // each
        if config.learners_together > 1 and not free:
            way = next(name for name in SPLITS if getattr(config, name) > 1)
            raise UserError(
                f"{way} {getattr(config, way)}: of {counted(gpus, 'GPU')} none is left for "
                f"actors: set --learner_shards {gpus} instead, or add a GPU"
            )
        if gpus == learners == each == 1 and not shares:
            free = 1  # which takes turns with the learner
        count = counted(gpus, "GPU") + " (--cluster local)" * (gpus < len(machine.gpus))
        changes.set("number_of_actors", min(asked, free), count)
    elif config.cluster == "local" and config.engine == "vllm" and asked > 1:
        changes.set("number_of_actors", 1, "one process holds one vLLM (--cluster local)")
    else:
        most = max(1, machine.cpus // 2)
        changes.set("number_of_actors", min(asked, most), counted(machine.cpus, "CPU"))


def _fit_context(changes: Fitting, shape: Shape | None) -> None:
    """A prompt and its completion, or episode, must fit the model's context. UserError."""
    config = changes.config
    prompt, new, option = config.max_prompt_tokens, config.episode_tokens, config.length_option
    if shape is None or shape.context is None or prompt + new <= shape.context:
        return
    room = shape.context - prompt
    if not search.has_length(config, changes.given) and room >= min(new, search.LEAST_NEW_TOKENS):
        changes.set(option, room, f"the model's context is {shape.context} tokens")
        return
    remedies = [f"--{option} {room}"] if room > 0 else []
    if shape.context > new:
        remedies.append(f"--max_prompt_tokens {shape.context - new}")
    raise UserError(
        f"max_prompt_tokens {prompt} + {option} {new} = {prompt + new} is over the context "
        f"of {config.model} ({shape.context} tokens): "
        + (f"set {' or '.join(remedies)}" if remedies else "lower both")
    )


def _fit_memory(changes: Fitting, shape: Shape, machine: Machine) -> None:
    """What was not given, as `--fit` says: lowered until every GPU holds its processes, or as large
    or fast as they hold; then what the engines may take.

    Raises UserError where the processes cannot be placed on the GPUs at all.
    """
    start, given = changes.config, changes.given
    resources = Resources.of_machine(start, machine)

    def tightest(config: Config) -> CardPlan:
        config = with_engines(config, given, shape, resources)
        return max(place(config, resources, shape=shape).cards, key=CardPlan.excess_mb)

    def excess(config: Config) -> float:
        return tightest(config).excess_mb()

    card, config = tightest(start), start
    find = {"largest": search.largest, "fastest": search.fastest}.get(start.fit)
    found = find and find(start, lambda c: excess(search.kept(c, start, given)) <= 0, shape.context)
    if found is not None:
        config = search.kept(found, start, given)
    elif start.fit != "off":
        config = search.lower(start, given, excess)
    fits = excess(config) <= 0
    why = f"{'fits' if fits else 'the least for'} {gb(card.gpu.memory_mb)}"
    if card.gpu.free_mb < 0.8 * card.gpu.memory_mb:
        why += f" ({gb(card.gpu.free_mb)} free)"
    for name in ("max_num_seqs", "train_batch_size", "num_candidates", config.length_option):
        changes.set(name, getattr(config, name), why)
    if not fits and start.fit != "off":
        card = tightest(config)
        changes.notes.append(
            f"this may run out of memory: about {gb(card.needed_mb())} needed, "
            f"{gb(usable_mb(card.gpu))} usable on {card.gpu.name}: choose a smaller model"
            + (f" or lower --{config.length_option}" if search.has_length(start, given) else "")
        )
    config = with_engines(config, given, shape, resources)
    changes.set("kv_cache_mb", config.kv_cache_mb, "learner and actors share 1 GPU")
    changes.set("learner_gpu_usage", config.learner_gpu_usage, "its engine sleeps while it updates")


def with_engines(config: Config, given: Set[str], shape: Shape, resources: Resources) -> Config:
    """The config with what its vLLMs may take of their GPUs where that was not given: an actor's KV
    cache beside a learner, and the share of a learner's engine, on the smallest GPU that a learner
    gets. Both follow from the model's sizes, from the lengths, and from who is on the GPU."""
    learners, _ = cards_of(config, resources)
    gpus = [resources.gpus[card] for own in learners for card in own]
    known = [gpu for gpu in gpus if gpu is not None]
    if not known:
        return config
    gpu = min(known, key=usable_mb)
    beside = config.number_of_actors if len(resources.gpus) == 1 else 0
    if beside and config.engine == "vllm" and "kv_cache_mb" not in given:
        config = replace(config, kv_cache_mb=math.ceil(footprint.whole_cache(config, shape)))
    if not config.learner_has_engine or "learner_gpu_usage" in given:
        return config
    room = usable_mb(gpu) - _beside_engine(config, shape, gpu, beside)
    prefill = footprint.unsloth_prefill(room - shape.engine_bytes() / MB)
    fixed = sum(footprint.engine_parts(config, shape, prefill).values())
    enough = _unsloth_least(config, shape)
    least = max(fixed + footprint.least_cache(config, shape), enough) / gpu.memory_mb
    most = min(max(fixed + footprint.whole_cache(config, shape), enough), room) / gpu.memory_mb
    if config.number_of_actors and least <= config.learner_gpu_usage <= most:
        return config
    share = max(math.ceil(1000 * least), math.floor(1000 * min(most, MOST_SHARE))) / 1000
    return replace(config, learner_gpu_usage=min(1.0, share))


def _unsloth_least(config: Config, shape: Shape) -> float:
    """MB of the share below which Unsloth gives its engine less than the run's context, by its own
    estimate: 5 bits a weight, 172 CUDA graphs, 5% of the KV cache lost
    (unsloth_zoo/vllm_utils.py:2422)."""
    weights = shape.linear_weights() * 5 / 8 + shape.other_weights() * HALF
    graphs = min(max(172 * shape.hidden * shape.layers * 4 / MB, 154), 1024)
    cache = shape.kv_bytes(config.context + 256) / 0.95
    lora = shape.lora_weights(vllm_rank(config.max_lora_rank)) * HALF
    return (weights + lora + cache) / MB + graphs


def _beside_engine(config: Config, shape: Shape, gpu: Gpu, actors: int) -> float:
    """MB on a learner's GPU while it generates, besides its engine's share: the learner's own and
    that of so many actors on the same GPU."""
    share = usable_share(gpu)
    engine = EngineLimits(config.learner_gpu_usage).on(gpu, share)
    parts = footprint.learner(config, shape, gpu, engine).generating
    names = ("adapter and optimiser", "CUDA context", "CUDA graphs", KEPT_FREE)
    own = sum(parts.get(name, 0) for name in names)
    if not actors:
        return own
    limits = EngineLimits(config.actor_gpu_usage, config.kv_cache_mb)
    actor = footprint.actor(config, shape, gpu, limits.on(gpu, share), is_beside=True)
    return own + actors * actor.generating_mb()

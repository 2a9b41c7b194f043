"""Fits the options that the user has not set to the machine, by the placement's estimate of memory.

Every function is pure: a config, the names that the user gave, a `Machine`. Only what was not given
is changed, and every change is one line. Where the given values cannot fit, a line says so and the
run starts all the same: the estimate may be wrong.
"""

from collections.abc import Set
from dataclasses import replace
from typing import Any

from unslothrl.config.hardware import FIRST_WITH_BFLOAT16
from unslothrl.config.options import Config
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.planning import search
from unslothrl.planning.engine_options import with_engines
from unslothrl.planning.machine import Machine
from unslothrl.planning.place import check_overlap, place
from unslothrl.planning.placement import CardPlan, Resources
from unslothrl.planning.shapes import Shape, shape_of
from unslothrl.planning.tensor_parallel import check_model

DATASET = "HuggingFaceH4/MATH-500"
MODELS = (  # the least memory of a card, in MB, and what is trained on it
    (15_900, "unsloth/Qwen2.5-7B-Instruct-bnb-4bit"),
    (10_000, "unsloth/Qwen2.5-3B-Instruct-bnb-4bit"),
    (6_000, "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit"),
    (0, "unsloth/Qwen2.5-0.5B-Instruct-bnb-4bit"),
)

UNKNOWN_SHARE = 0.7  # of a card for an engine whose weights are of unknown size


class Changes:
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

    def note(self, line: str) -> None:
        self.notes.append(line)


def needs_hub(given: Set[str], machine: Machine) -> bool:
    """Whether the choice of a model or data set hangs on the hub being there."""
    return bool(machine.gpus) and not {"model", "dataset"} <= given


def default_task(machine: Machine) -> tuple[str, str]:
    """-> the (model, data set) that a machine trains where none is given."""
    if not machine.gpus or machine.online is False:
        return EMBEDDED, EMBEDDED
    smallest = min(gpu.memory_mb for gpu in machine.gpus)
    return next(model for least, model in MODELS if smallest >= least), DATASET


def fit(config: Config, given: Set[str], machine: Machine) -> tuple[Config, list[str]]:
    """-> (the config with what was not given fitted to the machine, one line per change)."""
    changes = Changes(config, given)
    say_why_this_task(changes, machine)
    fit_stack(changes, machine)
    check_model(changes.config)
    if config.ray_address is None:  # else the cluster's machines count, not this one
        fit_actors(changes, machine)
    shape = shape_of(config.model)
    fit_context(changes, shape)
    if machine.gpus and config.ray_address is None:
        if shape is None:
            changes.note(f"model {config.model}: its size is not known, so nothing was fitted")
            if not changes.config.number_of_actors and changes.config.learner_has_engine:
                changes.set("learner_gpu_usage", UNKNOWN_SHARE, "the learner generates everything")
        else:
            fit_memory(changes, shape, machine)
    elif config.ray_address is None and changes.config.engine == "vllm":
        workers = config.actor_tensor_parallel  # each has a cache of that size
        room = max(64, min(2048, machine.ram_mb // 8) // workers)
        if config.kv_cache_mb is None:
            changes.set("kv_cache_mb", room, f"from {_gb(machine.ram_mb)} of memory")
    return changes.config, changes.notes


def say_why_this_task(changes: Changes, machine: Machine) -> None:
    if machine.gpu_problem:
        changes.note(f"there is a GPU, but it cannot be used ({machine.gpu_problem}): CPU only")
    if not machine.gpus or not needs_hub(changes.given, machine):
        return
    config = changes.config
    if machine.online is False and EMBEDDED in (config.model, config.dataset):
        names = [n for n in ("model", "dataset") if n not in changes.given]
        changes.note(f"{' and '.join(names)} -> {EMBEDDED}: the Hugging Face hub does not answer")
    elif "model" not in changes.given and config.model not in (EMBEDDED, MODELS[0][1]):
        smallest = min(gpu.memory_mb for gpu in machine.gpus)
        changes.note(f"model {MODELS[0][1]} -> {config.model}: fits {_gb(smallest)}")


def fit_stack(changes: Changes, machine: Machine) -> None:
    """Engine, backend, dtype and cluster: the best that is installed and that the card can do."""
    config = changes.config
    install = install_command(machine)
    old_card = next((gpu for gpu in machine.gpus if gpu.capability < FIRST_WITH_BFLOAT16), None)
    if config.dtype == "auto":
        why = f"{old_card.name} has no bfloat16" if old_card else ""
        changes.set("dtype", "float16" if old_card else "bfloat16", why)
    if config.engine == "auto":
        if old_card:
            why = f"vLLM's 4-bit layers compute in bfloat16, which {old_card.name} lacks"
            changes.set("engine", "transformers", why)
        elif "vllm" in machine.packages:
            changes.set("engine", "vllm")
        else:
            changes.set("engine", "transformers", f"vLLM for this machine is missing: {install}")
    elif config.engine == "vllm" and "vllm" not in machine.packages:
        raise UserError(
            f"engine vllm is not installed for this machine: {install}; or --engine transformers"
        )
    elif config.engine == "vllm" and old_card:
        changes.note(f"engine vllm: its 4-bit layers need bfloat16, which {old_card.name} lacks")
    fit_backend(changes, machine, install)
    fit_cluster(changes, machine)


def fit_backend(changes: Changes, machine: Machine, install: str) -> None:
    backend, has_unsloth = changes.config.backend, "unsloth" in machine.packages
    if backend == "auto" and not machine.gpus:
        changes.set("backend", "peft")
    elif backend == "auto":
        why = "" if has_unsloth else f"Unsloth is not installed: {install}"
        changes.set("backend", "unsloth" if has_unsloth else "peft", why)
    elif backend == "unsloth" and not machine.gpus:
        changes.note("backend unsloth: without a GPU it is for tests only, and very slow")
    elif backend == "unsloth" and not has_unsloth:
        raise UserError(f"backend unsloth is not installed: {install}; or --backend peft")


def fit_cluster(changes: Changes, machine: Machine) -> None:
    if changes.config.cluster == "ray" and "ray" not in machine.packages:
        if changes.given & {"cluster", "ray_address"}:
            raise UserError(
                "cluster ray is not installed: pip install ray==2.60.0, or set --cluster local"
            )
        changes.set("cluster", "local", "Ray is not installed: pip install ray==2.60.0")


def install_command(machine: Machine) -> str:
    """The command that brings the whole stack to this machine."""
    if machine.system != "Linux":
        return f"it has no build for {machine.system}, use Linux (or WSL)"
    lock = "requirements.txt" if machine.gpus else "requirements-cpu.txt"
    return f"pip install --no-deps -r {lock}"


def fit_actors(changes: Changes, machine: Machine) -> None:
    """How many actors: one GPU holds the learner alone; actors beside it share the rest."""
    config = changes.config
    gpus = len(Resources.of_machine(config, machine).gpus)
    if gpus == 1:
        check_overlap(config)
    if gpus and config.number_of_actors:
        check_enough_cards(config, gpus)
    if gpus:
        free = max(0, gpus - config.number_of_learners) // config.actor_tensor_parallel
        count = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        count += " (--cluster local)" if gpus < len(machine.gpus) else ""
        changes.set("number_of_actors", min(config.number_of_actors, free), count)
    elif config.cluster == "local" and config.engine == "vllm" and config.number_of_actors > 1:
        changes.set("number_of_actors", 1, "one process holds one vLLM (--cluster local)")
    else:
        most = max(1, machine.cpus // 2)
        cpus = "1 CPU" if machine.cpus == 1 else f"{machine.cpus} CPUs"
        changes.set("number_of_actors", min(config.number_of_actors, most), cpus)
    config = changes.config
    if gpus == 1 and config.number_of_actors:
        left = (1 - config.learner_gpu_usage) / config.number_of_actors
        share = int(min(config.actor_gpu_usage, left) * 100) / 100
        if share > 0:
            changes.set("actor_gpu_usage", share, "learner and actors share 1 GPU")
    if gpus and config.cluster == "local" and config.number_of_actors:
        check_one_vllm(config)


def check_enough_cards(config: Config, gpus: int) -> None:
    """Raises UserError where an actor's cards would not be its alone."""
    each, learners = config.actor_tensor_parallel, config.number_of_learners
    if each > 1 and gpus < learners + each:
        raise UserError(
            f"actor_tensor_parallel {each}: an actor shares none of its cards, and {gpus} "
            f"{'GPU' if gpus == 1 else 'GPUs'} leave {max(0, gpus - learners)} beside {learners} "
            f"{'learner' if learners == 1 else 'learners'}: leave it out, or add GPUs"
        )


def check_one_vllm(config: Config) -> None:
    """Raises UserError where one process would hold an actor's vLLM and the learner's."""
    if config.engine == "vllm" and config.learner_has_engine:
        raise UserError(
            f"number_of_actors {config.number_of_actors}: with --cluster local one process holds "
            "one vLLM, and the learner generates with its own: set --learner_chunk_size 0, "
            "--number_of_actors 0, or --cluster ray"
        )


def fit_context(changes: Changes, shape: Shape | None) -> None:
    """A prompt and its completion, or whole episode, must fit the model's context. Raises UserError
    if they cannot."""
    config = changes.config
    prompt, new, option = config.max_prompt_tokens, config.episode_tokens, config.length_option
    if shape is None or shape.context is None or prompt + new <= shape.context:
        return
    room = shape.context - prompt
    has_length = search.has_length(config, changes.given)
    if not has_length and room >= min(new, search.LEAST_NEW_TOKENS):
        changes.set(option, room, f"the model's context is {shape.context} tokens")
        return
    remedy = f"set --{option} {room}" if room > 0 else ""
    if shape.context > new:
        remedy += (" or " if remedy else "set ") + f"--max_prompt_tokens {shape.context - new}"
    raise UserError(
        f"max_prompt_tokens {prompt} + {option} {new} = {prompt + new} is over the context "
        f"of {config.model} ({shape.context} tokens): {remedy or 'lower both'}"
    )


def fit_memory(changes: Changes, shape: Shape, machine: Machine) -> None:
    """What was not given, as `--fit` says: lowered until every card holds its processes, or as
    large or fast as they hold; then what the engines may take.

    Raises UserError where the processes cannot be placed on the cards at all.
    """
    start, given = changes.config, changes.given
    resources = Resources.of_machine(start, machine)

    def tightest(config: Config) -> CardPlan:
        config = with_engines(config, given, shape, resources)
        return max(place(config, resources, shape=shape).cards, key=CardPlan.excess_mb)

    def excess(config: Config) -> float:
        return tightest(config).excess_mb()

    card, config = tightest(start), start
    if start.fit != "off":
        config = search.asked_for(start, given, lambda c: excess(c) <= 0, shape) or (
            search.lower(start, given, excess)
        )
    fits = excess(config) <= 0
    why = f"{'fits' if fits else 'the least for'} {_gb(card.gpu.memory_mb)}"
    if card.gpu.free_mb < 0.8 * card.gpu.memory_mb:
        why += f" ({_gb(card.gpu.free_mb)} free)"
    names = ("max_num_seqs", "train_batch_size", "num_candidates", config.length_option)
    for name in names:
        changes.set(name, getattr(config, name), why)
    if not fits and start.fit != "off":
        card = tightest(config)
        changes.note(
            f"this may run out of memory: about {_gb(card.needed_mb())} needed, "
            f"{_gb(card.usable_mb)} usable on {card.gpu.name}: choose a smaller model"
            + (f" or lower --{config.length_option}" if search.has_length(start, given) else "")
        )
    config = with_engines(config, given, shape, resources)
    changes.set("kv_cache_mb", config.kv_cache_mb, "learner and actors share 1 GPU")
    changes.set("learner_gpu_usage", config.learner_gpu_usage, "its engine sleeps while it updates")


def _gb(mb: float) -> str:
    return f"{mb / 1024:.1f}".removesuffix(".0") + " GB"

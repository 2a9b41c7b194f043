"""What a config means: to the learner's objective, on a card, and to vLLM."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unslothrl.algorithms import objectives
from unslothrl.algorithms.objective import Objective, Part
from unslothrl.config.options import MOST_RANK, PARTS, Config
from unslothrl.config.values import read_value
from unslothrl.records import Sampling

FIRST_WITH_BFLOAT16 = (8, 0)  # compute capability of a card, (major, minor)
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, MOST_RANK)  # what vLLM takes as max_lora_rank


def objective_of(config: Config) -> Objective:
    """The learner's objective with the parts that the config sets. Raises UserError."""
    chosen = {name: value for name in PARTS if (value := getattr(config, name)) is not None}
    return replace(objectives.load(config.learner), **chosen)


def with_objective(config: Config) -> Config:
    """The config with every part that is not set as its learner has it. Raises UserError.

    A KL coefficient alone puts the KL into the loss; kl none alone takes its coefficient away.
    """
    if config.kl is None and config.kl_coefficient and objective_of(config).kl == "none":
        config = replace(config, kl="loss")
    if config.kl == "none" and config.kl_coefficient is None:
        config = replace(config, kl_coefficient=0.0)
    learners_kl = objectives.load(config.learner).kl
    if config.kl == "reward" and config.kl_estimator is None and learners_kl != "reward":
        config = replace(config, kl_estimator="k1")  # see algorithms/divergence.py
    objective = objective_of(config)
    named: dict[str, Any] = {}
    for name in PARTS:
        if not isinstance(value := getattr(objective, name), Part):
            named[name] = read_value(name, value, is_flag=False)
    cache = config.overlong_cache
    if cache is None:
        cache = min(1024, config.max_new_tokens // 4) if objective.overlong else 0
    return replace(config, **named, overlong_cache=cache)


def without_parts_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe for another learner: without the parts that are as the recipe's learner has them."""
    usual = with_objective(
        replace(Config(), **{k: recipe[k] for k in ("learner", "max_new_tokens") if k in recipe})
    )
    of_the_learner = (*PARTS, "overlong_cache")
    return {
        name: value
        for name, value in recipe.items()
        if name not in of_the_learner or value != getattr(usual, name)
    }


def without_kl(layer: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A layer of options that has no KL, where `over` may ask for one: how it is estimated, and
    whether a coefficient puts it into the loss, is then settled as in a run from the start."""
    is_idle = layer.get("kl") == "none"
    left = {"kl_estimator"} | ({"kl"} if over.get("kl_coefficient") else set())
    return {name: value for name, value in layer.items() if not (is_idle and name in left)}


def training_sampling(config: Config) -> Sampling:
    """How what is trained on is drawn."""
    lengths = (config.max_new_tokens, config.episode_tokens)
    return Sampling(config.temperature, config.top_p, config.sampling_top_k, *lengths)


def evaluation_sampling(config: Config) -> Sampling:
    lengths = (config.max_new_tokens, config.episode_tokens)
    return Sampling(config.eval_temperature, config.eval_top_p, 0, *lengths)


def dtype_on(config: Config, capability: tuple[int, int] | None) -> str:
    """What the models compute in on a card of that compute capability; None: on a CPU."""
    return half_precision(capability) if config.dtype == "auto" else config.dtype


def half_precision(capability: tuple[int, int] | None) -> str:
    """The 16-bit type of a card: bfloat16 where it has it, as every CPU does. -> its name."""
    is_old = capability is not None and capability < FIRST_WITH_BFLOAT16
    return "float16" if is_old else "bfloat16"


def follows_newest(config: Config) -> bool:
    """Whether completions in flight go on under a version that is loaded meanwhile."""
    return config.partial_rollouts and config.max_staleness > 0


def versions_in_flight(config: Config) -> int:
    """Policy versions that an engine may draw under at a time: those of late rollouts too."""
    return 1 if follows_newest(config) else config.max_staleness + 1


def vllm_rank(rank: int) -> int:
    """The LoRA rank that vLLM reserves memory for where adapters have `rank`."""
    return next(allowed for allowed in VLLM_RANKS if allowed >= rank)

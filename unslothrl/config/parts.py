"""The parts of the learner's objective: what a config sets of them, and what it leaves."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unslothrl.algorithms import objectives
from unslothrl.algorithms.objective import Objective, Part
from unslothrl.config.options import PARTS, Config
from unslothrl.config.values import read_value


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

"""Options that contradict each other. An option that only has no effect is no contradiction, see
option_rules.py.
"""

from unslothrl.algorithms.objective import Objective
from unslothrl.config.options import Config
from unslothrl.config.parts import objective_of
from unslothrl.environments import SINGLE_TURN
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.rewards import choose

MOST_COMPLETIONS = 2**20  # of a step


def check(config: Config) -> None:
    """Raises UserError where options contradict each other."""
    objective = objective_of(config)
    check_candidates(config, objective)
    check_objective(config, objective)
    check_overlap(config)
    check_split(config)
    check_system_prompt(config.system_prompt)
    if config.environment == SINGLE_TURN and not any(r.weight for r in choose(config.reward)):
        raise UserError("reward: every weight is 0, so nothing would be learnt: set NAME=1")
    if config.offload == "model" and config.learner_generates:
        raise UserError(
            "offload model: a learner that generates needs its model on the card: set "
            "--learner_chunk_size 0 and --number_of_actors 1"
        )
    if config.freeze_steps and not objective.has_critic:
        raise UserError(
            f"freeze_steps {config.freeze_steps}: {config.learner} has no critic to train "
            "meanwhile: set --learner ppo, or leave it out"
        )
    if (config.overlong_cache or 0) > config.max_new_tokens:
        raise UserError(
            f"overlong_cache must be at most max_new_tokens ({config.max_new_tokens}), got "
            f"{config.overlong_cache}: set --overlong_cache {config.max_new_tokens // 4}"
        )
    low, high = config.correction_low, config.correction_high
    if low is not None and high is not None and low > high:
        raise UserError(
            f"correction_low {low} is over correction_high {high}: set them the other way round"
        )


def check_system_prompt(text: str | None) -> None:
    """UserError for a file's name in place of the prompt in it."""
    if text and is_file(expanded(text)):
        raise UserError(
            f'system_prompt {text} is a file: give the text itself, --system_prompt "$(cat {text})"'
        )


def check_overlap(config: Config) -> None:
    """Actors that generate while the learner updates, and how many there must be. What shares a
    card cannot: see planning/place.py."""
    stale, actors = config.max_staleness, config.number_of_actors
    if stale and config.cluster == "local":
        raise UserError(
            f"max_staleness {stale}: with --cluster local actors and learners take turns in one "
            "process: set --cluster ray, or --max_staleness 0"
        )
    if stale and not actors:
        raise UserError(
            f"max_staleness {stale}: there are no actors to generate while the learner updates: "
            "set --number_of_actors 1, or --max_staleness 0"
        )
    if not config.min_actors and not config.learner_generates:
        why = f"max_staleness {stale}" if stale else "learner_chunk_size 0"
        raise UserError(
            f"min_actors 0: learners generate nothing ({why}), so a run without actors would wait "
            "forever: set --min_actors 1"
        )
    if 0 < actors < config.min_actors:
        raise UserError(
            f"min_actors {config.min_actors} is over number_of_actors {actors}: set --min_actors "
            f"{actors}, or --number_of_actors {config.min_actors}"
        )


def check_split(config: Config) -> None:
    """Actors whose engine is split over several cards. Whether the model and the cards allow it:
    see planning/tensor_parallel.py."""
    if config.actor_tensor_parallel == 1:
        return
    name = f"actor_tensor_parallel {config.actor_tensor_parallel}"
    if not config.number_of_actors:
        raise UserError(
            f"{name}: there are no actors, and the engine of a learner is on the learner's card "
            "alone: set --number_of_actors 1, or leave it out"
        )
    if config.cluster == "local":
        raise UserError(
            f"{name}: with --cluster local the run is one process on one card: set --cluster ray"
        )
    if config.engine == "transformers":
        raise UserError(
            f"{name}: engine transformers holds its model on one card: set --engine vllm, or leave "
            "it out"
        )


def check_candidates(config: Config, objective: Objective) -> None:
    """How many completions a step has, and how many of them are trained on."""
    if config.num_candidates < 2 and objective.compares_candidates:
        raise UserError(
            f"num_candidates must be at least 2 for {config.learner} (rewards are compared within "
            f"a group), got {config.num_candidates}: set --num_candidates 8"
        )
    if config.completions_per_step > MOST_COMPLETIONS:
        raise UserError(
            f"batch_size {config.batch_size} x num_candidates {config.num_candidates} = "
            f"{config.completions_per_step} completions per step must be at most "
            f"{MOST_COMPLETIONS}: set --batch_size {MOST_COMPLETIONS // config.num_candidates}"
        )
    if config.topk > config.num_candidates:
        raise UserError(
            f"topk must be at most num_candidates ({config.num_candidates}), got {config.topk}: "
            f"set --topk {config.num_candidates} or --num_candidates {config.topk}"
        )
    learns_alone = objective.has_critic or objective.trains_without_advantage
    if config.select == "max_variance" and config.topk < 2 and not learns_alone:
        raise UserError(
            "select max_variance with topk 1: one candidate alone has no advantage: set --topk 2"
        )


def check_objective(config: Config, objective: Objective) -> None:
    """The objective's own parts; `objective` has those that the config sets."""
    if objective.clip_dual and objective.clip_dual <= 1:
        raise UserError(
            f"clip_dual must be over 1, or 0 for off, got {objective.clip_dual}: set --clip_dual 3"
        )
    if objective.filter_low > objective.filter_high:
        raise UserError(
            f"filter_low {objective.filter_low} is over filter_high {objective.filter_high}: no "
            "group can be kept: set --filter_low 0.01 --filter_high 0.99"
        )
    if objective.kl != "none" and not objective.kl_coefficient:
        raise UserError(
            f"kl {objective.kl} has no weight (kl_coefficient 0): set --kl_coefficient 0.04"
        )
    if objective.kl == "none" and objective.kl_coefficient:
        raise UserError(
            f"kl_coefficient {objective.kl_coefficient} without a KL: set --kl loss or --kl reward"
        )

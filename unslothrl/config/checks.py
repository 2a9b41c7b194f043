"""Options that contradict each other. An option that only has no effect is no contradiction, see
option_rules.py.
"""

from collections.abc import Iterator

from unslothrl.algorithms.objective import Objective
from unslothrl.config.options import Config
from unslothrl.config.parts import objective_of
from unslothrl.environments import SINGLE_TURN
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.rewards import choose

MOST_COMPLETIONS = 2**20  # of a step

Check = tuple[bool, str]  # whether options contradict each other, and what to do about it


def check(config: Config) -> None:
    """Raises UserError where options contradict each other."""
    objective = objective_of(config)
    check_system_prompt(config.system_prompt)
    for checks in (of_candidates, of_objective, of_processes):
        for is_wrong, message in checks(config, objective):
            if is_wrong:
                raise UserError(message)


def check_system_prompt(text: str | None) -> None:
    """UserError for a file's name in place of the prompt in it."""
    if text and is_file(expanded(text)):
        raise UserError(
            f'system_prompt {text} is a file: give the text itself, --system_prompt "$(cat {text})"'
        )


def of_candidates(config: Config, objective: Objective) -> Iterator[Check]:
    """How many completions a step has, how many of them are trained on, and what they earn."""
    batch, candidates, topk = config.batch_size, config.num_candidates, config.topk
    yield (
        candidates < 2 and objective.compares_candidates,
        f"num_candidates must be at least 2 for {config.learner} (rewards are compared within a "
        f"group), got {candidates}: set --num_candidates 8",
    )
    yield (
        config.completions_per_step > MOST_COMPLETIONS,
        f"batch_size {batch} x num_candidates {candidates} = {config.completions_per_step} "
        f"completions per step must be at most {MOST_COMPLETIONS}: set --batch_size "
        f"{MOST_COMPLETIONS // candidates}",
    )
    yield (
        topk > candidates,
        f"topk must be at most num_candidates ({candidates}), got {topk}: set --topk {candidates} "
        f"or --num_candidates {topk}",
    )
    learns_alone = objective.has_critic or objective.trains_without_advantage
    yield (
        config.select == "max_variance" and topk < 2 and not learns_alone,
        "select max_variance with topk 1: one candidate alone has no advantage: set --topk 2",
    )
    yield (
        config.environment == SINGLE_TURN and not any(r.weight for r in choose(config.reward)),
        "reward: every weight is 0, so nothing would be learnt: set NAME=1",
    )


def of_objective(config: Config, objective: Objective) -> Iterator[Check]:
    """The objective's own numbers; `objective` has those that the config sets."""
    dual, low, high = objective.clip_dual, objective.filter_low, objective.filter_high
    cache, most = config.overlong_cache or 0, config.max_new_tokens
    yield (
        bool(dual) and dual <= 1,
        f"clip_dual must be over 1, or 0 for off, got {dual}: set --objective.clip_dual 3",
    )
    yield (
        low > high,
        f"filter_low {low} is over filter_high {high}: no group can be kept: set "
        "--objective.filter_low 0.01 --objective.filter_high 0.99",
    )
    kl, weight = objective.kl, objective.kl_coefficient
    yield (
        kl != "none" and not weight,
        f"kl {kl} has no weight (kl_coefficient 0): set --objective.kl_coefficient 0.04",
    )
    yield (
        kl == "none" and bool(weight),
        f"kl_coefficient {weight} without a KL: set --objective.kl loss, or reward",
    )
    yield (
        bool(config.freeze_steps) and not objective.has_critic,
        f"freeze_steps {config.freeze_steps}: {config.learner} has no critic to train meanwhile: "
        "set --learner ppo, or leave it out",
    )
    yield (
        cache > most,
        f"overlong_cache must be at most max_new_tokens ({most}), got {cache}: set "
        f"--objective.overlong_cache {most // 4}",
    )
    least, largest = config.correction_low, config.correction_high
    yield (
        least is not None and largest is not None and least > largest,
        f"correction_low {least} is over correction_high {largest}: set them the other way round",
    )


def of_processes(config: Config, objective: Objective) -> Iterator[Check]:
    """What actors and learners do. What shares a GPU: see planning/place.py; whether the model can
    be split: see planning/tensor_parallel.py."""
    stale, actors, fewest = config.max_staleness, config.number_of_actors, config.min_actors
    is_local = config.cluster == "local"
    yield (
        config.offload == "model" and config.learner_generates,
        "offload model: a learner that generates needs its model on the GPU: set "
        "--learner_chunk_size 0 and --number_of_actors 1",
    )
    yield (
        bool(stale) and is_local,
        f"max_staleness {stale}: with --cluster local actors and learners take turns in one "
        "process: set --cluster ray, or --max_staleness 0",
    )
    yield (
        bool(stale) and not actors,
        f"max_staleness {stale}: there are no actors to generate while the learner updates: set "
        "--number_of_actors 1, or --max_staleness 0",
    )
    why = f"max_staleness {stale}" if stale else "learner_chunk_size 0"
    yield (
        not fewest and not config.learner_generates,
        f"min_actors 0: learners generate nothing ({why}), so a run without actors would wait "
        "forever: set --min_actors 1",
    )
    yield (
        0 < actors < fewest,
        f"min_actors {fewest} is over number_of_actors {actors}: set --min_actors {actors}, or "
        f"--number_of_actors {fewest}",
    )
    split = config.actor_tensor_parallel
    if split == 1:
        return
    yield (
        not actors,
        f"actor_tensor_parallel {split}: there are no actors, and the engine of a learner is on "
        "the learner's GPU alone: set --number_of_actors 1, or leave it out",
    )
    yield (
        is_local,
        f"actor_tensor_parallel {split}: with --cluster local the run is one process on one GPU: "
        "set --cluster ray",
    )
    yield (
        config.engine == "transformers",
        f"actor_tensor_parallel {split}: engine transformers holds its model on one GPU: set "
        "--engine vllm, or leave it out",
    )

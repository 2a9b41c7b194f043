"""What a run says of itself before its first step."""

from collections.abc import Sequence

from unslothrl import rewards
from unslothrl.cluster.base import counted
from unslothrl.config.options import Config
from unslothrl.config.toml_files import EMBEDDED_RECIPE
from unslothrl.data.tasks import Data, FiniteTasks
from unslothrl.embedded import EMBEDDED
from unslothrl.environments import SINGLE_TURN


def header(config: Config, data: Data, steps: int, notes: Sequence[str]) -> list[str]:
    """A title and lines for it: who does what, for which reward, on how much data."""
    lines = [
        f"{config.learner} on {config.dataset}, base {config.model}",
        f"{counted(config.number_of_actors, 'actor')} ({config.engine}), "
        f"{counted(config.number_of_learners, 'learner')} ({config.backend}), "
        f"cluster {config.cluster}",
        *facts(config, data),
        f"{counted(steps, 'step')}: {counted(config.batch_size, 'prompt')} each, "
        f"{counted(config.num_candidates, 'episode' if config.has_environment else 'completion')} "
        f"a prompt of at most {config.episode_tokens} tokens",
    ]
    if config.model == EMBEDDED:
        lines.append(f"options that are not set: recipe {EMBEDDED_RECIPE}")
    lines += notes
    if config.max_staleness:
        lines.append(overlap_line(config))
    if config.top_p < 1 or config.sampling_top_k:
        lines.append(
            "warning: top_p and sampling_top_k leave out tokens that the learner does not: "
            "the ratio of policy and sampler is biased"
        )
    return [*lines, *data.notes]


def facts(config: Config, data: Data) -> list[str]:
    """The rewards with what a full mark of each earns, and the sizes of the splits."""
    chosen = rewards.choose(config.reward)
    parts = [f"{each.weight:g} x {each.name}" for each in chosen]
    if config.environment != SINGLE_TURN:
        parts.append("the environment's")
    earned = " + ".join(parts)
    return [f"reward: {earned}", f"data: {', '.join(sizes(data))}"]


def sizes(data: Data) -> list[str]:
    """How many problems there are to train on, and in each evaluation set."""
    train = "problems without end"
    if isinstance(data.train, FiniteTasks):
        train = counted(len(data.train.tasks), "problem")
    return [
        f"{train} to train on",
        *(f"{len(tasks)} to evaluate on ({name})" for name, tasks in data.evals.items()),
    ]


def overlap_line(config: Config) -> str:
    """What `--max_staleness` means for the run."""
    return (
        f"rollouts may be {counted(config.max_staleness, 'version')} old: correction "
        f"{config.correction}; learners generate nothing"
        + (", completions go on under new versions" if config.partial_rollouts else "")
    )

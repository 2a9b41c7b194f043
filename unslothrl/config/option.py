"""What a field of `Config` says of its option: default, help, group, limits; and the first groups
of options: model and data, run, sampling, environment, objective."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

TASK = "Model and data"
OBJECTIVE = "Objective"  # written --objective.NAME, and in the section [objective] of a TOML file


def option(default: Any, help: str, group: str, **more: Any) -> Any:
    """A field of `Config`. `more`: over, at_least, at_most (numbers), choices (strings), unit (for
    the help), commas (whether several values may be separated by them)."""
    return field(default=default, metadata={"help": help, "group": group, **more})


run = partial(option, group="Run")
task = partial(option, group=TASK)
episode = partial(option, group="Environment")
sampling = partial(option, group="Sampling")
training = partial(option, group="Training")
objective = partial(option, group=OBJECTIVE)
lora = partial(option, group="LoRA")
evaluation = partial(option, group="Evaluation and saving")
hardware = partial(option, group="Hardware")


def part(help: str, **more: Any) -> Any:
    """An option that overrides the part of that name of the learner's `Objective`."""
    return objective(None, f"{help}; default: the learner's", is_part=True, **more)


@dataclass(frozen=True)
class TaskOptions:
    model: str = task(
        "unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "base model: hub id, folder, or embedded"
    )
    dataset: str = task(
        "openai/gsm8k:main",
        "training problems: hub id, file or folder, NAME@SPLIT[:1000], or embedded",
    )
    eval_dataset: tuple[str, ...] = task(
        (),
        "evaluation problems: a source, NAME=SOURCE, or a JSON map of them; may be repeated; "
        "default: the training set's test split or held-out share",
    )
    holdout: float = task(
        0.1,
        "share of the problems held out for evaluation if a set has no test split",
        over=0,
        at_most=0.9,
    )
    prompt_column: str | None = task(
        None, "column of the problem or conversation, e.g. extra.text; default: detected"
    )
    answer_column: str | None = task(
        None, "column of the gold answer, e.g. extra_info.answer; default: detected"
    )
    system_prompt: str | None = task(
        None,
        "system prompt, which replaces the data's own; default: the data's, else the adapter's, "
        "else the reward's, none for the embedded base and problems",
    )
    max_prompt_tokens: int = task(
        350, "longest prompt; longer ones are dropped and counted", at_least=1, unit="tokens"
    )

    reward: tuple[str, ...] = task(
        (),
        "what a completion earns: NAME, NAME=WEIGHT or file.py:function; several with commas, or "
        "repeated; the first decides what is reported as correct; default: accuracy, format, tags",
        commas=True,
    )
    reward_timeout: float = task(
        5.0, "a completion whose reward takes longer gets 0", over=0, unit="s"
    )
    allow_unsandboxed_code: bool = task(
        False, "run the model's code with limits only, if it cannot be sandboxed"
    )

    run_name: str | None = run(None, "folder of the run; default: <learner>-<date>-<time>")
    output_dir: str = run("runs", "folder that holds the runs")
    recipe: str | None = run(None, "recipe: a .toml file, or a name in recipes/")
    resume: str | None = run(
        None,
        "folder of a run to continue, or its URL in a mirror; auto: the newest run of these "
        "options, or a new one",
    )
    seed: int = run(0, "random seed", at_least=0, at_most=2**31 - 1)
    max_steps: int | None = run(
        None, "stop after this many steps; default: after the episodes", at_least=1
    )
    episodes: int = run(15, "passes over the training problems", at_least=1)
    track: tuple[str, ...] = run(
        (),
        "tracker that also gets metrics, config and samples; may be repeated; none ends tracking "
        "in a resumed run",
        choices=("tensorboard", "trackio", "wandb", "none"),
        commas=True,
    )
    project_name: str | None = run(
        None,
        "project of the run in the trackers; default: that of the tracker's variable, else "
        "unslothrl",
    )
    profile: int = run(
        0,
        "steps to record with torch's profiler, after the run's first step; 0 = off",
        at_least=0,
        at_most=20,
        unit="steps",
    )

    batch_size: int = sampling(
        30, "prompts per step, over all generators", at_least=1, unit="prompts"
    )
    num_candidates: int = sampling(16, "completions per prompt", at_least=1, unit="completions")
    topk: int = sampling(
        16, "candidates per prompt to train on, chosen by select", at_least=1, unit="completions"
    )
    max_new_tokens: int = sampling(1200, "longest completion", at_least=1, unit="tokens")
    temperature: float = sampling(1.2, "sampling temperature", over=0, at_most=2)
    top_p: float = sampling(1.0, "nucleus sampling, 1 = off", over=0, at_most=1)
    sampling_top_k: int = sampling(0, "sample from the k likeliest tokens, 0 = off", at_least=0)


@dataclass(frozen=True)
class EnvironmentOptions:
    environment: str = episode(
        "single_turn", "environment that the model acts in: a name, or file.py:Class"
    )
    environment_options: tuple[str, ...] = episode(
        (), "arguments of the environment, KEY=VALUE; may be repeated"
    )
    tools: tuple[str, ...] = episode(
        (),
        "python, search:FILE, or file.py whose functions the model may call; may be repeated",
        commas=True,
    )
    max_turns: int | None = episode(
        None,
        "turns of the model in an episode; default: the environment's, else 10",
        at_least=1,
    )
    max_episode_tokens: int | None = episode(
        None,
        "tokens of an episode after its prompt, those of the environment included; default: "
        "max_new_tokens",
        at_least=1,
        unit="tokens",
    )
    max_tool_calls: int = episode(
        100, "calls of tools in an episode; further ones are answered by an error", at_least=1
    )
    environment_timeout: float = episode(
        60.0,
        "an episode whose environment takes longer to answer is lost",
        over=0,
        unit="s",
    )
    environment_memory_mb: int = episode(
        4096,
        "memory that an environment may allocate in an episode; 0: any amount",
        at_least=0,
        unit="MB",
    )
    environment_python: str | None = episode(
        None, "Python interpreter of the environment, with its own packages; default: this one"
    )


@dataclass(frozen=True)
class ObjectiveOptions:
    advantage: str | None = part(
        "how a reward becomes an advantage; your own is in a file for --learner",
        choices=("centred", "standardised", "batch_standardised", "leave_one_out", "gae"),
    )
    advantage_std: str | None = part(
        "standard deviation used for standardising: over n, or n - 1",
        choices=("population", "sample"),
    )
    advantage_epsilon: float | None = part(
        "number added to what the advantage is divided by", at_least=0, at_most=1
    )
    ratio: str | None = part(
        "ratio of the policy to the old policy", choices=("token", "sequence", "trajectory", "one")
    )
    clip: str | None = part("how the ratio is clipped", choices=("surrogate", "weight", "none"))
    clip_low: float | None = part("clip the ratio at 1 - this value", at_least=0, at_most=1)
    clip_high: float | None = part("clip the ratio at 1 + this value", at_least=0)
    clip_dual: float | None = part(
        "bound of the loss for negative advantages, over 1; 0 = off", at_least=0
    )
    skip_threshold: float | None = part(
        "leave out sequences whose mean ratio is over this value, 0 = off", at_least=0
    )
    aggregation: str | None = part(
        "what the loss averages over", choices=("token", "sequence", "constant")
    )
    kl: str | None = part(
        "where the KL against the reference is added", choices=("none", "loss", "reward")
    )
    kl_estimator: str | None = part("how the KL is estimated", choices=("k1", "k2", "k3"))
    kl_coefficient: float | None = part("weight of the KL", at_least=0)
    entropy_coefficient: float | None = part("weight of the entropy bonus", at_least=0)
    correction: str | None = part(
        "correction for the difference between sampler and learner",
        choices=("none", "truncated", "masked", "geometric"),
    )
    correction_low: float | None = part(
        "lower bound of the correction (if the learner has none, the usual one)", at_least=0
    )
    correction_high: float | None = part(
        "upper bound of the correction (if the learner has none, the usual one)", over=0
    )
    mask_truncated: bool | None = part("leave truncated completions out of the loss")
    overlong_cache: int | None = objective(
        None,
        "length of the range before max_new_tokens (or max_episode_tokens) that is softly "
        "punished, 0 = off; default: the learner's",
        at_least=0,
        unit="tokens",
    )
    filter_low: float | None = part(
        "lowest accuracy of a group that is trained on", at_least=0, at_most=1
    )
    filter_high: float | None = part(
        "highest accuracy of a group that is trained on", at_least=0, at_most=1
    )
    max_resample: int | None = part(
        "maximum number of redraws of prompts for groups that were filtered out",
        at_least=0,
        at_most=100,
    )
    gamma: float = objective(1.0, "discount factor of gae", over=0, at_most=1)
    gae_lambda: float = objective(
        0.95, "lambda of gae: 1 trusts rewards, 0 the critic", at_least=0, at_most=1
    )
    critic_lr: float | None = objective(
        None, "learning rate of the critic; default: lr", over=0, at_most=1
    )
    value_clip: float = objective(0.2, "clip range of the critic's values, 0 = off", at_least=0)
    freeze_steps: int = objective(
        0, "first steps, in which only the critic is trained", at_least=0, unit="steps"
    )
    turn_rewards: str = objective(
        "sum",
        "how the rewards of an episode's turns are combined",
        choices=("sum", "last", "discounted"),
    )
    turn_discount: float = objective(
        0.9,
        "factor by which each later turn's reward counts less, with turn_rewards discounted",
        over=0,
        at_most=1,
    )
    normalize_reward_model: bool = objective(
        True,
        "scale the score of a reward model, rm:runs/NAME, to mean 0 and standard deviation 1 on "
        "its own evaluation pairs",
    )

"""The first options of the table: the model and its task, the run, how completions are drawn."""

from dataclasses import dataclass

from unslothrl.config.option import RUN, SAMPLING, TASK, option


@dataclass(frozen=True)
class TaskOptions:
    """See `options.Config`, which has all of them."""

    model: str = option(
        "unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "base model: hub id, folder, or embedded", TASK
    )
    dataset: str = option(
        "HuggingFaceH4/MATH-500",
        "training problems: hub id, file or folder, NAME@SPLIT[:1000], or embedded",
        TASK,
    )
    eval_dataset: tuple[str, ...] = option(
        (),
        "evaluation problems: a source, NAME=SOURCE, or a JSON map of them; may be repeated; "
        "default: the training set's test split or held-out share",
        TASK,
    )
    holdout: float = option(
        0.1,
        "share of the problems held out for evaluation if a set has no test split",
        TASK,
        over=0,
        at_most=0.9,
    )
    prompt_column: str | None = option(
        None, "column of the problem or conversation, e.g. extra.text; default: detected", TASK
    )
    answer_column: str | None = option(
        None, "column of the gold answer, e.g. extra_info.answer; default: detected", TASK
    )
    system_prompt: str | None = option(
        None,
        "system prompt, which replaces the data's own; default: the data's, else the adapter's, "
        "else the reward's, none for the embedded base and problems",
        TASK,
    )
    max_prompt_tokens: int = option(
        350, "longest prompt; longer ones are dropped and counted", TASK, at_least=1, unit="tokens"
    )

    reward: tuple[str, ...] = option(
        (),
        "what a completion earns: NAME, NAME=WEIGHT or file.py:function; several with commas, or "
        "repeated; the first decides what is reported as correct; default: accuracy, format, tags",
        TASK,
        commas=True,
    )
    normalize_reward_model: bool = option(
        True,
        "score of a reward model, rm:runs/NAME, less its mean and over its standard deviation on "
        "its own evaluation pairs",
        TASK,
    )
    reward_timeout: float = option(
        5.0, "a completion whose reward takes longer gets 0", TASK, over=0, at_most=3600, unit="s"
    )
    allow_unsandboxed_code: bool = option(
        False, "run the model's code with limits only, if it cannot be sandboxed", TASK
    )

    run_name: str | None = option(None, "folder of the run; default: <learner>-<date>-<time>", RUN)
    output_dir: str = option("runs", "folder that holds the runs", RUN)
    recipe: str | None = option(None, "recipe: a .toml file, or a name in recipes/", RUN)
    resume: str | None = option(
        None,
        "folder of a run to continue, or its URL in a mirror; auto: the newest run of these "
        "options, or a new one",
        RUN,
    )
    seed: int = option(0, "random seed", RUN, at_least=0, at_most=2**31 - 1)
    max_steps: int | None = option(
        None, "stop after this many steps; default: after the episodes", RUN, at_least=1
    )
    episodes: int = option(15, "passes over the training problems", RUN, at_least=1)
    track: tuple[str, ...] = option(
        (),
        "tracker that also gets metrics, config and samples; may be repeated; none ends tracking "
        "in a resumed run",
        RUN,
        choices=("tensorboard", "trackio", "wandb", "none"),
        commas=True,
    )
    project_name: str | None = option(
        None,
        "project of the run in the trackers; default: that of the tracker's variable, else "
        "unslothrl",
        RUN,
    )
    profile: int = option(
        0,
        "steps to record with torch's profiler, after the run's first step; 0 = off",
        RUN,
        at_least=0,
        at_most=20,
        unit="steps",
    )

    batch_size: int = option(
        30, "prompts per step, over all generators", SAMPLING, at_least=1, unit="prompts"
    )
    num_candidates: int = option(
        16, "completions per prompt", SAMPLING, at_least=1, unit="completions"
    )
    topk: int = option(
        16,
        "candidates per prompt to train on, chosen by select",
        SAMPLING,
        at_least=1,
        unit="completions",
    )
    max_new_tokens: int = option(1200, "longest completion", SAMPLING, at_least=1, unit="tokens")
    temperature: float = option(1.2, "sampling temperature", SAMPLING, over=0, at_most=2)
    top_p: float = option(1.0, "nucleus sampling, 1 = off", SAMPLING, over=0, at_most=1)
    sampling_top_k: int = option(
        0, "sample from the k likeliest tokens, 0 = off", SAMPLING, at_least=0
    )

"""The first options of the table: model and data, run, sampling, environment."""

from dataclasses import dataclass

from unslothrl.config.option import environment as episode
from unslothrl.config.option import run, sampling, task


@dataclass(frozen=True)
class TaskOptions:
    """See `options.Config`, which has all of them."""

    model: str = task(
        "unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "base model: hub id, folder, or embedded"
    )
    dataset: str = task(
        "HuggingFaceH4/MATH-500",
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
        unused=("with dataset embedded", "with eval_dataset"),
    )
    prompt_column: str | None = task(
        None,
        "column of the problem or conversation, e.g. extra.text; default: detected",
        unused="with dataset embedded",
    )
    answer_column: str | None = task(
        None,
        "column of the gold answer, e.g. extra_info.answer; default: detected",
        unused="with dataset embedded",
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
        5.0,
        "a completion whose reward takes longer gets 0",
        over=0,
        at_most=3600,
        unit="s",
        unused="without a reward that can stall",
    )
    allow_unsandboxed_code: bool = task(
        False,
        "run the model's code with limits only, if it cannot be sandboxed",
        unused="without a reward that runs programs",
    )

    run_name: str | None = run(
        None, "folder of the run; default: <learner>-<date>-<time>", unused="with resume"
    )
    output_dir: str = run("runs", "folder that holds the runs", unused="with resume")
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
    episodes: int = run(
        15, "passes over the training problems", at_least=1, unused="with dataset embedded"
    )
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
        unused="without track",
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
        16,
        "candidates per prompt to train on, chosen by select",
        at_least=1,
        no_more_than="num_candidates",
        unit="completions",
        unused="with select all",
    )
    max_new_tokens: int = sampling(1200, "longest completion", at_least=1, unit="tokens")
    temperature: float = sampling(1.2, "sampling temperature", over=0, at_most=2)
    top_p: float = sampling(1.0, "nucleus sampling, 1 = off", over=0, at_most=1)
    sampling_top_k: int = sampling(0, "sample from the k likeliest tokens, 0 = off", at_least=0)


@dataclass(frozen=True)
class EnvironmentOptions:
    """See `options.Config`, which has all of them."""

    environment: str = episode(
        "single_turn", "environment that the model acts in: a name, or file.py:Class", unused=()
    )
    environment_options: tuple[str, ...] = episode(
        (),
        "arguments of the environment, KEY=VALUE; may be repeated",
        unused=("without environment or tools", "with environment single_turn"),
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
        at_most=1000,
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
        at_most=3600,
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

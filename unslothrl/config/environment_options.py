"""The options of episodes: what answers the policy between its turns."""

from dataclasses import dataclass

from unslothrl.config.option import ENVIRONMENT, option


@dataclass(frozen=True)
class EnvironmentOptions:
    """See `options.Config`, which has all of them."""

    environment: str = option(
        "single_turn",
        "what answers the model between its turns: a name, or file.py:Class",
        ENVIRONMENT,
    )
    environment_options: tuple[str, ...] = option(
        (), "what the environment is made with, KEY=VALUE; may be repeated", ENVIRONMENT
    )
    tools: tuple[str, ...] = option(
        (),
        "python, search:FILE, or file.py whose functions the model may call; may be repeated",
        ENVIRONMENT,
        commas=True,
    )
    max_turns: int | None = option(
        None,
        "turns of the model in an episode; default: the environment's, else 10",
        ENVIRONMENT,
        at_least=1,
        at_most=1000,
    )
    max_episode_tokens: int | None = option(
        None,
        "tokens of an episode after its prompt, those of the environment included; default: "
        "max_new_tokens",
        ENVIRONMENT,
        at_least=1,
        unit="tokens",
    )
    max_tool_calls: int = option(
        100, "calls of tools in an episode; further ones are answered by an error", ENVIRONMENT,
        at_least=1,
    )  # fmt: skip
    turn_rewards: str = option(
        "sum",
        "how the rewards that an environment gives in an episode are made one",
        ENVIRONMENT,
        choices=("sum", "last", "discounted"),
    )
    turn_discount: float = option(
        0.9, "by which each later turn's reward counts less, with turn_rewards discounted",
        ENVIRONMENT, over=0, at_most=1,
    )  # fmt: skip
    environment_timeout: float = option(
        60.0, "an episode whose environment takes longer to answer is lost", ENVIRONMENT, over=0,
        at_most=3600, unit="s",
    )  # fmt: skip
    environment_memory_mb: int = option(
        4096, "memory that an environment may allocate in an episode; 0: any amount", ENVIRONMENT,
        at_least=0, unit="MB",
    )  # fmt: skip
    environment_python: str | None = option(
        None, "Python that runs the environment, with packages of its own; default: this one",
        ENVIRONMENT,
    )  # fmt: skip
    renderer: str = option(
        "auto",
        "what writes and reads turns: auto, template (the tokenizer's own), or a name of the "
        "package renderers",
        ENVIRONMENT,
    )

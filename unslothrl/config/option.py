"""A field of `Config` that is an option: its default, help, group and limits."""

from dataclasses import field
from typing import Any

# More than any run takes: what is larger is a slip, and would fail late or never end.
MOST = {
    "tokens": 2**20,
    "prompts": 65_536,
    "sequences": 65_536,
    "completions": 1024,
    "problems": 10_000,  # all of them are rendered before the run
    "MB": 2**22,
}
MOST_NUMBER = 1_000_000  # of steps, and of what has no unit

RUN = "Run"
TASK = "Model and data"
ENVIRONMENT = "Environment"
SAMPLING = "Sampling"
TRAINING = "Training"
OBJECTIVE = "Objective"
LORA = "LoRA"
EVALUATION = "Evaluation and saving"
HARDWARE = "Hardware"


def option(default: Any, help: str, group: str, **limits: Any) -> Any:
    """A field of `Config`.

    `limits`: over, at_least, at_most (numbers), choices (strings), unit (for the help). A number
    without at_most gets its unit's.
    """
    if limits.keys() & {"over", "at_least"}:
        limits.setdefault("at_most", MOST.get(limits.get("unit", ""), MOST_NUMBER))
    return field(default=default, metadata={"help": help, "group": group, **limits})


def part(help: str, **limits: Any) -> Any:
    """An option that overrides the part of that name of the learner's `Objective`."""
    return option(None, f"{help}; default: the learner's", OBJECTIVE, is_part=True, **limits)

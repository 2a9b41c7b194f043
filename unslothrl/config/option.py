"""What a field of `Config` says of its option: default, help, group, limits, when it is unused."""

from dataclasses import field
from functools import partial
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
OBJECTIVE = "Objective"  # written --objective.NAME, and in the section [objective] of a TOML file
LORA = "LoRA"
EVALUATION = "Evaluation and saving"
HARDWARE = "Hardware"


def option(
    default: Any, help: str, group: str, unused: str | tuple[str, ...] = (), **more: Any
) -> Any:
    """A field of `Config`.

    `unused`: conditions, each of which alone leaves the option without effect, see rules.py.
    `more`: over, at_least, at_most (numbers), choices (strings), unit (for the help), commas
    (whether several values may be separated by them), refused (conditions as in `unused`, under
    which the option has to be left out), no_more_than (the name of another option). A number
    without at_most gets its unit's.
    """
    if more.keys() & {"over", "at_least"}:
        more.setdefault("at_most", MOST.get(more.get("unit", ""), MOST_NUMBER))
    conditions = (unused,) if isinstance(unused, str) else unused
    metadata = {"help": help, "group": group, "unused": conditions, **more}
    return field(default=default, metadata=metadata)


run = partial(option, group=RUN)
task = partial(option, group=TASK)
environment = partial(option, group=ENVIRONMENT, unused="without environment or tools")
sampling = partial(option, group=SAMPLING)
training = partial(option, group=TRAINING)
objective = partial(option, group=OBJECTIVE)
lora = partial(option, group=LORA)
evaluation = partial(option, group=EVALUATION)
hardware = partial(option, group=HARDWARE)


def part(help: str, **more: Any) -> Any:
    """An option that overrides the part of that name of the learner's `Objective`."""
    return objective(None, f"{help}; default: the learner's", is_part=True, **more)

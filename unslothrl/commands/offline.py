"""`unslothrl sft`, `dpo` and `rm`: train on what is written already."""

from collections.abc import Mapping
from typing import Any

from unslothrl.commands.flags import given, with_options
from unslothrl.config.offline_options import TABLES


def sft(**flags: str | bool | list[str] | None) -> int:
    """Teach a LoRA to answer as written examples do (TRL's SFTTrainer)."""
    return train("sft", given(flags))


def dpo(**flags: str | bool | list[str] | None) -> int:
    """Train a LoRA on pairs of a better and a worse answer (TRL's DPOTrainer)."""
    return train("dpo", given(flags))


def rm(**flags: str | bool | list[str] | None) -> int:
    """Train a reward model on pairs of a better and a worse answer (TRL's RewardTrainer)."""
    return train("rm", given(flags))


def with_its_options(function: Any) -> Any:
    """One of those above, with the flags of the command of its name."""
    table = TABLES[function.__name__]
    return with_options(function, tuple(table.options), table)


def train(command: str, flags: Mapping[str, Any]) -> int:
    """-> the exit code of the run. UserError for a wrong flag, before torch is imported."""
    from unslothrl.mirror import fetching
    from unslothrl.offline.resolve import resolve

    stage = resolve(command, flags, fetching.fetch)
    from unslothrl.offline.run import run

    return run(stage)

"""Reinforcement learning on your own GPU that tells you whether it worked.

From Python: `unslothrl.train`, `sft`, `dpo`, `rm`, `evaluate` and `Run`; see commands/api.py.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["Run", "dpo", "evaluate", "rm", "sft", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("unslothrl.commands.api"), name)

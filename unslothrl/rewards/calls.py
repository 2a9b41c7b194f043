"""Calls that are made in reward processes, and their results."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A function, "module:function" or "file.py:function", and its arguments: JSON values.

    `group`: once a call of a group has returned False, the rest of the group is skipped.
    `deadline_s`: None: that of the pool. `may_load`: its first call in a process may load a model,
    see `loading`.
    """

    function: str
    arguments: tuple = ()
    named: dict[str, Any] = field(default_factory=dict)
    group: int | None = None
    deadline_s: float | None = None
    may_load: bool = False


@dataclass(frozen=True)
class Result:
    """What a call returned. `error` says why there is no value: what was raised, or that the
    deadline passed."""

    value: Any = None
    error: str | None = None
    seconds: float = 0.0
    skipped: bool = False

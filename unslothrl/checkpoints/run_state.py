"""Where the loop of a run stands, as a checkpoint has it: JSON, no pickle."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from unslothrl.checkpoints import codec
from unslothrl.records import Group, Task

UNKNOWN = Task("", "", "", "", ())  # until the data is there


@dataclass
class RunState:
    """Where the loop stands. Seeds follow from the step, so there is no more to it."""

    step: int = 0  # finished steps
    position: int = 0  # tasks drawn
    skipped_in_a_row: int = 0  # updates that were not finite, up to now
    policy_version: int = 0
    samples_seen: int = 0
    seconds: float = 0.0
    outstanding: list[int] = field(default_factory=list)  # positions drawn and not trained on yet
    batches: list[int] = field(default_factory=list)  # sizes of the batches drawn ahead
    evals: list[dict[str, Any]] | None = None
    """[{"step", "eval/<set>/pass@1", ..., "timing/eval_s"}]"""
    unlogged: dict[str, Any] | None = None
    """Metrics of the last step, while its evaluation is to come"""
    data: dict[str, str] = field(default_factory=dict)  # fingerprints of the data sets
    base: str = ""  # hash of the 4-bit weights
    versions: dict[str, str] = field(default_factory=dict)  # of the packages that matter


def to_json(state: RunState) -> bytes:
    """Not-a-number and infinity among the metrics are as Python writes them."""
    return codec.dumps(state, indent=2)


def from_json(text: bytes) -> RunState:
    """Raises ValueError, TypeError or RecursionError for anything but what `to_json` writes."""
    return codec.decoded(RunState, json.loads(text))


@dataclass(frozen=True, slots=True)
class Ahead:
    """A group that was drawn ahead (`--max_staleness`), is complete, and was not trained on yet.
    Its task follows from its position in the data."""

    position: int
    attempt: int  # how often it was too old before
    group: Group

    def of(self, task: Task) -> Group:
        """The group of that task, which is the one of before."""
        return replace(self.group, task=task)


def to_jsonl(groups: Iterable[Ahead]) -> bytes:
    """A line for each group: tokens, log-probabilities to the last bit, versions and rewards."""
    return b"".join(codec.dumps(replace(each, group=each.of(UNKNOWN))) + b"\n" for each in groups)


def from_jsonl(content: bytes) -> tuple[Ahead, ...]:
    """As `from_json`."""
    return tuple(codec.decoded(Ahead, json.loads(line)) for line in content.splitlines())

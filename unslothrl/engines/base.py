"""What the rollout side asks of an inference engine."""

from collections.abc import Callable, Sequence
from typing import Protocol

from unslothrl.types import Adapter, Completion, Request

Progress = Callable[[int, int], None]
"""Called with (completions finished, tokens sampled) since the start of one `generate`."""

Finished = Callable[[int, Completion], None]
"""Called with a request's index and its result as soon as that is there."""


def ignore(index: int, sampled: Completion) -> None:
    """Where nobody waits for single results."""


def longest_first(requests: Sequence[Request]) -> list[int]:
    """Indices by length of prompt; those of a group stay together."""
    return sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))


class Engine(Protocol):
    """Draws completions from the base under one adapter version."""

    def load(self, adapter: Adapter) -> None:
        """Makes `adapter` the policy of every later `generate`; earlier versions are unloaded."""

    def generate(
        self,
        requests: Sequence[Request],
        progress: Progress,
        finished: Finished = ignore,
    ) -> list[Completion]:
        """One result a request, in their order, each drawn with its own seed. Long prompts start
        first, so that none is left to run alone at the end.

        Every result carries the log-probabilities of the distribution that was sampled from
        (after temperature, top-p and top-k) and the adapter version it was drawn under.
        """

    def fingerprint(self) -> str:
        """A hash of the packed 4-bit weights of the base; "" for a base that is not 4-bit."""

    def memory_mb(self) -> float:
        """Peak memory of this process, in MB: see `memory.peak_memory_mb`."""

    def close(self) -> None:
        """Frees what the engine holds."""

"""What every process of a run must agree on before it works, at the start and when one is started
again."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unslothrl.cluster.base import Cluster, everyone
from unslothrl.cluster.handles import Call, GeneratorHandle, LearnerHandle
from unslothrl.errors import ProcessLost, RunError, UserError
from unslothrl.weights.adapter import AdapterShape

MOST_STARTS = 3  # of a process, before the first step


@dataclass
class Checks:
    """Of one run. `calls` begins them in a process, `check` judges what came of them."""

    level: str | None = None  # of the sandbox, the same everywhere; None: no programs are run
    base_hash: str = ""  # of the 4-bit base, as the first process has it
    shape: AdapterShape | None = None  # of the run's adapters; None: no canary
    learners_generate: bool = False  # so that they have a canary too

    def ask_shape(self, cluster: Cluster) -> None:
        """From now on every process that draws has a canary: see `Engine.canary`."""
        (self.shape,) = cluster.gather([cluster.learners[0].adapter_shape()])

    def check_started(self, cluster: Cluster, note: Callable[[str], None]) -> None:
        """`ask_shape` and `check_all` of a cluster that has just started. A process that dies or
        hangs meanwhile is started again, which `note` is called with."""
        starts: Counter[str] = Counter()
        while True:
            try:
                self.ask_shape(cluster)
                return self.check_all(cluster)
            except ProcessLost as error:
                starts[error.name] += 1
                known = any(error.name == handle.name for handle in everyone(cluster))
                if not known or starts[error.name] == MOST_STARTS:
                    raise
                note(f"{error}: started again")
                cluster.start_again(error.name)

    def calls(self, handle: GeneratorHandle) -> list[Call[Any]]:
        begun: list[Call[Any]] = [handle.use_level(self.level), handle.fingerprint()]
        draws = self.learners_generate or not isinstance(handle, LearnerHandle)
        if self.shape is not None and draws:  # it raises by itself
            begun.append(handle.canary(self.shape))
        return begun

    def check(self, name: str, results: Sequence[Any]) -> None:
        """Raises UserError where a process cannot sandbox programs as the others do, RunError where
        it holds another base."""
        refusal, base_hash, *_ = results
        if refusal is not None:
            raise UserError(f"{name}: {refusal}")
        self.base_hash = self.base_hash or base_hash
        if base_hash != self.base_hash:
            raise RunError(
                f"{name} holds a different 4-bit base ({base_hash}) than the other processes "
                f"({self.base_hash}): the same --model must be the same files on every node"
            )

    def check_all(self, cluster: Cluster, handles: Sequence[GeneratorHandle] | None = None) -> None:
        """Every process at once, or those of `handles`."""
        handles = everyone(cluster) if handles is None else handles
        begun = [self.calls(handle) for handle in handles]
        results = iter(cluster.gather([call for calls in begun for call in calls]))
        for handle, calls in zip(handles, begun, strict=True):
            self.check(handle.name, [next(results) for _ in calls])

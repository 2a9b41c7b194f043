"""A vLLM that is split over several cards of a node (tensor parallelism).

The engine itself, its scheduler included, is in the actor's process; vLLM's workers, one a card,
are children of it. The base is a 16-bit checkpoint, of which every worker quantises its part.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from unslothrl.engines import vllm, vllm_worker
from unslothrl.engines.base import Finished
from unslothrl.engines.readback import Slots
from unslothrl.engines.vllm_options import options
from unslothrl.engines.vllm_worker import PublishedFile
from unslothrl.errors import ProcessLost, RunError
from unslothrl.records import Request
from unslothrl.system.machine import usable_cpus
from unslothrl.system.variables import PROCESS
from unslothrl.weights import base_model
from unslothrl.weights.adapter import Adapter, AdapterShape
from unslothrl.weights.published import PackedWeights

LOOK_EVERY = 16  # steps, of which one asks the workers for the state of their slots


def start(
    base: Path, source: Path, workers: int, *, on_gpu: bool, **chosen: Any
) -> "SplitVllmEngine":
    """Loads `source`, the 16-bit checkpoint that `base` was quantised from, into that many workers;
    the other keywords are those of `vllm_options.options`. This process uses no card itself."""
    vllm.set_variables()
    from vllm import LLM

    keywords = options(
        source,
        workers=workers,
        takes_turns=False,
        float32_head=on_gpu,
        on_gpu=on_gpu,
        **chosen,
    )
    with variables_of(workers):
        llm = LLM(**keywords)
    return SplitVllmEngine(llm, base)


@contextlib.contextmanager
def variables_of(workers: int) -> Iterator[None]:
    """Inside it vLLM starts its workers as new processes, since a fork of one that has threads may
    hang, each with a part of this process's threads. More of those than cores are worse than few,
    for a worker that waits for the others keeps its core busy."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or usable_cpus())
    values = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "OMP_NUM_THREADS": str(max(1, threads // workers)),
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class SplitSlots(Slots):
    """What the workers hold in their slots: each compares it in its own process with its part of
    what was published."""

    def __init__(self, llm: Any):
        super().__init__(llm)
        self.steps = 0

    def published_as(self, adapter: Adapter, folder: Path) -> PublishedFile:
        return PublishedFile.of(adapter, folder)

    def problems(self, id: int, published: PublishedFile) -> list[str | None]:
        problems = self.llm.apply_model(partial(vllm_worker.lora_problem, id, published))
        return [
            None if problem is None else f"on card {card} of {len(problems)}, {problem}"
            for card, problem in enumerate(problems)
        ]

    def current_layout(self) -> Sequence[int | None]:
        return self.llm.apply_model(vllm_worker.lora_state)[0].layout

    def check_step(self) -> None:
        """Every so many steps: to ask the workers takes longer than to look."""
        self.steps += 1
        if self.published and self.steps % LOOK_EVERY == 0:
            for state in self.llm.apply_model(vllm_worker.lora_state):
                self.check_drawn(state.drawn_under)
                self.check_layout(state.layout)


class SplitVllmEngine(vllm.VllmEngine):
    """See `VllmEngine`. Raises ProcessLost where a worker has died: none can be replaced alone."""

    def __init__(self, llm: Any, base: Path):
        super().__init__(llm, base)
        self.base = base
        pids = tuple(self.in_workers(vllm_worker.process_id))
        self.in_workers(partial(vllm_worker.know_siblings, pids))
        check_base(self.in_workers(partial(vllm_worker.take_scales, base)))
        self.memory_mb()  # from now on a card's use is watched

    @cached_property
    def slots(self) -> Slots:
        return SplitSlots(self.llm)

    def in_workers(self, function: Callable[[Any], Any]) -> list[Any]:
        """What a function, which gets a worker's part of the model, returns in each."""
        with self.watching():
            return self.llm.apply_model(function)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """What vLLM raises inside it where a worker has died hangs on where it was."""
        try:
            yield
        except Exception as error:
            processes = [worker.proc for worker in self.executor.workers]
            dead = [process.pid for process in processes if not process.is_alive()]
            if not dead and not self.executor.is_failed:
                raise
            name = os.environ.get(PROCESS, "an actor")
            raise ProcessLost(name, f"{name} has lost vLLM's worker {dead or ''}") from error

    @property
    def executor(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.model_executor

    def load(self, adapter: Adapter) -> None:
        with self.watching():
            super().load(adapter)

    def add(self, request: Request) -> None:
        with self.watching():
            super().add(request)

    def step(self) -> list[Finished]:
        with self.watching():
            return super().step()

    def abort(self, ids: Collection[str]) -> list[Finished]:
        with self.watching():
            return super().abort(ids)

    def canary(self, shape: AdapterShape) -> None:
        with self.watching():
            super().canary(shape)

    def fingerprint(self) -> str:
        """That of the 4-bit base, of which every worker's weights must be its part. Raises RunError
        where they are not."""
        check_base(self.in_workers(partial(vllm_worker.base_problem, self.base)))
        return base_model.fingerprint(PackedWeights(self.base).in_order())

    def memory_mb(self) -> float:
        """The largest of the workers' peaks."""
        return max(self.in_workers(vllm_worker.peak_mb))

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.llm.llm_engine.engine_core.shutdown()


def check_base(problems: Sequence[str | None]) -> None:
    """Raises RunError where a worker has found one."""
    for problem in problems:
        if problem is not None:
            raise RunError(f"vLLM's workers hold a different base than the learner: {problem}")

"""An engine over a model of transformers, sampling every row with a seed of its own.

Serves two purposes: the learner generates with the weights it trains (no second copy of the base),
and a machine without vLLM still runs.
"""

import contextlib
from collections.abc import Collection, Hashable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from unslothrl.engines.base import Finished, longest_first
from unslothrl.engines.chunk import Chunk
from unslothrl.types import Adapter, Completion, Request
from unslothrl.weights import base_model

NEWEST = -1  # in place of a version: follows the newest, as what was added before any does


class GeneratingBackend(Protocol):
    """What this engine needs of a training backend (`backends.base.Backend`)."""

    model: Any

    def generating(self) -> AbstractContextManager[Any]: ...

    def restore_adapter(self, adapter: Adapter) -> None: ...

    def keep_version(self, adapter: Adapter) -> None: ...

    def version(self, version: int) -> AbstractContextManager[None]: ...

    def forget_version(self, version: int) -> None: ...

    def free_cache(self) -> None: ...

    def fingerprint(self) -> str: ...

    def memory_mb(self) -> float: ...


class TransformersEngine:
    """See `engines.base.Engine`. Generates with the model of a training backend.

    With `has_own_base` the backend exists for this engine alone, and `load` puts the adapter into
    it; otherwise the learner trains it and its weights are the newest version as they stand.

    Requests run in chunks of at most `max_num_seqs` rows together, the longest prompts of all that
    wait first. A chunk keeps its rows to its end, and a new one starts when there is room beside
    those that run. An older version that a chunk still needs is held beside the newest as what was
    published of it: the learner's float32 weights have moved on. A request that follows the newest
    version keeps the keys and values that older versions computed.
    """

    def __init__(
        self, backend: GeneratingBackend, base: Path, *, max_num_seqs: int, has_own_base: bool
    ):
        self.backend, self.has_own_base = backend, has_own_base
        self.max_num_seqs = max_num_seqs
        self.stop = base_model.stop_token_ids(base)
        self.sampled_tokens = 0
        self.newest: Adapter | None = None
        self.kept: set[int] = set()  # the older versions that the backend holds
        self.waiting: dict[str, tuple[Request, int]] = {}  # with the version or NEWEST
        self.running: dict[str, tuple[Chunk, int]] = {}  # the chunk and the row in it
        self.chunks: list[tuple[Chunk, int]] = []  # with the version or NEWEST
        self.awake = contextlib.ExitStack()
        self.model: Any = None  # None: asleep

    @property
    def version(self) -> int:
        """The one that is drawn under if nothing else is asked for; -1 before any was loaded."""
        return -1 if self.newest is None else self.newest.version

    def add(self, request: Request) -> None:
        if request.id in self.waiting or request.id in self.running:
            raise ValueError(f"request {request.id!r} is in flight already: give each its own id")
        version = NEWEST if request.follows_newest else self.version
        self.waiting[request.id] = request, version
        self._wake()

    def _wake(self) -> None:
        if self.model is None:
            self.model = self.awake.enter_context(self.backend.generating())

    def step(self) -> list[Finished]:
        self._wake()
        self._start_chunks()
        finished: list[Finished] = []
        for chunk, version in self.chunks:
            self.sampled_tokens += int(chunk.is_running.sum())
            with self._under(version):
                rows = chunk.step(self.model, self.version if version == NEWEST else version)
            for row in rows:
                finished.append(self._finish(chunk.requests[row].id, chunk.completion(row)))
        self._drop_done()
        return finished

    def _finish(self, id: str, completion: Completion) -> Finished:
        del self.running[id]
        return Finished(id, completion)

    def _under(self, version: int) -> AbstractContextManager[None]:
        is_newest = version in (NEWEST, self.version)
        return contextlib.nullcontext() if is_newest else self.backend.version(version)

    def _start_chunks(self) -> None:
        """Of those that wait, longest prompts first, as many as there is room for.

        Beside other chunks only where no fewer wait than run: each costs a forward of its own for
        every token.
        """
        while self.waiting:
            room = self.max_num_seqs - sum(len(chunk.requests) for chunk, _ in self.chunks)
            running = sum(int(chunk.is_running.sum()) for chunk, _ in self.chunks)
            if room <= 0 or len(self.waiting) < running:
                return
            waiting = list(self.waiting.values())
            ordered = [waiting[i] for i in longest_first([request for request, _ in waiting])]
            first = goes_with(*ordered[0])
            chosen = [entry for entry in ordered if goes_with(*entry) == first][:room]
            requests, version = [request for request, _ in chosen], chosen[0][1]
            chunk = Chunk(requests, self.stop, self.backend.model.device)
            self.chunks.append((chunk, version))
            for row, request in enumerate(requests):
                del self.waiting[request.id]
                self.running[request.id] = chunk, row

    def abort(self, ids: Collection[str]) -> list[Finished]:
        finished = []
        for id in ids:
            if id in self.waiting:
                del self.waiting[id]
                finished.append(Finished(id, Completion.drawn((), (), "abort", self.version)))
            elif id in self.running:
                chunk, row = self.running[id]
                finished.append(self._finish(id, chunk.abort(row)))
        self._drop_done()
        return finished

    def is_finished(self) -> bool:
        return not self.waiting and not self.running

    def load(self, adapter: Adapter) -> None:
        adapter.verify()
        if self.newest and adapter.version != self.version and self.version in self._needed():
            self.backend.keep_version(self.newest)
            self.kept.add(self.version)
        if self.has_own_base:
            self.backend.restore_adapter(adapter)
        self.newest = adapter

    def _needed(self) -> set[int]:
        """The versions of what waits and runs."""
        waiting = {version for _, version in self.waiting.values()}
        return waiting | {version for _, version in self.chunks}

    def _drop_done(self) -> None:
        """Chunks of which no row runs, and the older versions that nothing needs any more."""
        self.chunks = [entry for entry in self.chunks if bool(entry[0].is_running.any())]
        for version in self.kept - self._needed():
            self.backend.forget_version(version)
            self.kept.remove(version)

    def sleep(self) -> None:
        """Leaves the mode in which the backend generates, so that it can train. What is in flight
        goes on with the next `step`."""
        self.awake.close()
        self.model = None
        self.backend.free_cache()

    def fingerprint(self) -> str:
        return self.backend.fingerprint()

    def memory_mb(self) -> float:
        return self.backend.memory_mb()

    def close(self) -> None:
        self.abort([*self.waiting, *self.running])
        self.sleep()


def goes_with(request: Request, version: int) -> Hashable:
    """What the requests of a chunk have in common."""
    sampling = request.sampling
    return version, sampling.temperature, sampling.top_p, sampling.top_k

"""A rollout actor: an engine that draws completions, and the rewards that score them."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from unslothrl import rewards
from unslothrl.engines import base as engines
from unslothrl.engines.base import Engine
from unslothrl.errors import UserError
from unslothrl.rewards.scorer import Scorer
from unslothrl.types import (
    Adapter,
    Completion,
    Failure,
    Group,
    Request,
    Sampling,
    Task,
    seed_of,
)


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one generator returns for its share of a step."""

    groups: tuple[Group, ...]
    failures: tuple[Failure, ...]  # rewards that could not be computed
    generation_s: float
    reward_s: float  # from the last completion to the last reward; the others overlap generation
    memory_mb: float


class ProgressMeter:
    """How far the current call is: read from another thread, or listened to in the same process."""

    def __init__(self):
        self.state = (0, 0)  # replaced whole, so a reader in another thread never sees half of it
        self.listener: Callable[[int, int], None] | None = None

    def set(self, done: int, tokens: int) -> None:
        """Completions (or sequences) done and tokens, of the call that runs now."""
        self.state = (done, tokens)
        if self.listener is not None:
            self.listener(done, tokens)


class Actor:
    """Draws and scores `candidates` completions a task under the adapter loaded last."""

    def __init__(self, name: str, engine: Engine, tokenizer, scorer: Scorer | None = None):
        self.name, self.engine, self.tokenizer = name, engine, tokenizer
        self.scorer = scorer or Scorer(rewards.choose(()))
        self.progress = ProgressMeter()

    def load(self, adapter: Adapter) -> int:
        """-> bytes of weights that arrived."""
        self.engine.load(adapter)
        return len(adapter.weights)

    def generate(
        self,
        tasks: Sequence[Task],
        candidates: int,
        sampling: Sampling,
        seed: tuple[int | str, ...],
    ) -> Rollout:
        """One group a task, in order. `seed` is what the draw is for, e.g. (run seed, step)."""
        started = time.perf_counter()
        self.progress.set(0, 0)
        requests = [
            Request(
                f"{task.id}/{candidate}",
                task.prompt_ids,
                seed_of(*seed, task.id, candidate),
                sampling,
            )
            for task in tasks
            for candidate in range(candidates)
        ]
        with Scoring(self, tasks, candidates) as scoring:
            engines.generate(self.engine, requests, self.progress.set, scoring.add)
            generated = time.perf_counter()
            groups, failures = scoring.finish()
        return Rollout(
            groups,
            failures,
            generation_s=generated - started,
            reward_s=time.perf_counter() - generated,
            memory_mb=self.engine.memory_mb(),
        )

    def score(
        self, tasks: Sequence[Task], sampled: Sequence[Sequence[Completion]]
    ) -> list[tuple[Group, list[Failure]]]:
        """Each task's group and the rewards that failed in it; `sampled` is [tasks][candidates]."""
        every = [one for of_task in sampled for one in of_task]
        texts = self.tokenizer.batch_decode(
            [list(one.token_ids) for one in every],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        of = [task for task, drawn in zip(tasks, sampled, strict=True) for _ in drawn]
        scored = self.scorer.score(
            [
                (task, replace(one, text=text, generator=self.name))
                for text, one, task in zip(texts, every, of, strict=True)
            ]
        )
        completions = [
            replace(one, text=text, generator=self.name)
            for one, text in zip(every, texts, strict=True)
        ]
        found, begin = [], 0
        for task, drawn in zip(tasks, sampled, strict=True):
            part = slice(begin, begin := begin + len(drawn))
            earned = {name: tuple(values[part]) for name, values in scored.rewards.items()}
            group = Group(task, tuple(completions[part]), earned, tuple(scored.scores[part]))
            of_group = range(part.start, part.stop)
            found.append((group, [one for one in scored.failures if one.candidate in of_group]))
        return found

    def use_level(self, level: str | None) -> str | None:
        """Takes the sandbox that the run has chosen for programs. -> why it does not work here."""
        try:
            self.scorer.use_level(level)
        except UserError as error:
            return str(error)
        return None

    def fingerprint(self) -> str:
        return self.engine.fingerprint()

    def close(self) -> None:
        self.scorer.close()
        self.engine.close()


class Scoring:
    """Scores the groups of one rollout in a thread, each as soon as its last candidate is done.

    Where a reward takes all completions in one call, all are scored at the end.
    """

    def __init__(self, actor: Actor, tasks: Sequence[Task], candidates: int):
        self.actor, self.tasks, self.candidates = actor, tasks, candidates
        self.sampled: list[dict[int, Completion]] = [{} for _ in tasks]
        self.found: dict[int, tuple[Group, list[Failure]]] = {}
        self.complete: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # indices of tasks
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="scoring", daemon=True)

    def __enter__(self) -> "Scoring":
        self.thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """After an error, Ctrl-C included, what is being scored is given up."""
        self.complete.put(None)
        if kind is not None:
            self.actor.scorer.close()
        self.thread.join()

    def add(self, index: int, sampled: Completion) -> None:
        """`index` counts candidates over all tasks."""
        task, candidate = divmod(index, self.candidates)
        self.sampled[task][candidate] = sampled
        if len(self.sampled[task]) == self.candidates:
            self.complete.put(task)

    def finish(self) -> tuple[tuple[Group, ...], tuple[Failure, ...]]:
        """-> (the group of each task, what failed), once all is scored."""
        self.complete.put(None)
        self.thread.join()
        if self.error is not None:
            raise self.error
        each = [self.found[task] for task in range(len(self.tasks))]
        return tuple(group for group, _ in each), tuple(f for _, failed in each for f in failed)

    def _run(self) -> None:
        try:
            while ready := self._next():
                sampled = [
                    [self.sampled[task][i] for i in range(self.candidates)] for task in ready
                ]
                scored = self.actor.score([self.tasks[task] for task in ready], sampled)
                self.found.update(zip(ready, scored, strict=True))
        except BaseException as error:
            self.error = error

    def _next(self) -> list[int]:
        """The tasks that are complete by now, at least one; none where no more will come."""
        ready: list[int] = []
        while len(self.found) + len(ready) < len(self.tasks):
            if ready and self.complete.empty() and not self.actor.scorer.takes_all:
                break
            task = self.complete.get()
            if task is None:
                return []
            ready.append(task)
        return ready

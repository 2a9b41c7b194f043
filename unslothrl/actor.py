"""A rollout actor: an engine that draws completions, and the rewards that score them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unslothrl import rewards
from unslothrl.engines.base import Engine
from unslothrl.rewards.scorer import Completed, Failure, Scorer
from unslothrl.types import Adapter, Completion, Group, Request, Sampled, Sampling, Task, seed_of


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one generator returns for its share of a step."""

    groups: tuple[Group, ...]
    failures: tuple[Failure, ...]  # rewards that could not be computed
    generation_s: float
    reward_s: float
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
            Request(task.prompt_ids, seed_of(*seed, task.id, candidate))
            for task in tasks
            for candidate in range(candidates)
        ]
        sampled = self.engine.generate(requests, sampling, self.progress.set)
        generated = time.perf_counter()
        groups, failures = self._score(tasks, candidates, sampled)
        return Rollout(
            groups,
            failures,
            generation_s=generated - started,
            reward_s=time.perf_counter() - generated,
            memory_mb=self.engine.memory_mb(),
        )

    def _score(
        self, tasks: Sequence[Task], candidates: int, sampled: Sequence[Sampled]
    ) -> tuple[tuple[Group, ...], tuple[Failure, ...]]:
        """The groups of `tasks`, their completions scored all together."""
        texts = self.tokenizer.batch_decode(
            [list(one.token_ids) for one in sampled],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        of = [task for task in tasks for _ in range(candidates)]
        scored = self.scorer.score(
            [
                Completed(text, len(one.token_ids), task.answer, task.extra, task.prompt)
                for text, one, task in zip(texts, sampled, of, strict=True)
            ]
        )
        completions = [
            Completion(
                one.token_ids, one.logprobs, one.finish_reason, one.policy_version, text, self.name
            )
            for one, text in zip(sampled, texts, strict=True)
        ]
        groups = []
        for index, task in enumerate(tasks):
            part = slice(index * candidates, (index + 1) * candidates)
            earned = {name: tuple(values[part]) for name, values in scored.rewards.items()}
            groups.append(Group(task, tuple(completions[part]), earned, tuple(scored.scores[part])))
        return tuple(groups), tuple(scored.failures)

    def fingerprint(self) -> str:
        return self.engine.fingerprint()

    def close(self) -> None:
        self.scorer.close()
        self.engine.close()

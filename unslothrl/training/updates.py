"""The learners as one, and what they do in a step: they measure samples, then take one or more
optimiser steps. What is said to all of them is split and joined here.

All learners wait for the slowest one, so what counts is the largest share. A learner computes a
prompt once for all its samples: prompts are dealt greedily, the most expensive first, each to the
learner with the least work. Then single samples move from the learner with the most work to the one
with the least, while that makes the largest share smaller and it is over `EVEN` times the mean.
"""

import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from unslothrl.algorithms.objective import learning_rate_share
from unslothrl.checkpoints.store import RunState
from unslothrl.cluster.handles import Call, Cluster, LearnerHandle
from unslothrl.config.options import Config
from unslothrl.errors import RunError
from unslothrl.records import Batch, Group, Proof, Sample, Update, seed_of
from unslothrl.tracking.metrics import Timer
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.training import credit, first_batch
from unslothrl.training.actor_health import SamplerGapWatch
from unslothrl.training.metrics import Metrics, Trace, update_metrics
from unslothrl.weights.shapes import shape_of

EVEN = 1.005  # of the mean: a largest share below it is good enough
MOST_SKIPPED = 3  # updates in a row that are not finite, before the run is stopped

# How long the learners may take
FIRST_WORK_S = 900.0  # to compile, to load kernels, to fill caches
FIRST_RATE = 20.0  # costs a second (see `Costs`) of the slowest machine trained on
SLACK_S = 60.0  # of every deadline: work that is small, and a machine busy with other things
PACE_FACTOR = 5.0  # over the slowest pace seen
KEPT = 8  # pieces of work that are remembered: the first, with its compiling, is forgotten

T = TypeVar("T")


@dataclass(frozen=True)
class Costs:
    """What samples cost a learner, in trained tokens that attend to nothing."""

    shares_prompts: bool = True  # whether a prompt is computed once for all its completions
    prompt_token: float = 1.0  # it does not pass through the output layer
    pair: float = 0.0  # a token that attends to one token, in all layers

    @classmethod
    def of(cls, config: Config) -> "Costs":
        """By the multiplications of the model's layers; tokens alone where its sizes are not known.
        A pair of tokens costs 2 x the attention's width: as two linear weights cost a token."""
        shares = config.backend != "unsloth"  # see backends/unsloth.py
        shape = shape_of(config.model)
        if shape is None:
            return cls(shares)
        linear = shape.linear_weights()
        whole = linear + shape.vocabulary * shape.hidden
        return cls(shares, linear / whole, 2 * shape.layers * shape.query / whole)

    def prompt(self, sample: Sample) -> float:
        """Of its prompt's passage through the linear layers."""
        return self.prompt_token * len(sample.prompt_ids)

    def completion(self, sample: Sample) -> float:
        """Of the rest: the completion, and the whole sequence's attention, for each sample."""
        completion = sample.length
        length = len(sample.prompt_ids) + completion
        return completion + self.pair * length * (length + 1) / 2

    def share(self, samples: Sequence[Sample]) -> float:
        prompts = {s.prompt_ids: s for s in samples}.values() if self.shares_prompts else samples
        return sum(map(self.prompt, prompts)) + sum(map(self.completion, samples))


def balanced(samples: Sequence[Sample], learners: int, costs: Costs) -> list[list[int]]:
    """-> [learners] indices of each one's samples, ascending; empty where samples are too few."""
    together: dict[object, list[int]] = {}
    for index, sample in enumerate(samples):
        together.setdefault(sample.prompt_ids if costs.shares_prompts else index, []).append(index)
    groups = list(together.values())
    prompts = [costs.prompt(samples[group[0]]) for group in groups]
    own = [costs.completion(sample) for sample in samples]
    sizes = [prompts[n] + sum(own[i] for i in group) for n, group in enumerate(groups)]
    shares: list[dict[int, list[int]]] = [{} for _ in range(learners)]  # group -> samples of it
    loads = [0.0] * learners
    for number in sorted(range(len(groups)), key=lambda number: -sizes[number]):
        least = loads.index(min(loads))
        shares[least][number] = groups[number]
        loads[least] += sizes[number]
    while max(loads) > EVEN * sum(loads) / learners and _move_one(shares, loads, own, prompts):
        pass
    return [sorted(i for group in share.values() for i in group) for share in shares]


def _move_one(
    shares: list[dict[int, list[int]]], loads: list[float], own: list[float], prompts: list[float]
) -> bool:
    """Moves the sample from the largest share to the smallest that leaves the larger of the two
    smallest. -> False, with nothing moved, where none makes it smaller."""
    most, least = loads.index(max(loads)), loads.index(min(loads))
    best, found = loads[most] * (1 - 1e-9), None  # less is rounding
    for number, group in shares[most].items():
        arriving = 0.0 if number in shares[least] else prompts[number]
        leaving = prompts[number] if len(group) == 1 else 0.0
        for index in group:
            after = loads[most] - own[index] - leaving, loads[least] + own[index] + arriving
            if max(after) < best:
                best, found = max(after), (number, index, after)
    if found is None:
        return False
    number, index, (loads[most], loads[least]) = found
    left = [i for i in shares[most].pop(number) if i != index]
    if left:
        shares[most][number] = left
    shares[least][number] = [*shares[least].get(number, ()), index]
    return True


def batches(samples: Sequence[Sample], count: int, seed: int) -> list[Batch]:
    """The samples in `count` batches of like size at random, one for each optimiser step. A batch's
    denominators count all its samples; those without a gradient, which add nothing, are left out.
    """
    order = list(range(len(samples)))
    if count > 1:
        random.Random(seed).shuffle(order)
    parts = [sorted(order[i::count]) for i in range(count)]
    return [
        Batch(
            tuple(samples[i] for i in part if samples[i].has_gradient),
            sequences=len(part),
            tokens=sum(samples[i].tokens for i in part),
            seed=seed_of(seed, number),
        )
        for number, part in enumerate(parts)
        if any(samples[i].has_gradient for i in part)
    ]


def split_batch(batch: Batch, learners: int, costs: Costs | None = None) -> list[Batch]:
    """[learners] parts, some maybe empty, of equal time, with the batch's denominators."""
    ordered = sorted(batch.samples, key=lambda s: len(s.prompt_ids) + s.length)
    shares = balanced(ordered, learners, costs or Costs())
    return [
        replace(
            batch,
            samples=tuple(ordered[i] for i in share),
            seed=seed_of(batch.seed, "learner", rank),
        )
        for rank, share in enumerate(shares)
    ]


class Pace:
    """Of one kind of work. A piece has the cost of the largest share: the others wait for it."""

    def __init__(self) -> None:
        self.seen: deque[float] = deque(maxlen=KEPT)  # seconds for each unit of cost

    def deadline_s(self, cost: float) -> float:
        """After so many seconds whoever is not done is taken to hang."""
        if not self.seen:
            return FIRST_WORK_S + cost / FIRST_RATE
        return SLACK_S + PACE_FACTOR * max(self.seen) * cost

    @contextlib.contextmanager
    def timed(self, cost: float) -> Iterator[float]:
        """Gives the deadline of work of that cost, and remembers how long it took."""
        started = time.monotonic()
        yield self.deadline_s(cost)
        self.saw(cost, time.monotonic() - started)

    def saw(self, cost: float, seconds: float) -> None:
        if cost > 0:
            self.seen.append(seconds / cost)


class LearnerGroup:
    """Every learner has the same weights, bit for bit, before and after each method."""

    def __init__(
        self,
        cluster: Cluster,
        costs: Costs | None = None,
        together: int = 1,
        show: Callable[[str, int, int, int], None] = lambda kind, done, total, tokens: None,
    ):
        """`costs`: what samples cost a learner, by which they are dealt; so many learners, one
        after the other, do `together` what one would, and get the same samples. `show` gets the
        kind of work, how many samples are done, and of how many, and tokens."""
        self.cluster, self.costs, self.together = cluster, costs or Costs(), together
        self.show = show
        self.renew()

    def renew(self) -> None:
        """The learners have been started: they compile."""
        self.learners = self.cluster.learners
        self.update_pace, self.measure_pace = Pace(), Pace()

    def measure(self, samples: Sequence[Sample], reference: bool) -> list[Sample]:
        """The samples with what the learners say of them before an update, in order."""
        measured = self._shared(
            "measuring", samples, lambda learner, share: learner.measure(share, reference)
        )
        return [replace(sample, **each) for sample, each in zip(samples, measured, strict=True)]

    def judge(self, samples: Sequence[Sample]) -> list[float]:
        """What the reward model says of each, in order; completions may be drawn next."""
        found = self._shared("judging", samples, lambda learner, share: learner.judge(share))
        self.make_room()
        return found

    def _shared(
        self,
        kind: str,
        samples: Sequence[Sample],
        ask: Callable[[LearnerHandle, list[Sample]], Call[list[T]]],
    ) -> list[T]:
        """What the learners answer of the samples, each of its share; in order."""
        shares = balanced(samples, len(self.speakers), self.costs)
        parts = [[samples[i] for i in share] for share in shares]
        calls = [ask(each, parts[i // self.together]) for i, each in enumerate(self.learners)]
        with self.measure_pace.timed(self._largest(parts)) as deadline_s:
            answers = self._gather(kind, len(samples), calls, deadline_s)[self.speaker]
        found: dict[int, T] = {}
        for share, answer in zip(shares, answers, strict=True):
            found.update(zip(share, answer, strict=True))
        return [found[i] for i in range(len(samples))]

    def _gather(self, kind: str, total: int, calls: list[Call[T]], deadline_s: float) -> list[T]:
        return self.cluster.gather(
            calls, lambda done, tokens: self.show(kind, done, total, tokens), deadline_s
        )

    def update(self, batch: Batch, lrs: dict[str, float], train_policy: bool) -> list[Update]:
        """One optimiser step on a batch: each learner computes the gradient of its part, all step
        on the sum. Without `train_policy` the critic alone. -> what each of `speakers` says of it.
        RunError where the learners' weights differ afterwards."""
        parts = split_batch(batch, len(self.speakers), self.costs)
        with self.update_pace.timed(self._largest([part.samples for part in parts])) as deadline_s:
            calls = [
                learner.update(parts[i // self.together], lrs, train_policy, deadline_s)
                for i, learner in enumerate(self.learners)
            ]
            updates = self._gather("update", len(batch.samples), calls, 2 * deadline_s)
        self._check_equal([update.checksum for update in updates])
        return updates[self.speaker]

    def prove(self, whole: Batch) -> list[Proof]:
        """What every learner says of the same sequences: see `learners.proof`."""
        parts = split_batch(whole, 2, self.costs)
        calls = [learner.prove(whole, parts) for learner in self.learners]
        deadline_s = self.update_pace.deadline_s(3 * self.costs.share(whole.samples))
        return self._gather("update", len(whole.samples), calls, deadline_s)

    @property
    def speaker(self) -> slice:
        """Of those that do a part together the one that knows what came of it: the last stage."""
        return slice(self.together - 1, None, self.together)

    @property
    def speakers(self) -> Sequence[LearnerHandle]:
        return self.learners[self.speaker]

    def _largest(self, shares: Sequence[Sequence[Sample]]) -> float:
        return max(map(self.costs.share, shares), default=0.0)

    def _check_equal(self, checksums: Sequence[int]) -> None:
        """RunError that names the learners whose weights are not those of most, or the first's."""
        ((most, _),) = Counter(checksums).most_common(1)
        names = [learner.name for learner in self.learners]
        different = [name for name, sum_ in zip(names, checksums, strict=True) if sum_ != most]
        if different:
            raise RunError(
                f"{' and '.join(different)} and {names[checksums.index(most)]} hold different "
                "adapters after an update, which makes them equal on sound machines: check their "
                "GPUs and memory, and continue from the last checkpoint with --resume"
            )

    def make_room(self) -> None:
        """Leaves the GPUs to the actors on them."""
        self.cluster.gather([learner.make_room() for learner in self.learners])


@dataclass
class Updates:
    """Of a whole run. `stop` gets the name of an actor that draws under another policy, and what
    shows it."""

    config: Config
    learners: LearnerGroup
    folder: RunFolder
    view: Terminal
    total_steps: int
    stop: Callable[[str, str], None]

    def __post_init__(self) -> None:
        self.sampler_gaps = SamplerGapWatch(self.view.note, self.stop)
        self.is_proven = False

    def run(
        self,
        groups: Sequence[Group],
        samples: Sequence[Sample],
        state: RunState,
        timer: Timer,
        trace: Trace | None = None,
    ) -> Metrics:
        """All updates of the step after `state`. -> their metrics, none if there is nothing to
        learn from. `trace` gets the log-probabilities that it asks for."""
        config, step = self.config, state.step + 1
        if not any(sample.has_gradient for sample in samples):
            why = credit.why_nothing(groups, samples)
            self.view.note(f"step {step} has nothing to learn from and is skipped: {why}")
            return {}
        if trace is not None:
            samples = trace.asked(samples)
        updates: list[list[Update]] = []  # what every learner says of each
        for epoch in range(config.epochs_per_rollout):
            seed = seed_of(config.seed, "parts", step, epoch)
            for batch in batches(samples, config.updates_per_rollout, seed):
                with timer("update"):
                    if config.check_first_batch and not self.is_proven:
                        self._prove(batch, state)
                    updates.append(self._update(batch, step))
                self._count_skipped(updates[-1][0], batch, state)
        parts = [update for of_learners in updates for update in of_learners]
        if trace is not None:
            trace.saw(parts)
        return {
            **update_metrics(updates),
            **self.sampler_gaps.saw(parts, state.policy_version),
            "train/lr": self.learning_rates(step)["lora"],
        }

    def _prove(self, batch: Batch, state: RunState) -> None:
        """RunError where the first batch is not trained on as it should be."""
        some = first_batch.some_of(batch)
        if not some.samples:
            return
        proofs = self.learners.prove(some)
        is_exact = self.config.top_p == 1 and not self.config.sampling_top_k
        found = first_batch.verdict(proofs, state.policy_version, is_exact)
        if found:
            self.folder.add_check({"step": state.step, **found})
        self.is_proven = bool(found)

    def _update(self, batch: Batch, step: int) -> list[Update]:
        lrs = self.learning_rates(step)
        updates = self.learners.update(batch, lrs, train_policy=not self.is_frozen(step))
        for learner, update in zip(self.learners.speakers, updates, strict=True):
            if update.note:
                self.view.note(f"step {step}: {learner.name}: {update.note}")
        return updates

    def learning_rates(self, step: int) -> dict[str, float]:
        """Of a step, by what they train."""
        config = self.config
        share = learning_rate_share(
            config.lr_schedule, step, self.total_steps, config.warmup_steps, config.lr_floor
        )
        return {"lora": share * config.lr, "critic": share * (config.critic_lr or config.lr)}

    def is_frozen(self, step: int) -> bool:
        """Whether only the critic is trained in a step."""
        return step <= self.config.freeze_steps

    def _count_skipped(self, update: Update, batch: Batch, state: RunState) -> None:
        """Raises RunError after too many updates in a row that were not finite."""
        if not update.skipped:
            state.skipped_in_a_row = 0
            return
        state.skipped_in_a_row += 1
        step = state.step + 1
        self.view.note(
            f"step {step}: the loss or its gradient is not finite; nothing was changed "
            f"({state.skipped_in_a_row} in a row)"
        )
        if state.skipped_in_a_row >= MOST_SKIPPED:
            path = self.folder.write_bad_batch(step, batch)
            raise RunError(
                f"{MOST_SKIPPED} updates in a row had a loss or gradient that is not finite; the "
                f"batch is in {path}: lower --lr, or set --max_grad_norm 0.1 or --dtype float32"
            )

"""What crosses a process boundary: small frozen records, plain Python inside.

Token ids are tuples, log-probabilities are natural logarithms, weights are bytes: nothing here
needs torch, so that every process can read it and a test can write it by hand.
"""

import hashlib
import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from unslothrl import compact
from unslothrl.turn import Turn

FROM_THE_ENVIRONMENT = "environment"  # the name of the reward that it gives
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Task:
    """One problem, rendered and tokenised once; everything later uses `prompt_ids`."""

    id: str  # unique within its data set, the same in every run
    problem: str  # as the data set has it
    answer: str  # the gold answer, "" where there is none; several are in extra["answers"]
    prompt: str  # the rendered chat template
    prompt_ids: tuple[int, ...]
    extra: dict[str, Any] = field(default_factory=dict, hash=False)  # its row's other columns
    messages: tuple[tuple[str, str], ...] = ()  # (role, content) of the prompt, for an environment
    read: dict[str, Any] = field(default_factory=dict, hash=False)  # columns of both, likewise


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. `top_p` 1 and `top_k` 0 are off."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int  # of a turn
    max_episode_tokens: int = 0  # of all turns and what is said between them; 0: max_new_tokens

    @property
    def episode_tokens(self) -> int:
        return self.max_episode_tokens or self.max_new_tokens


@dataclass(frozen=True, slots=True)
class Request:
    """One completion (or one turn of it) to draw, with a seed of its own: candidates never share
    random numbers."""

    id: str  # unique among an engine's requests in flight
    prompt_ids: tuple[int, ...]
    seed: int  # 0 <= seed < 2**63
    sampling: Sampling
    follows_newest: bool = False  # go on under a version that is loaded meanwhile


@dataclass(frozen=True, slots=True)
class Transcript:
    """What there is of an episode with an environment, beside its tokens. Where the chat template
    rewrites what came before, later turns are a sequence of their own: the completion has the last
    one, `earlier` those before, each with its prompt."""

    turns: tuple[Turn, ...]
    prompt: str = ""  # rendered, where the environment gave it; else the task's
    question: str = ""  # what the user says first in it; likewise
    prompt_ids: tuple[int, ...] | None = None  # of the completion, where it is not the task's
    earlier: tuple[tuple[tuple[int, ...], "Completion"], ...] = ()

    def text(self, between: str) -> str:
        """What was written and read, turn by turn."""
        parts = [part for turn in self.turns for part in (turn.reply, turn.observation)]
        return between.join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Completion(compact.Packed):
    """What came after a task's prompt: the record of an episode.

    The arrays are per token, [tokens]. What was not sampled was put there by an environment.
    """

    token_ids: tuple[int, ...]  # the end-of-sequence token included when it was sampled
    logprobs: tuple[float, ...]  # under the distribution it was drawn from; 0 where not sampled
    sampled: tuple[bool, ...]
    versions: tuple[int, ...]  # the policy version it was drawn under
    finish_reason: str  # "stop", "length", "abort"; "lost": its environment failed
    text: str = ""  # special tokens left out
    generator: str = ""  # "actor-0", "learner-0", ...
    transcript: Transcript | None = None  # with an environment

    COLUMNS: ClassVar[dict[str, compact.Codec]] = {
        "token_ids": (compact.ints_packed, compact.unpacked),
        "logprobs": (compact.floats_packed, compact.unpacked),
        "sampled": (compact.runs, compact.repeated),
        "versions": (compact.runs, compact.repeated),
    }
    UNPACKED: ClassVar[tuple[str, ...]] = ("finish_reason", "text", "generator", "transcript")

    @classmethod
    def drawn(
        cls,
        token_ids: tuple[int, ...],
        logprobs: tuple[float, ...],
        finish_reason: str,
        version: int,
    ) -> "Completion":
        """What an engine has sampled under one version."""
        tokens = len(token_ids)
        return cls(token_ids, logprobs, (True,) * tokens, (version,) * tokens, finish_reason)

    @classmethod
    def of_text(cls, text: str) -> "Completion":
        """A text that no engine drew, to be scored; its characters count as tokens."""
        return replace(cls.drawn(tuple(map(ord, text)), (0.0,) * len(text), "stop", 0), text=text)

    @property
    def is_lost(self) -> bool:
        """Whether its environment failed: it says nothing of the policy."""
        return self.finish_reason == "lost"

    def sequences(self, task: Task) -> list[tuple[tuple[int, ...], "Completion"]]:
        """(prompt, completion) of each sequence of the episode, in order."""
        if self.transcript is None:
            return [(task.prompt_ids, self)]
        prompt_ids = self.transcript.prompt_ids
        last = task.prompt_ids if prompt_ids is None else prompt_ids
        return [*self.transcript.earlier, (last, self)]

    @property
    def policy_version(self) -> int:
        """The oldest version that it was drawn under; -1 where nothing was drawn."""
        return min(self.version_counts, default=-1)

    @property
    def version_counts(self) -> dict[int, int]:
        """How many tokens of the whole episode were sampled under each version."""
        if self.memo is None:
            counts = self._count_versions()
            for _, completion in self.transcript.earlier if self.transcript is not None else ():
                for version, count in completion.version_counts.items():
                    counts[version] = counts.get(version, 0) + count
            object.__setattr__(self, "memo", counts)
        return self.memo

    def _count_versions(self) -> dict[int, int]:
        versions = self.column("versions")
        if not self.is_all_sampled:
            return Counter(itertools.compress(self.versions, self.sampled))
        counts: dict[int, int] = {}
        for version, count in versions:
            counts[version] = counts.get(version, 0) + count
        return counts

    @property
    def is_all_sampled(self) -> bool:
        """Whether an environment has put nothing between its tokens."""
        of_runs = self.column("sampled")
        return all([was_sampled for was_sampled, _ in of_runs])  # noqa: C419, a generator is slow


@dataclass(frozen=True, slots=True)
class Failure:
    """A reward that could not be computed; it counts as 0."""

    reward: str
    reason: str
    text: str  # the completion
    candidate: int  # its index among those that were scored together
    was_late: bool = False  # it took longer than the deadline

    @property
    def kind(self) -> tuple[str, str]:
        """Failures of a kind are reported once: same reward and exception, whatever it says."""
        return self.reward, self.reason.partition(":")[0]

    def __str__(self) -> str:
        reason = " ".join(self.reason.split())
        if self.reward == FROM_THE_ENVIRONMENT:
            return f"an episode is lost: its environment failed: {reason}"
        return f"reward {self.reward} failed ({reason}) on {self.text[:200]!r}"


@dataclass(frozen=True, slots=True)
class Group:
    """One task's candidates and what they earned."""

    task: Task
    completions: tuple[Completion, ...]  # [candidates]
    rewards: dict[str, tuple[float, ...]]  # name -> [candidates]
    scores: tuple[float, ...]  # [candidates], what is reported as correct: 0 to 1
    failures: tuple[Failure, ...] = ()

    @property
    def policy_version(self) -> int:
        """The oldest version that any of its tokens was drawn under; -1 where none was drawn."""
        versions = [completion.policy_version for completion in self.completions]
        return min((version for version in versions if version >= 0), default=-1)

    @property
    def rated(self) -> list[int]:
        """The candidates that tell of the policy: those whose environment did not fail."""
        return [i for i, completion in enumerate(self.completions) if not completion.is_lost]

    @property
    def totals(self) -> tuple[float, ...]:
        """The summed reward of each candidate, [candidates]."""
        return tuple(map(sum, zip(*self.rewards.values(), strict=True)))


@dataclass(frozen=True, slots=True)
class Assignment:
    """A group that an actor is to draw."""

    index: int  # unique among an actor's groups in flight
    task: Task
    candidates: int
    sampling: Sampling
    seed: tuple[int | str, ...]  # what the draw is for, e.g. (run seed, step)


@dataclass(frozen=True, slots=True)
class Collected:
    """What an actor hands over: complete groups, by the index of their assignments; and what it has
    done since it last did so."""

    groups: tuple[tuple[int, Group], ...]
    reward_s: float  # from the last completion to the last reward; the others overlap generation
    memory_mb: float  # the actor's peak so far
    completions: int = 0  # finished since
    tokens: int = 0  # sampled since
    engine_steps: int = 0  # taken since
    engine_s: float = 0.0  # that they took
    versions_loaded: int = 0  # by its engine since that was built
    versions_unloaded: int = 0  # of those


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What the learner said of a completion before the step's first update, [sampled tokens]."""

    logprobs: np.ndarray  # the policy's
    reference: np.ndarray | None = None  # the reference's log-probabilities, where asked for
    values: np.ndarray | None = None  # the critic's, where there is one


@dataclass(frozen=True, slots=True, eq=False)
class Sample(compact.Packed):
    """One selected candidate on its way to the learner."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]  # [completion tokens]
    sampler_logprobs: tuple[float, ...]  # [sampled tokens]
    advantages: np.ndarray  # [sampled tokens]
    policy_version: int
    measured: Measured | None = None  # None: the loss takes the old policy from its own forward
    returns: np.ndarray | None = None  # [sampled tokens], what the critic is to predict
    sampled: tuple[bool, ...] | None = None  # [completion tokens]; None: all of them
    generator: str = ""  # who drew it: "actor-0", "learner-0", ...

    COLUMNS: ClassVar[dict[str, compact.Codec]] = {
        "completion_ids": (compact.ints_packed, compact.unpacked),
        "sampler_logprobs": (compact.floats_packed, compact.unpacked),
        "sampled": (compact.runs_or_none, compact.repeated_or_none),
        "advantages": (compact.constant_packed, compact.constant_unpacked),
    }
    UNPACKED: ClassVar[tuple[str, ...]] = (
        "prompt_ids",
        "policy_version",
        "measured",
        "returns",
        "generator",
    )

    @classmethod
    def of(cls, prompt_ids: tuple[int, ...], completion: Completion) -> "Sample":
        """Without advantages yet. A completion that came packed is not unpacked for it."""
        version, generator = completion.policy_version, completion.generator
        if not completion.is_all_sampled:
            mask = completion.sampled
            logprobs = tuple(itertools.compress(completion.logprobs, mask))
            zeros = np.zeros(len(logprobs), np.float32)
            drawn = (completion.token_ids, logprobs, zeros, version)
            return cls(prompt_ids, *drawn, sampled=mask, generator=generator)
        ids, logprobs = completion.column("token_ids"), completion.column("logprobs")
        packed = ids, logprobs, None, (0.0, compact.length(ids))
        return compact.record(cls, packed, prompt_ids, version, None, None, generator)

    @property
    def tokens(self) -> int:
        """The completion's sampled tokens: those that are trained on."""
        return self.length if self.sampled is None else sum(self.sampled)

    @property
    def length(self) -> int:
        """Tokens of the completion, sampled or not."""
        if self.packed is not None:
            return compact.length(self.packed[0])
        return len(self.completion_ids)

    def with_advantage(self, advantage: float) -> "Sample":
        """The same with this advantage of every token."""
        if self.packed is None:
            return replace(self, advantages=np.full(self.tokens, advantage, np.float32))
        *columns, _ = self.packed
        packed = (*columns, (advantage, self.tokens))
        return compact.record(Sample, packed, *Sample.OTHERS(self))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The samples of one optimiser step, or one learner's part of them.

    `sequences` and `tokens` count the whole batch over all learners: every loss divides by them,
    so that neither micro-batches nor the number of learners can change the gradient.
    """

    samples: tuple[Sample, ...]
    sequences: int
    tokens: int
    traced: dict[int, int] = field(default_factory=dict)
    """Places of samples whose log-probabilities are asked for -> what `UpdateStats` calls them"""
    seed: int = 0  # of dropout; each learner's part has its own

    def __reduce__(self) -> tuple[Any, ...]:
        table = compact.table(self.samples)
        return Batch.of_table, (table, self.sequences, self.tokens, self.traced, self.seed)

    @classmethod
    def of_table(
        cls, table: compact.Table, sequences: int, tokens: int, traced: dict[int, int], seed: int
    ) -> "Batch":
        """What `__reduce__` gave."""
        return cls(tuple(compact.records(Sample, table)), sequences, tokens, traced, seed)


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """Sums over the sampled tokens of a learner's part of a batch: see `algorithms.diagnostics`."""

    tokens: int
    gap: float  # |sampler - learner|, summed
    weight: float  # exp(learner - sampler), summed
    square: float  # of such weights, summed
    largest: np.ndarray  # gaps: with those of the other parts enough for a percentile
    sources: dict[tuple[str, int], tuple[int, float, float]]
    """(generator, version) -> its tokens, their gaps summed, and the gaps' squares summed"""


@dataclass(frozen=True, slots=True, eq=False)
class UpdateStats:
    """One learner's part of an update, in sums and arrays that can be joined."""

    loss: float
    clipped: int  # tokens on which the clip acted
    corrected: int  # tokens on which the bounds of the off-policy correction acted
    entropy_sum: float  # over completion tokens
    agreement: Agreement  # with the samplers, before any update of the step
    kl: np.ndarray  # [tokens of some completions], policy against reference
    value_loss: float = 0.0
    values: np.ndarray | None = None  # [tokens], the critic's before the update
    returns: np.ndarray | None = None  # [tokens]
    traced: dict[int, np.ndarray] = field(default_factory=dict)  # [sampled tokens], `Batch.traced`


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a learner's optimiser step did."""

    grad_norm: float  # of the policy, before clipping
    skipped: bool  # a loss or a gradient was not finite: nothing was changed
    memory_mb: float  # peak so far
    critic_grad_norm: float = 0.0
    checksum: int = 0  # of all that is trained, after the step
    note: str = ""  # for the user


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What one learner says of an optimiser step that all of them took together."""

    stats: UpdateStats  # of its part of the batch
    result: StepResult


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2**63) from what a draw is for, e.g. (run seed, step, task, candidate).

    A hash, because neighbouring integers as seeds make neighbouring requests share candidates.
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1

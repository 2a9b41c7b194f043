"""What crosses a process boundary: small frozen records.

Prompts are tuples of token ids; what belongs to each token of a completion is a NumPy array, which
pickle writes as one buffer. Log-probabilities are natural logarithms. Nothing here needs torch, so
that every process can read it and a test can write it by hand, with any sequence for an array.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FROM_THE_ENVIRONMENT = "environment"  # the name of the reward that it gives
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ROUNDING = 1e-6  # of a score or of a full reward, which may be a weighted sum
MOST_REWARD = 1e12  # any reward is below it, of a turn, of an episode, or of a reward function


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
    asked: tuple[str, ...] = ()  # those of `read` that the prompt was read from


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
    """One completion or turn to draw. No two share random numbers: each has a seed."""

    id: str  # unique among an engine's requests in flight
    prompt_ids: tuple[int, ...]
    seed: int  # 0 <= seed < 2**63
    sampling: Sampling
    follows_newest: bool = False  # go on under a version that is loaded meanwhile


@dataclass(frozen=True, slots=True)
class Call:
    """Of a tool, as the policy wrote it."""

    name: str
    arguments: str = ""  # as JSON
    error: str = ""  # why it cannot be read


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the policy, and what it was answered."""

    reply: str  # special tokens left out
    observation: str = ""  # what the policy read next; "" after the last turn
    reward: float = 0.0
    calls: int = 0  # of tools that were answered
    failed_calls: int = 0  # of them
    tool_calls: tuple[Call, ...] = ()  # that were read in the reply


def correct(reward: float) -> float:
    """What is reported as correct where an environment says nothing of it: a full reward, 1 or
    more, in one turn. Less may be a bonus."""
    return float(reward >= 1 - ROUNDING)


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


def set_columns(record: Any, **types: type) -> None:
    """Fields of a frozen record as arrays, but for None; without a copy where they are."""
    for name, dtype in types.items():
        if (value := getattr(record, name)) is not None:
            object.__setattr__(record, name, np.asarray(value, dtype))


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What came after a task's prompt: the record of an episode. The arrays are [tokens]; those
    that were not sampled come from an environment."""

    token_ids: NDArray[np.int32]  # the end-of-sequence token included when it was sampled
    logprobs: NDArray[np.float32]  # under what it was sampled from; 0 where not sampled
    sampled: NDArray[np.bool_]
    versions: NDArray[np.int32]  # the policy version it was sampled under
    finish_reason: str  # "stop", "length", "abort"; "lost": its environment failed
    text: str = ""  # special tokens left out
    generator: str = ""  # "actor-0", "learner-0", ...
    transcript: Transcript | None = None  # with an environment

    def __post_init__(self) -> None:
        set_columns(self, token_ids=np.int32, logprobs=np.float32)
        set_columns(self, sampled=np.bool_, versions=np.int32)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Completion):
            return NotImplemented
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def drawn(
        cls,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        finish_reason: str,
        version: int,
        text: str = "",
    ) -> "Completion":
        """What an engine has sampled under one version."""
        count, ids, values = len(token_ids), np.asarray(token_ids), np.asarray(logprobs)
        versions = np.full(count, version, np.int32)
        return cls(ids, values, np.ones(count, np.bool_), versions, finish_reason, text)

    @classmethod
    def of_text(cls, text: str) -> "Completion":
        """A text that no engine drew, to be scored; its characters count as tokens."""
        return cls.drawn([*map(ord, text)], [0.0] * len(text), "stop", 0, text)

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
        """The oldest version that it was sampled under; -1 where nothing was sampled."""
        return min(self.version_counts, default=-1)

    @property
    def version_counts(self) -> dict[int, int]:
        """How many tokens of the whole episode were sampled under each version."""
        earlier = () if self.transcript is None else self.transcript.earlier
        sequences = [*(completion for _, completion in earlier), self]
        versions = np.concatenate([each.versions[each.sampled] for each in sequences])
        return Counter(versions.tolist())


Scorable = tuple[Task, Completion]
"""A completion whose text is set, and the task that it answers."""


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
    advantages: tuple[float, ...] = ()  # [candidates], with a critic the mean over tokens; or none
    chosen: tuple[int, ...] = ()  # the candidates that are trained on

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
    """A group that an actor is to draw, or draws."""

    index: int  # unique among an actor's groups in flight
    task: Task
    candidates: int
    sampling: Sampling
    seed: tuple[int | str, ...]  # what the draw is for, e.g. (run seed, step)
    is_urgent: bool = False  # it is given out before others
    policy_version: int = 0  # that was the newest when it was given out


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One selected candidate on its way to the learner. `logprobs`, `reference` and `values` are
    what a learner has measured before the step's first update, [sampled tokens]; None where it has
    not: the loss then takes the old policy from its own forward."""

    prompt_ids: tuple[int, ...]
    completion_ids: np.ndarray  # [completion tokens], int32
    sampler_logprobs: np.ndarray  # [sampled tokens], float32
    advantages: np.ndarray  # [sampled tokens], float32
    policy_version: int
    logprobs: np.ndarray | None = None  # the policy's
    reference: np.ndarray | None = None  # the reference's log-probabilities
    values: np.ndarray | None = None  # the critic's
    returns: np.ndarray | None = None  # [sampled tokens], what the critic is to predict
    sampled: np.ndarray | None = None  # [completion tokens], bool; None: all of them
    generator: str = ""  # who drew it: "actor-0", "learner-0", ...
    row: int = -1  # its candidate's among those of the step, group by group
    has_gradient: bool = True  # else it counts in the denominators alone
    is_traced: bool = False  # whether `Update.traced` is to have its log-probabilities

    def __post_init__(self) -> None:
        set_columns(self, completion_ids=np.int32, sampler_logprobs=np.float32, sampled=np.bool_)

    @classmethod
    def of(cls, prompt_ids: tuple[int, ...], completion: Completion) -> "Sample":
        """Without advantages yet."""
        sampled = completion.sampled
        return cls(
            prompt_ids,
            completion.token_ids,
            completion.logprobs[sampled],
            np.zeros(np.count_nonzero(sampled), np.float32),
            completion.policy_version,
            sampled=None if sampled.all() else sampled,
            generator=completion.generator,
        )

    @property
    def tokens(self) -> int:
        """The completion's sampled tokens: those that are trained on."""
        return self.length if self.sampled is None else int(np.count_nonzero(self.sampled))

    @property
    def length(self) -> int:
        """Tokens of the completion, sampled or not."""
        return len(self.completion_ids)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The samples of one optimiser step, or one learner's part of them.

    `sequences` and `tokens` count the whole batch over all learners: every loss divides by them,
    so that neither micro-batches nor the number of learners can change the gradient.
    """

    samples: tuple[Sample, ...]
    sequences: int
    tokens: int
    seed: int = 0  # of dropout; each learner's part has its own


@dataclass(slots=True, eq=False)
class Update:
    """What one learner says of an optimiser step that all of them took together: of its part of the
    batch in sums and arrays that can be joined, and of the step, which is the same in all."""

    loss: float = 0.0
    value_loss: float = 0.0
    clipped: int = 0  # tokens on which the clip acted
    corrected: int = 0  # tokens on which the bounds of the off-policy correction acted
    entropy_sum: float = 0.0  # over completion tokens
    difference: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """[sampled tokens], the learner's log-probabilities before any update of the step less the
    sampler's, float64: see `algorithms.divergence`"""
    sources: Sequence[tuple[str, int, int]] = ()
    """Of each sample, in the same order: its generator, its policy version, its sampled tokens"""
    kl: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """[tokens of some completions], policy against reference"""
    values: np.ndarray | None = None  # [tokens], the critic's before the update
    returns: np.ndarray | None = None  # [tokens]
    traced: dict[int, np.ndarray] = field(default_factory=dict)
    """`Sample.row` -> its log-probabilities before the update, [sampled tokens]"""
    grad_norm: float = 0.0  # of the policy, before clipping
    critic_grad_norm: float = 0.0
    skipped: bool = False  # a loss or a gradient was not finite: nothing was changed
    memory_mb: float = 0.0  # peak so far
    checksum: int = 0  # of all that is trained, after the step
    note: str = ""  # for the user

    @property
    def tokens(self) -> int:
        return len(self.difference)


@dataclass(slots=True)
class Proof:
    """What one learner says of a few sequences of a run's first batch: see `learners.proof`."""

    update: Update  # that of all of them at once, without its step
    apart: float  # how far their gradient is from the sum of each one's
    limit: float  # of that
    still: frozenset[str]  # what is trained and has no gradient
    is_judged: bool = True  # whether there is a gradient
    names_packs: bool = False  # whether it is not apart where they are padded

    @property
    def is_apart(self) -> bool:
        return self.apart > self.limit


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2**63) from what a draw is for, e.g. (run seed, step, task, candidate): a hash,
    since neighbouring integers as seeds make neighbouring requests share candidates."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1

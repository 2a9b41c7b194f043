"""Samples through a backend in micro-batches: measuring them, and the gradient of a batch.

The micro-batches' losses are shares of the whole batch's loss, so their size changes nothing but
memory and speed.
"""

import gc
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from unslothrl.algorithms import divergence
from unslothrl.algorithms.losses import Denominators, Tokens, policy_loss, value_loss
from unslothrl.algorithms.objective import Objective
from unslothrl.config.options import Config
from unslothrl.records import Batch, Sample, Update
from unslothrl.system.memory import MemoryElsewhere, is_out_of_memory, leaves_out_onednn

if TYPE_CHECKING:  # it imports PEFT, after Unsloth where that is used
    from unslothrl.backends.lora import LoraBackend

KL_SAMPLES = 16  # that the KL metric is estimated from
# That a loss may be divided by in float16: by 256, gradients of hidden values vanish; multiplied by
# 256, as that of a short answer among long ones may be by its weight, they overflow.
FLOAT16_LOSSES = 16

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with (samples done, tokens done)."""


class Passes:
    """Runs samples through `backend`; gradients accumulate in its parameters."""

    def __init__(
        self, backend: "LoraBackend", objective: Objective, config: Config, progress: Progress
    ):
        self.backend, self.objective, self.config = backend, objective, config
        self.progress = progress
        self.micro_batch, self.context = config.train_batch_size, config.context
        self.is_smallest = False  # of the last pass: each sample went through by itself
        self.asks_reference = False  # whether a pass computes the reference for the KL in the loss
        # losses whose backward pass is yet to come, and the adapters that made them
        self.waiting: list[tuple[torch.Tensor, Callable[[], AbstractContextManager]]] = []
        self.losses = 1  # of a micro-batch in a pass, that go back
        self.scale = 1.0  # of a pass's losses while they go back, a power of two
        self.note = ""  # on what was made smaller, for the user

    def within_memory(self, function: Callable[[], T]) -> T:
        """What `function` returns, a pass over samples that changes nothing but gradients that it
        begins anew. Where memory runs out it is repeated with micro-batches of half the size, which
        stay so, or without oneDNN; raises where there is nothing left to halve."""
        while True:
            try:
                found = function()
                self.backend.split.end_pass()
                return found
            except Exception as error:
                is_own = not isinstance(error, MemoryElsewhere)
                goes_without = self.backend.split.peers is None and leaves_out_onednn(error)
                may_repeat = not (self.is_smallest and is_own) or goes_without
                may_repeat &= self.backend.split.stage is None  # stages do not agree on it
                if not is_out_of_memory(error) or not may_repeat:
                    raise
            if is_own:
                self.backend.split.end_pass(has_failed=True)
            else:
                self.backend.split.drop()
            if goes_without:
                self.note = "memory ran out: PyTorch computes without oneDNN from here"
            else:
                self._halve()
            gc.collect()
            self.backend.free_cache()

    def _halve(self) -> None:
        before = self.micro_batch * self.context
        if self.micro_batch > 1:
            self.micro_batch //= 2
        else:
            self.context = max(1, self.context // 2)
        self.note = (
            f"memory ran out: micro-batches are {self.micro_batch * self.context / before:.0%} "
            "of their size from here, and the pass was repeated; set --train_batch_size lower"
        )

    @torch.no_grad()
    def measure(self, samples: Sequence[Sample], reference: bool) -> list[dict[str, Any]]:
        """Log-probabilities and values before an update, of each of `samples` in order."""
        measured: dict[int, dict[str, Any]] = {}
        for indices in self._micro_batches(samples):
            part = [samples[i] for i in indices]
            lengths = [sample.tokens for sample in part]
            found = {"logprobs": _split(self._logprobs(part), lengths)}
            if reference:
                found["reference"] = _split(self._reference_logprobs(part), lengths)
            if self.objective.has_critic:
                with self.backend.critic():
                    found["values"] = _split(self.backend.token_values(part), lengths)
            for place, i in enumerate(indices):
                measured[i] = {name: arrays[place] for name, arrays in found.items()}
            self.progress(len(measured), 0)
        return [measured[i] for i in range(len(samples))]

    @torch.no_grad()
    def judge(self, samples: Sequence[Sample]) -> list[float]:
        """What the reward model says of each whole sequence, in order."""
        found: dict[int, float] = {}
        for indices in self._micro_batches(samples):
            with self.backend.reward_model():
                scores = self.backend.sequence_scores([samples[i] for i in indices])
            found.update(zip(indices, scores.tolist(), strict=True))
            self.progress(len(found), 0)
        return [found[i] for i in range(len(samples))]

    def forward_backward(self, batch: Batch, train_policy: bool = True) -> Update:
        """Adds the gradient of a batch, or of one learner's part of it, to the parameters'.

        Without `train_policy` only the critic's: the policy's loss is computed, not its gradient.
        """
        # dropout's, so that a resumed run draws the same
        torch.manual_seed(batch.seed + self.backend.split.rank)
        over = Denominators(batch.sequences, batch.tokens, self.config.max_new_tokens)
        parts = self._micro_batches(batch.samples)
        micro_batches = [[batch.samples[i] for i in part] for part in parts]
        passed = [sample for samples in micro_batches for sample in samples]
        update, old, done = Update(), list[np.ndarray](), 0
        self.waiting.clear()
        self.losses = train_policy + self.objective.has_critic
        if self.backend.dtype == torch.float16:  # else divided by the batch, gradients vanish in it
            is_whole = self.objective.ratio == "trajectory"  # a token weighs as its sequence does
            count = batch.sequences if is_whole else batch.tokens
            self.scale = 2.0 ** int(math.log2(max(1, count / FLOAT16_LOSSES)))
        for index, samples in enumerate(micro_batches):
            with nullcontext() if train_policy else torch.no_grad():
                policy = self._policy_backward(samples, over, update, old)
            if index == len(micro_batches) // 2:
                update.kl = self._reference_divergence(samples, policy)
            if self.objective.has_critic:
                self._critic_backward(samples, over, update)
            done += len(samples)
            self.progress(done, sum(map(len, old)))
        self._go_back(0)
        if self.scale != 1:
            trained = {**self.backend.parameters(), **self.backend.critic_parameters()}
            for gradient in (p.grad for p in trained.values() if p.grad is not None):
                gradient /= self.scale
        sampler = _joined([s.sampler_logprobs for s in passed])
        update.difference = _joined(old).astype(np.float64) - sampler
        update.sources = [(s.generator, s.policy_version, s.tokens) for s in passed]
        if self.objective.has_critic:
            update.values = _joined([s.values for s in passed if s.values is not None])
            update.returns = _joined([s.returns for s in passed])
        if any(sample.is_traced for sample in passed):
            ends = np.cumsum([sample.tokens for sample in passed])[:-1]
            of_samples = zip(passed, np.split(_joined(old), ends), strict=True)
            update.traced = {s.row: values.copy() for s, values in of_samples if s.is_traced}
        return update

    def _policy_backward(
        self, samples: Sequence[Sample], over: Denominators, update: Update, olds: list[np.ndarray]
    ) -> torch.Tensor:
        """Adds to `update` and `olds`. -> the policy's log-probabilities, [tokens]."""
        if not samples:
            for _ in range(1 + self.asks_reference):
                policy = self._logprobs(samples)
            if torch.is_grad_enabled():
                self.backend.split.idle(head=True, backward=True)
            olds.append(policy.cpu().numpy())
            return policy
        policy, entropies = self.backend.token_logprobs(
            samples, self.config.temperature, bool(self.objective.entropy_coefficient)
        )
        old, reference = _measured(samples, "logprobs", policy), None
        if self.objective.kl == "loss":
            reference = (
                self._reference_logprobs(samples)
                if self.asks_reference
                else _measured(samples, "reference", policy)
            )
        loss = policy_loss(
            self.objective,
            Tokens(
                lengths=[sample.tokens for sample in samples],
                logprobs=policy,
                entropies=entropies,
                advantages=_tensor([s.advantages for s in samples], policy),
                sampler=_tensor([s.sampler_logprobs for s in samples], policy),
                old=old,
                reference=reference,
            ),
            over,
        )
        if loss.value.requires_grad:
            self._backward(loss.value, nullcontext)
        update.loss += loss.value.item()
        update.clipped += loss.clipped
        update.corrected += loss.corrected
        update.entropy_sum += entropies.sum().item()
        olds.append((policy if old is None else old).detach().cpu().numpy())
        return policy.detach()

    def _backward(
        self, loss: torch.Tensor, adapter: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """At once or, in a stage before the last, of the oldest loss."""
        self.waiting.append((loss, adapter))
        stage = self.backend.split.stage
        self._go_back(0 if stage is None else stage.ahead * self.losses)

    def _go_back(self, ahead: int) -> None:
        """From the oldest losses, but for the last `ahead`."""
        while len(self.waiting) > ahead:
            loss, adapter = self.waiting.pop(0)
            with adapter():
                (loss * self.scale if self.scale != 1 else loss).backward()

    def _critic_backward(
        self, samples: Sequence[Sample], over: Denominators, update: Update
    ) -> None:
        with self.backend.critic():
            values = self.backend.token_values(samples)
            if not samples:
                return self.backend.split.idle(head=False, backward=True)
            old = _measured(samples, "values", values)
            loss = value_loss(
                self.objective,
                [sample.tokens for sample in samples],
                values,
                values.detach() if old is None else old,
                _tensor([s.returns for s in samples], values),
                over,
                self.config.value_clip,
            )
            self._backward(loss, self.backend.critic)
        update.value_loss += loss.item()

    def _logprobs(self, samples: Sequence[Sample]) -> torch.Tensor:
        return self.backend.token_logprobs(samples, self.config.temperature)[0]

    @torch.no_grad()
    def _reference_logprobs(self, samples: Sequence[Sample]) -> torch.Tensor:
        with self.backend.reference():
            return self._logprobs(samples)

    @torch.no_grad()
    def _reference_divergence(self, samples: Sequence[Sample], policy: torch.Tensor) -> np.ndarray:
        """k3 of the tokens of some middling sequences: an estimate for the metrics."""
        if not samples:
            return self._reference_logprobs(samples).cpu().numpy()
        stride = -(-len(samples) // KL_SAMPLES)
        lengths = [sample.tokens for sample in samples]
        chosen = torch.cat(policy.split(lengths)[::stride])
        difference = chosen - self._reference_logprobs(samples[::stride])
        return divergence.k3(difference.double()).cpu().numpy()

    def _micro_batches(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Indices of each; as many in all learners that share a base, where this one has fewer with
        empty ones around its own, so that the middle stays the middle."""
        parts = self.backend.micro_batches(samples, self.micro_batch, self.context)
        self.is_smallest = all(len(part) == 1 for part in parts)
        asks = self.objective.kl == "loss" and any(s.reference is None for s in samples)
        count, self.asks_reference = self.backend.split.in_step(len(parts), asks)
        before = count // 2 - len(parts) // 2
        after = count - len(parts) - before
        return [[] for _ in range(before)] + parts + [[] for _ in range(after)]


def _measured(samples: Sequence[Sample], name: str, like: torch.Tensor) -> torch.Tensor | None:
    """What was measured of the samples before the first update; None where it was not."""
    values = [getattr(sample, name) for sample in samples]
    return None if any(value is None for value in values) else _tensor(values, like)


def _tensor(parts: Sequence, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(_joined(parts)).to(like.device)


def _joined(parts: Sequence) -> np.ndarray:
    """Arrays, or sequences of numbers, one after the other in float32."""
    return np.concatenate([np.zeros(0, np.float32), *(np.asarray(p, np.float32) for p in parts)])


def _split(values: torch.Tensor, lengths: Sequence[int]) -> list[np.ndarray]:
    """[tokens] -> an array for each sequence."""
    ends = np.cumsum(lengths)[:-1]
    return np.split(values.detach().float().cpu().numpy(), ends)

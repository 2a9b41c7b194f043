"""The learner: a backend that trains the LoRA by an objective, and its own share of generation."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import safetensors.torch
import torch

from unslothrl import exchange
from unslothrl.actor import Actor
from unslothrl.algorithms import divergence
from unslothrl.algorithms.aggregation import Denominators
from unslothrl.algorithms.losses import Tokens, policy_loss, value_loss
from unslothrl.algorithms.objective import Objective
from unslothrl.backends.base import Backend
from unslothrl.checkpoints import learner_state
from unslothrl.checkpoints.learner_state import Leaf
from unslothrl.types import (
    Adapter,
    Assignment,
    Batch,
    Collected,
    Measured,
    Sample,
    StepResult,
    Update,
    UpdateStats,
)

OPTIMIZER = "optimizer/"  # what the optimisers' part of a checkpoint is named with
KL_SAMPLES = 16  # that the KL metric is estimated from


@dataclass(frozen=True)
class Hyperparameters:
    """What an update needs besides the objective."""

    temperature: float  # what the logits are divided by: the sampling temperature
    max_new_tokens: int
    micro_batch: int  # sequences a forward, or whole contexts' worth of tokens where it packs
    context: int = 1  # tokens of the longest prompt and completion
    max_grad_norm: float = 0.0  # 0: off
    weight_decay: float = 0.0
    value_clip: float = 0.0
    seed: int = 0


class Learner:
    """Trains on whole batches in micro-batches; generates like an actor where it is asked to.

    The micro-batches' losses are shares of the whole batch's loss, so their size changes nothing
    but memory and speed.
    """

    def __init__(
        self, backend: Backend, objective: Objective, actor: Actor, settings: Hyperparameters
    ):
        self.backend, self.objective, self.actor = backend, objective, actor
        self.settings = settings
        self.optimizers = {"lora": self._optimizer(backend.parameters())}
        if objective.has_critic:
            backend.add_critic(settings.seed)
            self.optimizers["critic"] = self._optimizer(backend.critic_parameters())
        self.progress = actor.progress
        self.listener: exchange.Listener | None = None
        self.exchange: exchange.Exchange | None = None  # None: this is the only learner

    def _optimizer(self, parameters: dict[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Its learning rate comes with every step."""
        return self.backend.optimizer(
            list(parameters.values()), lr=0.0, weight_decay=self.settings.weight_decay
        )

    def _trained(self) -> dict[str, dict[str, torch.nn.Parameter]]:
        """The parameters of every optimiser, by its name."""
        all_of_them = {
            "lora": self.backend.parameters(),
            "critic": self.backend.critic_parameters(),
        }
        return {name: all_of_them[name] for name in self.optimizers}

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """This learner's share of a rollout; see `Actor.submit`."""
        self.backend.to_device()
        self.actor.submit(assignments)

    def collect(self, least: int | None = None) -> Collected:
        """See `Actor.collect`."""
        return self.actor.collect(least)

    def load(self, adapter: Adapter) -> int:
        """Tells this learner's engine which version its weights are by now. The update is over."""
        arrived = self.actor.load(adapter)
        self.make_room()
        return arrived

    def make_room(self) -> None:
        """Leaves the card to the actors on it until something is computed here again."""
        self.backend.to_host()

    @torch.no_grad()
    def measure(self, samples: Sequence[Sample], reference: bool) -> list[Measured]:
        """Log-probabilities and values as they are before an update, in the order of `samples`."""
        self.backend.to_device()
        self.progress.set(0, 0)
        found: list[Measured | None] = [None] * len(samples)
        done = 0
        for indices in self._micro_batches(samples):
            part = [samples[i] for i in indices]
            lengths = [sample.tokens for sample in part]
            policy = _split(self._logprobs(part), lengths)
            references: Sequence[np.ndarray | None] = [None] * len(part)
            values: Sequence[np.ndarray | None] = [None] * len(part)
            if reference:
                references = _split(self._reference_logprobs(part), lengths)
            if self.objective.has_critic:
                with self.backend.critic():
                    values = _split(self.backend.token_values(part), lengths)
            for i, own, other, value in zip(indices, policy, references, values, strict=True):
                found[i] = Measured(own, other, value)
            done += len(part)
            self.progress.set(done, 0)
        return [one for one in found if one is not None]

    def forward_backward(self, batch: Batch, train_policy: bool = True) -> UpdateStats:
        """Accumulates the gradient of this learner's part of the batch.

        Without `train_policy` only the critic's: the policy's loss is computed, not its gradient.
        """
        started = time.perf_counter()
        self.progress.set(0, 0)
        self.backend.to_device()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        over = Denominators(batch.sequences, batch.tokens, self.settings.max_new_tokens)
        micro_batches = [
            [batch.samples[i] for i in part] for part in self._micro_batches(batch.samples)
        ]
        total = _Sums()
        for index, samples in enumerate(micro_batches):
            with nullcontext() if train_policy else torch.no_grad():
                policy = self._policy_backward(samples, over, total)
            if index == len(micro_batches) // 2:
                total.kl = self._reference_divergence(samples, policy)
            if self.objective.has_critic:
                self._critic_backward(samples, over, total)
            total.done += len(samples)
            self.progress.set(total.done, total.tokens)
        every = [sample for samples in micro_batches for sample in samples]
        return UpdateStats(
            loss=total.loss,
            clipped=total.clipped,
            corrected=total.corrected,
            entropy_sum=total.entropy,
            sampler_logprobs=_joined([s.sampler_logprobs for s in every]),
            learner_logprobs=_joined(total.old),
            kl=total.kl,
            seconds=time.perf_counter() - started,
            value_loss=total.value_loss,
            values=_joined([s.measured.values for s in every if s.measured is not None])
            if self.objective.has_critic
            else None,
            returns=_joined([s.returns for s in every]) if self.objective.has_critic else None,
        )

    def _policy_backward(
        self, samples: Sequence[Sample], over: Denominators, total: "_Sums"
    ) -> torch.Tensor:
        """-> the policy's log-probabilities, [tokens], without their gradients."""
        policy, entropies = self.backend.token_logprobs(
            samples, self.settings.temperature, bool(self.objective.entropy_coefficient)
        )
        old = self._told(samples, "logprobs", policy)
        loss = policy_loss(
            self.objective,
            Tokens(
                lengths=[sample.tokens for sample in samples],
                logprobs=policy,
                entropies=entropies,
                advantages=_tensor([s.advantages for s in samples], policy),
                sampler=_tensor([s.sampler_logprobs for s in samples], policy),
                old=old,
                reference=self._reference_for(samples, policy),
            ),
            over,
        )
        if loss.value.requires_grad:
            loss.value.backward()
        total.loss += loss.value.item()
        total.clipped += loss.clipped
        total.corrected += loss.corrected
        total.entropy += entropies.sum().item()
        total.old.append((policy if old is None else old).detach().cpu().numpy())
        total.tokens += len(policy)
        return policy.detach()

    def _critic_backward(
        self, samples: Sequence[Sample], over: Denominators, total: "_Sums"
    ) -> None:
        with self.backend.critic():
            values = self.backend.token_values(samples)
            old = self._told(samples, "values", values)
            loss = value_loss(
                self.objective,
                [sample.tokens for sample in samples],
                values,
                values.detach() if old is None else old,
                _tensor([s.returns for s in samples], values),
                over,
                self.settings.value_clip,
            )
            loss.backward()
        total.value_loss += loss.item()

    def _reference_for(self, samples: Sequence[Sample], like: torch.Tensor) -> torch.Tensor | None:
        if self.objective.kl != "loss":
            return None
        known = self._told(samples, "reference", like)
        return self._reference_logprobs(samples) if known is None else known

    @staticmethod
    def _told(samples: Sequence[Sample], name: str, like: torch.Tensor) -> torch.Tensor | None:
        """What was measured of the samples before the first update; None where it was not."""
        found = [s.measured and getattr(s.measured, name) for s in samples]
        return None if any(one is None for one in found) else _tensor(found, like)

    def _logprobs(self, samples: Sequence[Sample]) -> torch.Tensor:
        return self.backend.token_logprobs(samples, self.settings.temperature)[0]

    @torch.no_grad()
    def _reference_logprobs(self, samples: Sequence[Sample]) -> torch.Tensor:
        with self.backend.reference():
            return self._logprobs(samples)

    @torch.no_grad()
    def _reference_divergence(self, samples: Sequence[Sample], policy: torch.Tensor) -> np.ndarray:
        """k3 of the tokens of some middling sequences: an estimate for the metrics."""
        every = -(-len(samples) // KL_SAMPLES)
        lengths = [sample.tokens for sample in samples]
        own = torch.cat(policy.split(lengths)[::every])
        difference = own - self._reference_logprobs(samples[::every])
        return divergence.k3(difference.double()).cpu().numpy()

    def update(self, batch: Batch, lrs: dict[str, float], train_policy: bool = True) -> Update:
        """One optimiser step on the whole batch, of which `batch` is this learner's part.

        `lrs` has a learning rate for "lora" and, with a critic, for "critic". The part may be
        empty. The other learners update at the same time, and the sum of all gradients makes
        every one of them take the same step. Where a loss or a gradient is not finite in any
        learner, nothing is changed in all of them. RunError where another one does not come.
        """
        stats = self.forward_backward(batch, train_policy)
        finite = is_finite(stats)
        if self.exchange is not None:
            finite = self.take_sum(self.exchange.sum(self.part_of_sum(finite)))
        return Update(stats, self.step(lrs, finite))

    @staticmethod
    def update_in_turn(
        learners: "Sequence[Learner]",
        parts: Sequence[Batch],
        lrs: dict[str, float],
        train_policy: bool = True,
    ) -> list[Update]:
        """`Learner.update` of several learners in one process, one after the other.

        Their gradients are added up in the learners' order.
        """
        stats = [
            learner.forward_backward(part, train_policy)
            for learner, part in zip(learners, parts, strict=True)
        ]
        total = sum(
            learner.part_of_sum(is_finite(of_part))
            for learner, of_part in zip(learners, stats, strict=True)
        )
        assert isinstance(total, torch.Tensor)
        return [
            Update(of_part, learner.step(lrs, learner.take_sum(total.clone())))
            for learner, of_part in zip(learners, stats, strict=True)
        ]

    def part_of_sum(self, finite: bool) -> torch.Tensor:
        """The accumulated gradient as it goes to the other learners: see `exchange.pack`."""
        return exchange.pack(self._parameters(), finite)

    def take_sum(self, total: torch.Tensor) -> bool:
        """All learners' gradients in place of this one's. -> whether each loss was finite."""
        return exchange.unpack(total, self._parameters())

    def step(self, lrs: dict[str, float], finite: bool) -> StepResult:
        """One step of each optimiser; none where the loss or a gradient is not `finite`."""
        norms = {"lora": float("nan")}
        if finite:
            norms = self._clip_gradients()
            finite = all(np.isfinite(norm) for norm in norms.values())
        for kind, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = lrs[kind]
            if finite:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        memory_mb = self.backend.memory_mb()
        return StepResult(norms["lora"], not finite, memory_mb, norms.get("critic", 0.0))

    def _clip_gradients(self) -> dict[str, float]:
        """-> the norm of each optimiser's gradient before it was clipped."""
        limit = self.settings.max_grad_norm or float("inf")
        return {
            kind: torch.nn.utils.clip_grad_norm_(list(parameters.values()), limit).item()
            for kind, parameters in self._trained().items()
        }

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [p for parameters in self._trained().values() for p in parameters.values()]

    def listen(self, host: str | None = None) -> str:
        """Of learner 0, before all `join`: opens a port. -> its "host:port" for the others.

        `host` is this node's address; None: found out.
        """
        self.listener = exchange.Listener(host)
        return self.listener.address

    def join(
        self,
        rank: int,
        world_size: int,
        address: str,
        deadline_s: float = exchange.DEADLINE_S,
    ) -> None:
        """Makes this learner one of `world_size` that update together; returns when all are there.

        `address` is what learner 0's `listen` returned. RunError where one does not come within
        `deadline_s`, now and at each later update.
        """
        self.exchange = exchange.Exchange(
            rank, world_size, address, listener=self.listener, deadline_s=deadline_s
        )

    def gradients(self) -> bytes:
        """This learner's accumulated gradients, safetensors, for the other learners."""
        return safetensors.torch.save(
            {
                f"{kind}/{name}": parameter.grad.detach().cpu().contiguous()
                for kind, parameters in self._trained().items()
                for name, parameter in parameters.items()
                if parameter.grad is not None
            }
        )

    def optim_step(self, lrs: dict[str, float], *gradients: bytes) -> StepResult:
        """One step of every optimiser on this learner's gradient, or on all learners' sum if given.

        `lrs` has a learning rate for "lora" and, with a critic, for "critic". Every learner takes
        the same sum in the same order, so all stay equal bit for bit. Where a gradient is not
        finite, nothing at all is changed.
        """
        trained = self._trained()
        if gradients:
            parts = [safetensors.torch.load(data) for data in gradients]
            for kind, parameters in trained.items():
                for name, parameter in parameters.items():
                    present = [p[f"{kind}/{name}"] for p in parts if f"{kind}/{name}" in p]
                    parameter.grad = (
                        torch.stack(present).sum(0).to(parameter.device) if present else None
                    )
        return self.step(lrs, finite=True)

    def discard_gradients(self) -> StepResult:
        """In place of `optim_step` where the loss is not finite: nothing is changed."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        return StepResult(float("nan"), True, self.backend.memory_mb())

    def publish(self, version: int) -> Adapter:
        return self.backend.publish(version)

    def save_state(self) -> bytes:
        """What is trained, in full precision, and the optimisers' states. See `learner_state`."""
        values: dict[str, Leaf] = {}
        for kind, parameters in self._trained().items():
            for name, parameter in parameters.items():
                values[f"{kind}/{name}"] = parameter.detach()
            for name, value in learner_state.leaves(self.optimizers[kind]).items():
                values[f"{OPTIMIZER}{kind}/{name}"] = value
        return learner_state.pack(values)

    def load_state(self, data: bytes) -> None:
        """Continues exactly where `save_state` was called.

        ValueError if the LoRA or the optimiser differs.
        """
        values = learner_state.unpack(data)
        trained = self._trained()
        expected = {
            f"{kind}/{name}": p.shape for kind in trained for name, p in trained[kind].items()
        }
        weights = {
            name: value
            for name, value in values.items()
            if isinstance(value, torch.Tensor) and not name.startswith(OPTIMIZER)
        }
        if expected != {name: tensor.shape for name, tensor in weights.items()}:
            raise ValueError("the checkpoint holds another LoRA than this run's: use its config")
        for kind, optimizer in self.optimizers.items():
            prefix = f"{OPTIMIZER}{kind}/"
            own = {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}
            learner_state.restore(optimizer, own)
        with torch.no_grad():  # last: building an optimiser's state may touch the parameters
            for kind, parameters in trained.items():
                for name, parameter in parameters.items():
                    parameter.copy_(weights[f"{kind}/{name}"])

    def use_level(self, level: str | None) -> str | None:
        """As an actor does: it generates too."""
        return self.actor.use_level(level)

    def fingerprint(self) -> str:
        return self.backend.fingerprint()

    def close(self) -> None:
        if self.exchange is not None:
            self.exchange.close()
        self.actor.close()

    def _micro_batches(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Indices."""
        settings = self.settings
        return self.backend.micro_batches(samples, settings.micro_batch, settings.context)


@dataclass
class _Sums:
    """What the micro-batches of an update add up to."""

    loss: float = 0.0
    value_loss: float = 0.0
    clipped: int = 0
    corrected: int = 0
    entropy: float = 0.0
    done: int = 0
    tokens: int = 0
    old: list[np.ndarray] = field(default_factory=list)
    kl: np.ndarray = field(default_factory=lambda: np.zeros(0))


def is_finite(stats: UpdateStats) -> bool:
    return bool(np.isfinite(stats.loss + stats.value_loss))


def _tensor(parts: Sequence, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(_joined(parts)).to(like.device)


def _joined(parts: Sequence) -> np.ndarray:
    """Arrays, or sequences of numbers, one after the other in float32."""
    return np.concatenate([np.zeros(0, np.float32), *(np.asarray(p, np.float32) for p in parts)])


def _split(values: torch.Tensor, lengths: Sequence[int]) -> list[np.ndarray]:
    """[tokens] -> an array for each sequence."""
    ends = np.cumsum(lengths)[:-1]
    return np.split(values.detach().float().cpu().numpy(), ends)

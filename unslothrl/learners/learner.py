"""The learner: a backend that trains the LoRA by an objective, and its share of generation."""

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from unslothrl.actors.actor import Actor
from unslothrl.algorithms.objective import Objective
from unslothrl.checkpoints import learner_state
from unslothrl.config.options import Config
from unslothrl.errors import ResultLost
from unslothrl.learners import exchange, proof
from unslothrl.learners.passes import Passes
from unslothrl.records import Assignment, Batch, Group, Proof, Sample, Update
from unslothrl.system.memory import peak_memory_mb
from unslothrl.weights.adapter import Adapter, AdapterShape
from unslothrl.weights.published import Published

if TYPE_CHECKING:  # it imports PEFT, after Unsloth where that is used
    from unslothrl.backends.lora import LoraBackend
    from unslothrl.tracking.profiler import Recording


class Learner:
    """Trains on its part of each batch; generates like an actor where it is asked to."""

    def __init__(self, backend: "LoraBackend", objective: Objective, actor: Actor, config: Config):
        self.backend, self.actor, self.config = backend, actor, config
        self.optimizers = {"lora": self._optimizer(backend.parameters())}
        if objective.has_critic:
            backend.add_critic(config.seed)
            self.optimizers["critic"] = self._optimizer(backend.critic_parameters())
        self.progress = actor.progress
        self.passes = Passes(backend, objective, config, self._report)
        self.published: Adapter | None = None  # the newest version, for who finds it damaged
        self.store: Any = None  # where the learners meet, of learner 0
        self.exchange: exchange.Exchange | None = None  # None: this is the only learner

    def _report(self, done: int, tokens: int) -> None:
        self.progress.set(done, tokens)
        if self.actor.profiler is not None:
            self.actor.profiler.tick()

    def _optimizer(self, parameters: dict[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Its learning rate comes with each step."""
        return self.backend.optimizer(
            list(parameters.values()), lr=0.0, weight_decay=self.config.weight_decay
        )

    def trained(self) -> dict[str, dict[str, torch.nn.Parameter]]:
        """Each optimiser's parameters, by its name."""
        parameters = {"lora": self.backend.parameters(), "critic": self.backend.critic_parameters()}
        return {name: parameters[name] for name in self.optimizers}

    def collect(
        self,
        least: int | None = None,
        seconds: float | None = None,
        assignments: Sequence[Assignment] = (),
    ) -> tuple[list[tuple[int, Group]], dict[str, Any]]:
        """This learner's share of a rollout; see `Actor.collect`."""
        if assignments:
            self.backend.to_device()
        return self.actor.collect(least, seconds, assignments)

    def load(self, adapter: Adapter, fetch_s: float = 0.0) -> dict[str, float]:
        """The update is over: its engine learns which version the weights are now."""
        loaded = self.actor.load(adapter, fetch_s)
        self.make_room()
        return loaded

    def check(self, level: str | None, shape: AdapterShape | None = None) -> Any:
        """See `Actor.check`; the hash is of the base that is trained on."""
        base_hash = self.backend.fingerprint()
        if shape is not None:
            self.backend.to_device()
        found = self.actor.check(level, shape, base_hash)
        self.make_room()
        return found

    def adapter_shape(self) -> AdapterShape:
        """Of what it publishes."""
        return Published(self.backend.publish(0)).shape()

    def make_room(self) -> None:
        """Leaves the card to the actors on it until something is computed here again."""
        self.backend.to_host()

    @contextlib.contextmanager
    def _computing(self, part: str) -> Iterator[None]:
        self.backend.to_device()
        self.progress.set(0, 0)
        with self.actor.recorded(part):
            yield

    def measure(self, samples: Sequence[Sample], reference: bool) -> list[dict[str, Any]]:
        with self._computing("measuring"):
            return self.passes.within_memory(lambda: self.passes.measure(samples, reference))

    def judge(self, samples: Sequence[Sample]) -> list[float]:
        with self._computing("measuring"):
            return self.passes.within_memory(lambda: self.passes.judge(samples))

    def forward_backward(self, batch: Batch, train_policy: bool = True) -> Update:
        """The gradient of this learner's part of a batch: see `Passes.forward_backward`."""

        def from_nothing() -> Update:
            for optimizer in self.optimizers.values():
                optimizer.zero_grad(set_to_none=True)
            return self.passes.forward_backward(batch, train_policy)

        with self._computing("update"):
            return self.passes.within_memory(from_nothing)

    def prove(self, whole: Batch, parts: Sequence[Batch]) -> Proof:
        """See `proof.prove`."""
        self.backend.to_device()
        self.progress.set(0, 0)
        return proof.prove(self.passes, self.trained(), whole, parts)

    def update(
        self,
        batch: Batch,
        lrs: dict[str, float],
        train_policy: bool = True,
        deadline_s: float | None = None,
    ) -> Update:
        """One optimiser step on the whole batch, of which `batch` is this learner's part; the sum
        of all learners' gradients makes every one of them take the same step.

        `lrs` has a learning rate for "lora" and, with a critic, for "critic". Where a loss or a
        gradient is not finite in any learner, nothing is changed in all of them. PeerLost where
        another one has died, or does not come within `deadline_s`.
        """
        if self.exchange is not None:
            self.exchange.deadline_s = deadline_s or exchange.SUM_S
        with self.actor.recorded("update"):
            update = self.forward_backward(batch, train_policy)
            finite = self.backend.split.is_early or is_finite(update)
            if self.exchange is not None:
                finite = self.exchange.sum_gradients(self.parameters(), finite)
                self.exchange.deadline_s = exchange.SUM_S
            return self.step(lrs, finite, update)

    @staticmethod
    def update_in_turn(
        learners: "Sequence[Learner]",
        parts: Sequence[Batch],
        lrs: dict[str, float],
        train_policy: bool = True,
        deadline_s: float | None = None,
    ) -> list[Update]:
        """`Learner.update` of several learners in one process, summed in their order."""
        updates = [
            learner.forward_backward(part, train_policy)
            for learner, part in zip(learners, parts, strict=True)
        ]
        total = sum(
            exchange.pack(learner.parameters(), is_finite(of_part))
            for learner, of_part in zip(learners, updates, strict=True)
        )
        assert isinstance(total, torch.Tensor)
        return [
            learner.step(lrs, exchange.unpack(total.clone(), learner.parameters()), of_part)
            for learner, of_part in zip(learners, updates, strict=True)
        ]

    def step(
        self, lrs: dict[str, float], finite: bool = True, update: Update | None = None
    ) -> Update:
        """One step of each optimiser; none where loss or gradient is not `finite`."""
        norms = {"lora": float("nan")}
        if finite:
            limit = self.config.max_grad_norm or float("inf")
            norms = {
                kind: torch.nn.utils.clip_grad_norm_(list(parameters.values()), limit).item()
                for kind, parameters in self.trained().items()
            }
            finite = all(map(math.isfinite, norms.values()))
        for kind, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = lrs[kind]
            if finite:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        note, self.passes.note = self.passes.note, ""
        return replace(
            update or Update(),
            grad_norm=norms["lora"],
            critic_grad_norm=norms.get("critic", 0.0),
            skipped=not finite,
            memory_mb=peak_memory_mb(),
            checksum=checksum(self.parameters()),
            note=note,
        )

    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for parameters in self.trained().values() for p in parameters.values()]

    def listen(self, host: str | None = None) -> str:
        """Of learner 0, before all `join`: opens a port. -> its "host:port" for the others.
        `host` is this node's address; None: asked of the system."""
        self.leave()
        self.store, address = exchange.listen(host)
        return address

    def join(
        self, rank: int, world_size: int, address: str, deadline_s: float = exchange.JOIN_S
    ) -> None:
        """Makes this learner one of `world_size` that update together, at the address that learner
        0's `listen` returned. PeerLost where one does not come within `deadline_s`."""
        if rank != 0:
            self.leave()
        self.exchange = exchange.Exchange(
            rank,
            world_size,
            address,
            store=self.store,
            deadline_s=deadline_s,
            shards=self.config.learner_shards,
            partners=self.config.learners_together,
            stages=self.config.pipeline_stages,
        )
        self.backend.split.meet(self.exchange)

    def leave(self) -> None:
        """Leaves the group that it is in, if any: learners that wait for it fail at once."""
        if self.exchange is not None:
            self.exchange.close()
        self.exchange = self.store = None
        self.backend.split.meet(None)

    def publish(self, version: int) -> Adapter:
        self.published = self.backend.publish(version)
        return self.published

    def publish_again(self) -> Adapter:
        """The version that was published last, whatever the weights are by now."""
        if self.published is None:
            raise ResultLost("a version is lost: the learner that published it has been replaced")
        return self.published

    def save_state(self) -> bytes:
        """What is trained, in full precision, and the optimisers' states. See `learner_state`."""
        return learner_state.save(self.trained(), self.optimizers)

    def load_state(self, data: bytes) -> None:
        """Continues where `save_state` was called. ValueError if the LoRA or optimiser differs."""
        self.backend.to_device()  # where a first step of the optimiser puts its state
        learner_state.load(self.trained(), self.optimizers, data)
        self.make_room()

    # It generates too, as an actor does.

    def abandon(self, indices: Collection[int] | None = None) -> None:
        self.actor.abandon(indices)

    def start_profile(self) -> None:
        self.actor.start_profile()

    def end_profile(self) -> "list[Recording]":
        return self.actor.end_profile()

    def close(self) -> None:
        self.leave()
        self.actor.close()


def is_finite(update: Update) -> bool:
    return math.isfinite(update.loss + update.value_loss)


def checksum(parameters: Sequence[torch.nn.Parameter]) -> int:
    """A number that differs where any bit of any parameter does: the bits as whole numbers, each
    times an odd number of its own, summed modulo 2**64, which is exact in any order."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = []
    for parameter in parameters:
        bits = parameter.detach().contiguous().view(whole[parameter.element_size()]).flatten()
        places = torch.arange(1, 2 * len(bits), 2, device=bits.device)
        sums.append((bits.long() * places).sum())
    total = torch.stack(sums) if sums else torch.zeros(1, dtype=torch.int64)
    places = torch.arange(1, 2 * len(total), 2, device=total.device) * 6364136223846793005
    return int((total * places).sum().item())

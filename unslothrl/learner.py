"""The learner: a backend that trains the LoRA by an objective, and its own share of generation."""

import time
from collections.abc import Sequence

import numpy as np
import safetensors.torch
import torch

from unslothrl.actor import Actor, Rollout
from unslothrl.algorithms import Objective, diagnostics
from unslothrl.backends.base import Backend
from unslothrl.types import Adapter, Batch, Sample, Sampling, Task, UpdateStats


class Learner:
    """Trains on whole batches in micro-batches; generates like an actor where it is asked to.

    The micro-batches' losses are shares of the whole batch's loss, so their size changes nothing
    but memory and speed.
    """

    def __init__(
        self,
        backend: Backend,
        objective: Objective,
        actor: Actor,
        *,
        lr: float,
        micro_batch: int,
        temperature: float,
        max_grad_norm: float,
    ):
        self.backend, self.objective, self.actor = backend, objective, actor
        self.micro_batch, self.temperature = micro_batch, temperature
        self.max_grad_norm = max_grad_norm
        self.optimizer = backend.optimizer(lr)
        self.progress = actor.progress

    def generate(
        self,
        tasks: Sequence[Task],
        candidates: int,
        sampling: Sampling,
        seed: tuple[int | str, ...],
    ) -> Rollout:
        """This learner's share of a rollout; see `Actor.generate`."""
        return self.actor.generate(tasks, candidates, sampling, seed)

    def load(self, adapter: Adapter) -> int:
        """Tells this learner's engine which version its weights are by now."""
        return self.actor.load(adapter)

    def forward_backward(self, batch: Batch) -> UpdateStats:
        """Accumulates the gradient of this learner's part of the batch."""
        started = time.perf_counter()
        self.progress.set(0, 0)
        self.optimizer.zero_grad(set_to_none=True)
        micro_batches = split(batch.samples, self.micro_batch)
        kl = self._reference_divergence(micro_batches[len(micro_batches) // 2])
        loss, clipped, entropy, logprobs, done, tokens = 0.0, 0, 0.0, [], 0, 0
        for samples in micro_batches:
            policy, entropies = self.backend.token_logprobs(samples, self.temperature)
            share = self.objective.loss(
                policy,
                [sample.advantage for sample in samples],
                [len(sample.completion_ids) for sample in samples],
                batch.sequences,
            )
            share.value.backward()
            loss += share.value.item()
            clipped += share.clipped
            entropy += entropies.sum().item()
            logprobs.append(policy.detach().cpu().numpy())
            done, tokens = done + len(samples), tokens + len(policy)
            self.progress.set(done, tokens)
        sampled = [s.sampler_logprobs for samples in micro_batches for s in samples]
        return UpdateStats(
            loss=loss,
            clipped=clipped,
            entropy_sum=entropy,
            sampler_logprobs=np.concatenate(sampled).astype(np.float32),
            learner_logprobs=np.concatenate(logprobs),
            kl=kl,
            seconds=time.perf_counter() - started,
        )

    @torch.no_grad()
    def _reference_divergence(self, samples: Sequence[Sample]) -> np.ndarray:
        """k3 of the tokens of middling sequences: an estimate, not a term of the loss."""
        policy, _ = self.backend.token_logprobs(samples, self.temperature)
        with self.backend.reference():
            reference, _ = self.backend.token_logprobs(samples, self.temperature)
        return diagnostics.k3(policy.cpu().numpy(), reference.cpu().numpy())

    def gradients(self) -> bytes:
        """This learner's accumulated gradient, safetensors, for the other learners."""
        return safetensors.torch.save(
            {
                name: parameter.grad.detach().cpu().contiguous()
                for name, parameter in self.backend.parameters().items()
                if parameter.grad is not None
            }
        )

    def optim_step(self, *gradients: bytes) -> dict[str, float]:
        """One optimiser step on this learner's gradient, or on the sum of all learners' if given.

        Every learner takes the same sum in the same order, so all stay equal bit for bit.
        """
        parameters = self.backend.parameters()
        if gradients:
            parts = [safetensors.torch.load(data) for data in gradients]
            for name, parameter in parameters.items():
                present = [part[name] for part in parts if name in part]
                parameter.grad = torch.stack(present).sum(0).to(parameter.device)
        limit = self.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(list(parameters.values()), limit)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"train/grad_norm": norm.item(), "memory/learner_peak_mb": self.backend.memory_mb()}

    def publish(self, version: int) -> Adapter:
        return self.backend.publish(version)

    def save_state(self) -> bytes:
        """The LoRA in full precision and the optimiser's state, safetensors."""
        tensors = {f"lora/{name}": p.detach() for name, p in self.backend.parameters().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            for key, value in state.items():
                tensors[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
        return safetensors.torch.save(
            {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
        )

    def load_state(self, data: bytes) -> None:
        """Continues exactly where `save_state` was called. ValueError if the LoRA differs."""
        tensors = safetensors.torch.load(data)
        parameters = self.backend.parameters()
        expected = {f"lora/{name}": p.shape for name, p in parameters.items()}
        found = {name: t.shape for name, t in tensors.items() if name.startswith("lora/")}
        if expected != found:
            raise ValueError("the checkpoint holds another LoRA than this run's: use its config")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[f"lora/{name}"])
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/")
                state.setdefault(int(index), {})[key] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})

    def fingerprint(self) -> str:
        return self.backend.fingerprint()

    def close(self) -> None:
        self.actor.close()


def split(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Micro-batches of `size` samples, of like length together so that little is padding."""
    ordered = sorted(samples, key=lambda s: len(s.prompt_ids) + len(s.completion_ids))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]

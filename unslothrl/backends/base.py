"""What the learner asks of a training backend."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from unslothrl.records import Sample
from unslothrl.weights.adapter import Adapter


class Backend(Protocol):
    """A 4-bit base with one trainable LoRA on it."""

    def micro_batches(
        self, samples: Sequence[Sample], sequences: int, context: int
    ) -> list[list[int]]:
        """Indices of the samples that go through the model together.

        Padded, `sequences` of like length; packed, as many as fit into the tokens of `sequences`
        whole contexts of `context` tokens.
        """

    def token_logprobs(
        self, samples: Sequence[Sample], temperature: float, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability and entropy of each sampled token, under logits / temperature.

        Both float32 and flat, [sum of the samples' `tokens`], sample after sample. Gradients flow
        through the log-probabilities into the LoRA if autograd is on, through the entropies only
        with `entropy_gradient`.
        """

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The policy's LoRA parameters by PEFT's adapter name, in a fixed order."""

    def add_critic(self, seed: int) -> None:
        """A critic on the same base: a LoRA of the policy's shape and a value head, at first 0.

        Call it once, before anything is trained.
        """

    def critic(self) -> AbstractContextManager[None]:
        """Where `token_values` is called, and the backward pass of what it returned."""

    def token_values(self, samples: Sequence[Sample]) -> torch.Tensor:
        """The critic's value of the state before each sampled token, float32 and flat."""

    def critic_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The critic's LoRA and value head, in a fixed order; empty without a critic."""

    def add_reward_model(self, folder: Path, normalize: bool) -> None:
        """A trained reward model on the same base: its LoRA and its head, as `unslothrl rm` has
        saved them; `normalize`: its scores less their mean, over their deviation."""

    def reward_model(self) -> AbstractContextManager[None]:
        """Where `sequence_scores` is called."""

    def sequence_scores(self, samples: Sequence[Sample]) -> torch.Tensor:
        """The reward model's score of each whole sequence, [samples] float32: what its head makes
        of the state at the last token."""

    def reference(self) -> AbstractContextManager[None]:
        """Inside it, `token_logprobs` is that of the base with the adapter off."""

    def generating(self) -> AbstractContextManager[Any]:
        """Inside it, what is yielded generates: it is called as a causal model of transformers is,
        with a cache. Afterwards the model trains as if nothing had been.

        The caller turns gradients off: engines of one process enter and leave in any order.
        """

    def restore_adapter(self, adapter: Adapter) -> None:
        """Puts a published version's weights into the LoRA, in place."""

    def keep_version(self, key: int, adapter: Adapter) -> None:
        """Holds an older policy version beside the weights as they are, to generate with, until
        `forget_version`; no two that are held have the same `key`."""

    def version(self, key: int) -> AbstractContextManager[None]:
        """Inside it, the model is that of a kept version."""

    def forget_version(self, key: int) -> None:
        """Frees a kept version."""

    def adapter_problem(
        self, adapter: Adapter, *, is_copy: bool, key: int | None = None
    ) -> str | None:
        """What of the LoRA, or of the version that is kept under `key`, is not as `adapter`, None
        where nothing is: tensors, scaling, and which LoRA is active. `is_copy`: see
        `readback.problem_of`."""

    def optimizer(
        self, parameters: Sequence[torch.nn.Parameter], lr: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """A fresh optimiser: 8-bit Adam on a GPU, AdamW on a CPU."""

    def publish(self, version: int) -> Adapter:
        """The LoRA as it is now, as an immutable version in bfloat16."""

    def fingerprint(self) -> str:
        """A hash of the packed 4-bit weights of the base, comparable with the engines'."""

    def to_host(self) -> None:
        """Between updates: frees what the card need not hold until `to_device`."""

    def to_device(self) -> None:
        """Before anything is computed."""

    def free_cache(self) -> None:
        """Gives back to the card what this process no longer uses, for others on it."""

    def memory_mb(self) -> float:
        """Peak memory of this process, in MB: see `memory.peak_memory_mb`."""

"""What of a learner's work is divided among several learners, as backends and passes see it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:  # a learner by itself imports none of them
    from unslothrl.sharding.context import Context
    from unslothrl.sharding.shards import Peers, Shards
    from unslothrl.sharding.stages import Stage
    from unslothrl.sharding.tensors import SplitTensors

Rank = tuple[int, int]  # (which of, how many)


@dataclass(eq=False)
class Split:
    """Of a learner that does all of it by itself, nothing is set."""

    shards: "Shards | None" = None
    context: "Context | None" = None
    tensors: "SplitTensors | None" = None
    stage: "Stage | None" = None
    fingerprint: str | None = None  # of a base that is whole nowhere
    rank: int = 0  # among those that compute one part of a batch together
    peers: "Peers" = None

    @classmethod
    def of(
        cls,
        model: Any,
        ranks: Mapping[str, Rank],
        device: torch.device,
        fingerprint: str,
        attend: Callable[..., Any],
        leaves: bool = False,
    ) -> "Split":
        """By an option's name in `ranks`. `model`: a causal model of transformers on the host,
        which moves to `device`; `attend`: its attention in a pack; `leaves`: see `Shards`."""
        from unslothrl.sharding.context import Context
        from unslothrl.sharding.shards import Shards
        from unslothrl.sharding.stages import Stage
        from unslothrl.sharding.tensors import SplitTensors

        ofs = [rank for name, (rank, _) in ranks.items() if name != "learner_shards"]
        split = cls(fingerprint=fingerprint, rank=next(iter(ofs), 0))
        if (rank := ranks.get("context_parallel")) is not None:
            split.context = Context(model, *rank, attend)
        if (rank := ranks.get("learner_shards")) is not None:
            split.shards = Shards(model, *rank, device, leaves)
        elif (rank := ranks.get("learner_tensor_parallel")) is not None:
            split.tensors = SplitTensors(model, *rank)
        elif (rank := ranks.get("pipeline_stages")) is not None:
            split.stage = Stage(model, *rank)
        model.to(device)  # what is left to this rank; of shards, what is whole in every rank
        return split

    @property
    def is_early(self) -> bool:
        """Whether the log-probabilities are a later stage's."""
        return self.stage is not None and not self.stage.is_last

    def meet(self, peers: "Peers") -> None:
        """The learners that it is divided among have met; None: this one has left them."""
        for each in (self.shards, self.context, self.tensors, self.stage):
            if each is not None:
                self.peers = each.peers = peers

    def in_step(self, micro_batches: int, asks_reference: bool) -> tuple[int, bool]:
        """How many micro-batches a pass has, and whether it computes the reference's
        log-probabilities, where this learner by itself would have so many: the same in all that
        share a base."""
        if self.shards is None:
            return micro_batches, asks_reference
        count, asks = self.peers.most([float(micro_batches), float(asks_reference)])
        return int(count), bool(asks)

    def idle(self, head: bool, backward: bool = False) -> None:
        """In place of a forward or backward pass of a micro-batch, where this learner has none."""
        if self.shards is not None:
            self.shards.idle(head, backward)

    def drop(self) -> None:
        """Frees what of a shared base is whole, in all learners before a pass begins anew."""
        if self.shards is not None:
            self.shards.drop()

    def end_pass(self, has_failed: bool = False) -> None:
        """After the micro-batches of a pass, or where memory `has_failed` in it. MemoryElsewhere
        where it did in another learner."""
        self.drop()
        if self.stage is not None:
            self.peers.sent()
        elif self.peers is not None:
            from unslothrl.sharding.shards import agree

            agree(self.peers, has_failed)

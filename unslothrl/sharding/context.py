"""A packed row whose tokens are split over several learners (DeepSpeed-Ulysses, arXiv 2309.14509).

    everywhere but in attention     all heads of this rank's 1/N of the tokens
    in attention                    all tokens of 1/N of the heads

An all-to-all turns one into the other and back. Each rank computes the whole micro-batch's loss,
from the log-probabilities of all its tokens, and its gradient by way of its own tokens alone: so
the sum over the ranks is the gradient.
"""

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from unslothrl.sharding.shards import Peers, agree

ATTENTION = "unslothrl_split_packed"  # transformers' name of it


class Context:
    """This rank's share of every row. `peers` is set once the ranks have met."""

    def __init__(self, model: Any, rank: int, count: int, attend: Any):
        """`attend`: attention in a whole pack, as transformers calls it, which this one wraps. The
        heads can be dealt to the ranks: see `planning.dividing`."""
        self.rank, self.count, self.attend_whole = rank, count, attend
        self.peers: Peers = None
        AttentionInterface.register(ATTENTION, self.attend)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)

    def own(self, tokens: int) -> slice:
        """This rank's tokens of a row of so many, a multiple of the ranks."""
        each = tokens // self.count
        return slice(self.rank * each, (self.rank + 1) * each)

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,  # [1, heads, own tokens, size]
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """-> [1, own tokens, heads, size]."""
        times = max(1, self.count // key.shape[1])
        states = (query, key.repeat_interleave(times, 1), value.repeat_interleave(times, 1))
        whole = torch.cat([torch.stack(each.chunk(self.count, 1)) for each in states], 2)
        whole = Swap.apply(whole, self)  # [ranks, 1, heads / ranks, own tokens, size] of all three
        whole = torch.cat(list(whole), 2)
        parts = whole.split([each.shape[1] // self.count for each in states], 1)
        output, _ = self.attend_whole(module, *parts, attention_mask, **options)
        back = Swap.apply(torch.stack(output.chunk(self.count, 1)), self)
        return torch.cat(list(back), 2), None

    def joined(self, own: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
        return Joined.apply(own, places, count, self)

    def exchanged(self, parts: torch.Tensor) -> torch.Tensor:
        given = parts.contiguous()
        found = torch.empty_like(given)  # where memory may run out, before all agree
        agree(self.peers)
        self.peers.swap(given, found)
        return found


class Swap(torch.autograd.Function):
    """`Context.exchanged`; the gradient goes back the same way."""

    @staticmethod
    def forward(ctx, parts, context):
        ctx.context = context
        return context.exchanged(parts)

    @staticmethod
    def backward(ctx, upstream):
        return ctx.context.exchanged(upstream), None


class Joined(torch.autograd.Function):
    """[count], of which this rank has those at `places`; gradients reach those alone."""

    @staticmethod
    def forward(ctx, own, places, count, context):
        ctx.save_for_backward(places)
        whole = own.new_zeros(count)
        whole[places] = own
        agree(context.peers)
        context.peers.add_up(whole)
        return whole

    @staticmethod
    def backward(ctx, upstream):
        (places,) = ctx.saved_tensors
        return upstream[places], None, None, None

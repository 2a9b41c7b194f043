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
        whole = self.exchanged(whole)  # [ranks, 1, heads / ranks, own tokens, size] of all three
        whole = torch.cat(list(whole), 2)
        parts = whole.split([each.shape[1] // self.count for each in states], 1)
        output, _ = self.attend_whole(module, *parts, attention_mask, **options)
        back = self.exchanged(torch.stack(output.chunk(self.count, 1)))
        return torch.cat(list(back), 2), None

    def joined(self, own: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
        """[count], of which this rank has those at `places`; gradients reach those alone."""
        whole = own.new_zeros(count).index_put((places,), own)
        agree(self.peers)
        self.peers.add_up(whole.detach())
        return whole

    def exchanged(self, parts: torch.Tensor) -> torch.Tensor:
        """The gradient goes back the same way."""
        given = parts.detach().contiguous()
        found = parts.clone(memory_format=torch.contiguous_format)  # memory may run out here
        agree(self.peers)
        self.peers.swap(given, found.detach())
        if found.requires_grad:
            found.register_hook(self.exchanged)
        return found

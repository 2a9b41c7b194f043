"""Keys and values of the tokens so far, in buffers that have room for those to come."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

ROOM = 64  # tokens by which a buffer grows


class GrowingLayer(DynamicLayer):
    """As `DynamicLayer`, which copies all keys and values for each new token."""

    room: tuple[torch.Tensor, torch.Tensor] | None = None  # [rows, heads, capacity, size] each

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        begin = self.get_seq_length()
        if begin == 0:
            return super().update(key_states, value_states, *args, **kwargs)
        end = begin + key_states.shape[-2]
        if self.room is None or self.room[0].shape[-2] < end:
            self.room = with_room(self.keys, end), with_room(self.values, end)
        keys, values = self.room
        keys[..., begin:end, :], values[..., begin:end, :] = key_states, value_states
        self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self.room = None


def with_room(states: Any, tokens: int) -> torch.Tensor:
    """A copy of `states` [rows, heads, tokens so far, size] that can hold `tokens` and `ROOM`."""
    rows, heads, so_far, size = states.shape
    buffer = states.new_empty(rows, heads, tokens + ROOM, size)
    buffer[..., :so_far, :] = states
    return buffer


def joined(caches: Sequence[DynamicCache]) -> DynamicCache:
    """Those of several parts of a batch, of equal lengths, as one; it takes the first one over."""
    if len(caches) > 1:
        for of_all in zip(*(cache.layers for cache in caches), strict=True):
            whole: Any = of_all[0]
            parts: list[Any] = list(of_all)
            whole.keys = torch.cat([part.keys for part in parts])
            whole.values = torch.cat([part.values for part in parts])
    return caches[0]


def empty_cache(config: Any) -> DynamicCache:
    """For a model of this configuration; layers with a sliding window are as transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [
        GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache

"""Pairs whose answers have turns of others, which TRL's DPO would learn as well."""

from collections.abc import Callable
from typing import Any

from unslothrl.offline.tables import LEARNT


class LearntOnly:
    """A collator of TRL's whose `completion_mask` leaves out the tokens that are only read.

    TRL computes everything of an answer through this mask: its log-probability, the lengths by
    which a loss divides, entropy and mean logits.
    """

    def __init__(self, collator: Callable[[list[dict[str, Any]]], dict[str, Any]]):
        self.collator = collator

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """`completion_mask` [2 * rows, tokens]: first the better answers, then the worse."""
        batch = self.collator(rows)
        for half, name in enumerate(LEARNT.values()):
            for number, row in enumerate(rows):
                if name in row:
                    mask = batch["completion_mask"][half * len(rows) + number]
                    begin = len(row["prompt_ids"])
                    mask[begin : begin + len(row[name])] = mask.new_tensor(row[name])
        return batch

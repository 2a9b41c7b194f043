"""The single tokens that the report shows: of some completions, in some steps.

A learner hands over sums of its distance from the sampler (`records.Agreement`). Of the completions
that a step's page shows it also hands over its log-probabilities, which it has computed anyway; so
neither what is computed nor how long it takes depends on whether a step is traced.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unslothrl.records import Batch, Completion, Group, Sample, UpdateStats
from unslothrl.tracking.report.rollout_data import MOST_COMPLETIONS, Tokens, chosen_groups
from unslothrl.training.credit import Selected

MOST_STEPS = 200  # of a run that are traced, about
MOST_TOKENS = 40_000  # of a step, all its completions together
LONGEST = 1000  # tokens of a completion


def is_traced(step: int, total_steps: int) -> bool:
    """Every step of a short run; of a long one the first, and every so many."""
    return step == 1 or step % -(-total_steps // MOST_STEPS) == 0


class Trace:
    """Of a step: the rows of its rollouts (see `rows.rollout_rows`) whose tokens are shown."""

    def __init__(self, selected: Selected, left_out: Sequence[Group]):
        groups = [*selected.groups, *left_out]
        shown = chosen_groups([len(group.completions) for group in groups], MOST_COMPLETIONS)
        begins = np.cumsum([0, *(len(group.completions) for group in groups)]).tolist()
        self.completions: dict[int, Completion] = {
            begins[g] + i: completion
            for g in shown
            for i, completion in enumerate(groups[g].completions[:MOST_COMPLETIONS])
        }
        self.samples: dict[int, Sample] = {}  # by row, of those that were selected
        for (g, i), sample in zip(selected.owners, selected.samples, strict=True):
            if begins[g] + i in self.completions:  # of several sequences the last is shown
                self.samples[begins[g] + i] = sample
        self.logprobs: dict[int, np.ndarray] = {
            row: sample.measured.logprobs
            for row, sample in self.samples.items()
            if sample.measured is not None
        }

    def asked(self, batch: Batch) -> Batch:
        """The batch, which asks for what is not known yet."""
        rows = {id(s): row for row, s in self.samples.items() if row not in self.logprobs}
        traced = {place: rows[id(s)] for place, s in enumerate(batch.samples) if id(s) in rows}
        return replace(batch, traced=traced) if traced else batch

    def saw(self, parts: Sequence[UpdateStats]) -> None:
        """What the learners answered."""
        for part in parts:
            self.logprobs |= part.traced

    def tokens(self, pieces: Callable[[Sequence[int]], list[str]]) -> dict[int, Tokens]:
        """-> by row, the tokens to be shown. `pieces` gives the text of each of some tokens."""
        most = min(LONGEST, MOST_TOKENS // max(1, len(self.completions)))
        return {
            row: self._of(row, completion, most, pieces)
            for row, completion in self.completions.items()
        }

    def _of(
        self,
        row: int,
        completion: Completion,
        most: int,
        pieces: Callable[[Sequence[int]], list[str]],
    ) -> Tokens:
        sampled, logprobs = completion.sampled[:most], completion.logprobs[:most]
        gaps = advantages = None
        known = self.logprobs.get(row)
        if known is not None:
            gaps = _spread(known, sampled) - logprobs
        if row in self.samples:
            values = self.samples[row].advantages
            if len(values) and (values != values[0]).any():  # a critic's
                advantages = _spread(values, sampled)
        return Tokens(
            pieces(completion.token_ids[:most].tolist()),
            _listed(logprobs, sampled),
            None if gaps is None else _listed(gaps, sampled),
            None if advantages is None else _listed(advantages, sampled),
            left_out=max(0, len(completion.token_ids) - most),
        )


def _spread(values: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """[sampled tokens] -> [tokens], 0 where a token was not sampled."""
    spread = np.zeros(len(sampled))
    count = int(sampled.sum())
    spread[sampled] = values[:count]
    return spread


def _listed(values: np.ndarray, sampled: np.ndarray) -> list[float | None]:
    return [
        value if was_sampled else None
        for value, was_sampled in zip(values.tolist(), sampled.tolist(), strict=True)
    ]


MOST_WAITING = 4  # tokens: no character has more bytes
REPLACED = "\ufffd"  # what a decoder writes for a part of a character


class Pieces:
    """Gives tokens their texts, by a tokenizer of its own that is loaded when the first is asked
    for: it is used in another thread than the run's."""

    def __init__(self, load: Callable[[], Any]):
        self.load = load
        self.tokenizer: Any = None
        self.known: dict[tuple[int, ...], str] = {}

    @classmethod
    def of(cls, base: Path) -> "Pieces":
        """Of a base's tokenizer."""
        from unslothrl.weights import base_model

        return cls(lambda: base_model.load_tokenizer(base))

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; where several are one character, it is the last one's."""
        pieces: list[str] = []
        begin = 0
        for end in range(1, len(ids) + 1):
            text = self._text(tuple(ids[begin:end]))
            is_part = text.endswith(REPLACED) and end - begin < MOST_WAITING and end < len(ids)
            pieces.append("" if is_part else text)
            if not is_part:
                begin = end
        return pieces

    def _text(self, ids: tuple[int, ...]) -> str:
        if ids not in self.known:
            self.tokenizer = self.tokenizer or self.load()
            text = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
            first = self.tokenizer.convert_ids_to_tokens(ids[0]) or ""
            if first.startswith("\u2581") and not text.startswith(" "):  # SentencePiece's space
                text = f" {text}"
            self.known[ids] = text
        return self.known[ids]

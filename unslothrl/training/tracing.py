"""The single tokens that the report shows: of some completions, in some steps.

A learner hands over its distance from the sampler (`Update.difference`). Of the completions
that a step's page shows it also hands over its log-probabilities, which it has computed anyway; so
neither what is computed nor how long it takes depends on whether a step is traced.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unslothrl.records import Completion, Group, Sample, Update
from unslothrl.tracking.rows import MOST_COMPLETIONS, chosen_groups
from unslothrl.training.credit import Selected

MOST_STEPS = 200  # of a run that are traced, about
MOST_TOKENS = 40_000  # of a step, all its completions together
LONGEST = 1000  # tokens of a completion
MOST_BYTES = 4  # of a character, and so tokens
REPLACED = "\ufffd"  # what a decoder writes for a part of a character


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
            row: sample.logprobs
            for row, sample in self.samples.items()
            if sample.logprobs is not None
        }

    def asked(self, selected: Selected) -> Selected:
        """The same, with samples that ask for what is not known yet."""
        rows = {id(s): row for row, s in self.samples.items() if row not in self.logprobs}
        samples = [replace(s, trace=rows[id(s)]) if id(s) in rows else s for s in selected.samples]
        return replace(selected, samples=tuple(samples))

    def saw(self, parts: Sequence[Update]) -> None:
        """What the learners answered."""
        for part in parts:
            self.logprobs |= part.traced

    def tokens(self, pieces: Callable[[Sequence[int]], list[str]]) -> dict[int, dict[str, Any]]:
        """-> by row, the tokens to be shown, as `write_tokens` takes them. `pieces` gives the text
        of each of some tokens."""
        most = min(LONGEST, MOST_TOKENS // max(1, len(self.completions)))
        found = {}
        for row, completion in self.completions.items():
            sampled = completion.sampled[:most]
            logprobs = completion.logprobs[:most][sampled]
            gaps = advantages = None
            if (known := self.logprobs.get(row)) is not None:
                gaps = by_token(known[: len(logprobs)].astype(np.float64) - logprobs, sampled)
            values = self.samples[row].advantages if row in self.samples else np.zeros(0)
            if len(values) and (values != values[0]).any():  # a critic's
                advantages = by_token(values, sampled)
            found[row] = {
                "pieces": pieces(completion.token_ids[:most].tolist()),
                "logprobs": by_token(logprobs, sampled),
                "gaps": gaps,
                "advantages": advantages,
                "left_out": max(0, len(completion.token_ids) - most),
            }
        return found


def by_token(values: np.ndarray, sampled: np.ndarray) -> list[float | None]:
    """[sampled tokens] -> [tokens], None where a token was not sampled."""
    given = iter(values.tolist())
    return [next(given) if was_sampled else None for was_sampled in sampled.tolist()]


class Pieces:
    """Gives tokens their texts, by a tokenizer of its own that is loaded when the first is asked
    for: it is used in another thread than the run's."""

    def __init__(self, load: Callable[[], Any]):
        """`load` gives a tokenizer."""
        self.load = load
        self.tokenizer: Any = None
        self.known: dict[tuple[int, ...], str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; where several are one character, it is the last one's."""
        pieces: list[str] = []
        begin = 0
        for end in range(1, len(ids) + 1):
            text = self._text(tuple(ids[begin:end]))
            is_part = text.endswith(REPLACED) and end - begin < MOST_BYTES and end < len(ids)
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

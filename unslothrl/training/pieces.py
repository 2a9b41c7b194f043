"""The text of single tokens, for the report."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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

"""Texts that are too long whatever their tokens are: none is tokenised, which takes minutes for one
of 20 MB."""

import json
from typing import Any

from tokenizers import models

WHOLE = {"ByteLevel", "Digits", "Metaspace", "Split"}  # pre-tokenizers that drop no character
SHRUNK = {"NFC": 4, "NFKC": 4, "NFD": 1, "NFKD": 1, "Lowercase": 1, "Prepend": 1}
AROUND = 2  # what a template writes after the last turn, which is cut, is no more than the rest


class TooLong(Exception):
    """A row that has more than `tokens` tokens."""

    def __init__(self, tokens: int):
        super().__init__(f"more than {tokens} tokens")
        self.tokens = tokens


def most_characters(tokenizer: Any) -> int | None:
    """The characters that a token stands for at most; None where that is not known, as of a
    tokenizer that drops some or has a token for many unknown ones."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, models.BPE):
        return None
    steps, splits = parts_of(backend.normalizer), parts_of(backend.pre_tokenizer)
    shrunk = [shrinks_by(step) for step in steps]
    if None in shrunk or not all(keeps_all(split) for split in splits):
        return None
    vocabulary = tokenizer.get_vocab()
    is_bytes = any(split["type"] == "ByteLevel" for split in splits)
    has_bytes = is_bytes or (backend.model.byte_fallback and "<0x00>" in vocabulary)
    added = tokenizer.added_tokens_decoder.values()
    if not has_bytes or any(token.lstrip or token.rstrip for token in added):
        return None
    longest = max(map(len, vocabulary))
    for factor in shrunk:
        longest *= factor or 1
    return longest


def parts_of(component: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer, or those in a sequence of them, as JSON has them."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    inner = [state]
    while any(each["type"] == "Sequence" for each in inner):
        inner = [
            part
            for each in inner
            for part in each.get("normalizers", each.get("pretokenizers", [each]))
        ]
    return inner


def shrinks_by(step: dict[str, Any]) -> int | None:
    """How many characters a normalizer makes one of, at most; None: any number."""
    if step["type"] == "Replace":
        is_same = len(step["content"]) >= len(step["pattern"].get("String", step["content"] + "x"))
        return 1 if is_same else None
    return SHRUNK.get(step["type"])


def keeps_all(split: dict[str, Any]) -> bool:
    return split["type"] in WHOLE and split.get("behavior") != "Removed"


class Limit:
    """Raises for a text that has more than `max_length` tokens for certain."""

    def __init__(self, tokenizer: Any, max_length: int | None):
        most = most_characters(tokenizer) if max_length is not None else None
        self.per_token = most
        self.most = None if most is None or max_length is None else AROUND * most * max_length

    def check(self, *texts: str) -> None:
        """Raises TooLong for what is one row."""
        characters = sum(map(len, texts))
        if self.most is not None and self.per_token and characters > self.most:
            raise TooLong(characters // (AROUND * self.per_token))

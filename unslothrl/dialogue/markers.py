"""Text of an observation that would be read as a special token, and could forge a turn, is broken.

What a tool returns may contain `<|im_end|>`. The policy reads `< |im_end|>`: it can see what stood
there, and the tokenizer finds ordinary text. Broken are the special tokens of the tokenizer and the
other single tokens that the model's turns are made of. What the policy writes is never touched.
"""

import re
from collections.abc import Iterable, Sequence

from unslothrl.environments.base import Message

FIELDS = ("content", "name", "tool_call_id")
REPLACEMENT = "\ufffd"  # of a special token that is a single character


class Markers:
    """The special tokens of a tokenizer. `written`: what its turns are made of, as token ids."""

    def __init__(self, tokenizer, written: Iterable[int] = ()):
        added = getattr(tokenizer, "added_tokens_decoder", {})
        written = set(written)
        texts = set(tokenizer.all_special_tokens) | {
            str(token.content)
            for token_id, token in added.items()
            if token.special or token_id in written
        }
        longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._normalise = normaliser(tokenizer, added)

    def broken(self, text: str) -> str:
        """The text without any special token in it."""
        if self._normalise is not None and self._pattern.search(normal := self._normalise(text)):
            text = normal
        while self._pattern.search(text):
            text = self._pattern.sub(broken_up, text)
        return text

    def removed(self, text: str) -> str:
        return self._pattern.sub("", text)

    def clean(self, messages: Sequence[Message]) -> list[Message]:
        """Observations that cannot forge a turn: without keys such as `tool_calls`."""
        return [
            {"role": message["role"]}
            | {key: self.broken(message[key]) for key in FIELDS if message.get(key) is not None}
            for message in messages
        ]


def broken_up(match: re.Match[str]) -> str:
    marker = match[0]
    return f"{marker[0]} {marker[1:]}" if len(marker) > 1 else REPLACEMENT


def normaliser(tokenizer, added):
    """What a tokenizer does to a text before it looks for special tokens; None: nothing."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normal = getattr(backend, "normalizer", None)
    if normal is None or not any(getattr(token, "normalized", False) for token in added.values()):
        return None
    return normal.normalize_str

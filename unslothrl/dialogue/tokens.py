"""From text to token ids and back, with nothing added, cleaned up or said about it."""

from collections.abc import Sequence


def encoded(tokenizer, text: str) -> list[int]:
    """Of a text that has its special tokens already. Not verbose about one that is long."""
    if not text:
        return []
    (ids,) = tokenizer([text], add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def decoded(tokenizer, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
    return tokenizer.decode(
        list(ids),
        skip_special_tokens=skip_special_tokens,
        clean_up_tokenization_spaces=False,
    )

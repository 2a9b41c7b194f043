"""A byte-level BPE tokenizer as GGUF has it, read from tokenizer.json.

llama.cpp knows how a text is split before its parts are merged by a name alone, so that a
tokenizer that splits by an unknown pattern cannot be exported.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.errors import UserError
from unslothrl.files import read_object_of

FILE = "tokenizer.json"
MOST = 256 << 20  # bytes
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # token types
INSTEAD = "export it with --to merged"

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS, REST = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {  # by what splits a text, in order: the name in llama.cpp
    ((f"{CONTRACTIONS}|{WORDS}|\\p{{N}}|{REST}",), False): "qwen2",
    ((f"{CONTRACTIONS}|{WORDS}|\\p{{N}}{{1,3}}|{REST}",), False): "llama-bpe",
    (("digits",), True): "smollm",
    ((), True): "gpt-2",
}


@dataclass(frozen=True)
class GgufTokenizer:
    """What is written under tokenizer.ggml."""

    pre: str  # how a text is split
    tokens: list[str]  # [vocabulary]
    types: list[int]  # [vocabulary]
    merges: list[str]


def read(base: Path, vocabulary: int) -> GgufTokenizer:
    """Of a checkpoint with so many rows. UserError for what llama.cpp reads otherwise."""
    content = read_object_of(f"model {base}", base / FILE, MOST)
    model = content["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise refusal("it is not byte-level BPE")
    normalizer = content.get("normalizer")
    if normalizer is not None and normalizer.get("type") != "NFC":
        # llama.cpp has none. NFC leaves nearly every text as it is; without it, accents that are
        # characters of their own get other tokens.
        raise refusal(f"it rewrites the text first, by {normalizer.get('type')}")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    pre = splitting(content.get("pre_tokenizer"), has_merges=bool(merges))
    tokens, types = vocabulary_of(model["vocab"], content.get("added_tokens") or [], vocabulary)
    return GgufTokenizer(pre, tokens, types, merges)


def refusal(why: str) -> UserError:
    return UserError(f"to gguf: the tokenizer cannot be converted ({why}): {INSTEAD}")


def splitting(pre_tokenizer: Any, has_merges: bool) -> str:
    """llama.cpp's name of how a text is split. Where nothing is merged it makes no difference."""
    parts = [] if pre_tokenizer is None else pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    by: list[str] = []
    by_words = is_byte_level = False
    for part in parts:
        kind = part["type"]
        if kind == "ByteLevel":
            is_byte_level, by_words = True, part.get("use_regex", True)
            if part.get("add_prefix_space"):
                raise refusal("it puts a space before every text")
        elif kind == "Split" and part["behavior"] == "Isolated" and not part.get("invert"):
            by.append(part["pattern"].get("Regex", ""))
        elif kind == "Digits" and part.get("individual_digits"):
            by.append("digits")
        else:
            raise refusal(f"it splits texts by {kind}")
    if not is_byte_level:
        raise refusal("its tokens are not bytes")
    if not has_merges:
        return "gpt-2"
    name = SPLITS.get((tuple(by), by_words))
    if name is None:
        raise refusal(f"it splits texts by a pattern that is not known here: {' '.join(by):.100}")
    return name


def vocabulary_of(
    vocab: dict[str, int], added: list[dict[str, Any]], size: int
) -> tuple[list[str], list[int]]:
    """-> (token, type) by id, as many as the embedding has rows."""
    tokens, types = [f"[PAD{index}]" for index in range(size)], [UNUSED] * size
    entries = [(index, token, NORMAL) for token, index in vocab.items()]
    for each in added:
        kind = CONTROL if each.get("special") else USER_DEFINED
        entries.append((each["id"], each["content"], kind))
    for index, token, kind in entries:
        if not 0 <= index < size:
            raise refusal(f"token {index} has no row in the embedding, which has {size}")
        tokens[index], types[index] = token, kind
    return tokens, types

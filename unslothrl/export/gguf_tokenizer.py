"""The tokenizer of a checkpoint as GGUF has it, for llama.cpp and Ollama."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unslothrl.errors import UserError
from unslothrl.files import read_object

NEVER_MERGED = ["[PAD] [PAD]"]  # llama.cpp wants at least one; no byte is called so
TOKENIZER = "tokenizer.json"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # token types
SPACE = "\u2581"  # of SentencePiece
OF_LINES = (
    "gemma4"  # llama.cpp's name of BPE over whole lines with spaces marked, never without BOS
)
# Special tokens whose text is shown, as Gemma 4's thoughts and calls are read from it.
SHOWN = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
         "<tool_response|>", '<|"|>')  # fmt: skip
INSTEAD = "export it with --to merged"

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS, REST = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MARKED_WORDS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
MARKED_REST = REST.replace(r"\p{L}", r"\p{L}\p{M}", 1)
LETTERS = r"\p{Lm}\p{Lo}\p{M}"
UPPER, LOWER = rf"[\p{{Lu}}\p{{Lt}}{LETTERS}]", rf"[\p{{Ll}}{LETTERS}]"
BEFORE, CASED_REST = r"[^\r\n\p{L}\p{N}]?", REST.replace(r"[\r\n]*", r"[\r\n/]*", 1)
CASED = f"{BEFORE}{UPPER}*{LOWER}+END|{BEFORE}{UPPER}+{LOWER}*END"
WHOLE = (("Isolated", False), ("Removed", True))  # the same by patterns that match all of a text
# llama.cpp knows how a text is split before its parts are merged by a name alone: a tokenizer that
# splits by an unknown pattern cannot be exported.
SPLITS = {  # by what splits a text, in order, and whether a whole part that is a token is one
    ((f"{CONTRACTIONS}|{WORDS}|\\p{{N}}|{REST}",), False, False): "qwen2",
    ((f"{CONTRACTIONS}|{MARKED_WORDS}|\\p{{N}}|{MARKED_REST}",), False, False): "qwen35",
    ((f"{CONTRACTIONS}|{WORDS}|\\p{{N}}{{1,3}}|{REST}",), False, True): "llama-bpe",
    ((f"{CONTRACTIONS}|{WORDS}|\\p{{N}}{{1,3}}|{REST}",), False, False): "dbrx",
    ((f"{CASED.replace('END', '')}|\\p{{N}}|{CASED_REST}",), False, True): "tekken",
    (
        (f"{CASED.replace('END', f'{CONTRACTIONS}?')}|\\p{{N}}{{1,3}}|{CASED_REST}",),
        False,
        False,
    ): "gpt-4o",
    (("digits",), True, False): "smollm",
    ((), True, False): "gpt-2",
}


@dataclass(frozen=True)
class GgufTokenizer:
    """A tokenizer as GGUF has it, under tokenizer.ggml: byte-level BPE, `OF_LINES` or, with scores,
    SentencePiece's."""

    pre: str  # how a text is split
    tokens: list[str]  # [vocabulary]
    types: list[int]  # [vocabulary]
    merges: list[str]
    scores: list[float] = field(default_factory=list)  # [vocabulary], or none
    special: dict[str, int] = field(default_factory=dict)  # ids by "bos", "eos", "pad", "eot"
    adds_bos: bool = False
    chat_template: str | None = None


def read_tokenizer(base: Path, vocabulary: int) -> GgufTokenizer:
    """Of a checkpoint with so many rows. UserError for what llama.cpp reads otherwise."""
    content = read_object(base / TOKENIZER)
    model = content["model"]
    if model.get("type") != "BPE":
        raise no_tokenizer("it is not BPE")
    if model.get("byte_fallback"):
        return of_sentencepiece(content, vocabulary)
    normalizer = content.get("normalizer")
    if normalizer is not None and normalizer.get("type") != "NFC":
        # llama.cpp has none. NFC leaves nearly every text as it is; without it, accents that are
        # characters of their own get other tokens.
        raise no_tokenizer(f"it rewrites the text first, by {normalizer.get('type')}")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    ignores = bool(model.get("ignore_merges"))
    pre = splitting(content.get("pre_tokenizer"), bool(merges), ignores)
    tokens, types = vocabulary_of(model["vocab"], content.get("added_tokens") or [], vocabulary)
    return GgufTokenizer(pre, tokens, types, merges)


def of_sentencepiece(content: dict[str, Any], vocabulary: int) -> GgufTokenizer:
    """Of a tokenizer that transformers has made from one of SentencePiece, as Gemma's. There
    llama.cpp merges what makes the token with the highest score, so all ways to make one must be
    known here, one token's after the other's. Of others it knows those that merge within a line."""
    model, normalizer = content["model"], content.get("normalizer") or {}
    if (normalizer.get("pattern"), normalizer.get("content")) != ({"String": " "}, SPACE):
        raise no_tokenizer("it does more to a text than to mark its spaces")
    splitter = content.get("pre_tokenizer")
    if splitter is not None and splitter.get("pattern") != {"String": " "}:  # none is left
        raise no_tokenizer("it splits texts")
    known, ranks = model["vocab"], dict[str, int]()
    pairs = [tuple(each.split(" ") if isinstance(each, str) else each) for each in model["merges"]]
    for first, second in pairs:
        ranks.setdefault(first + second, len(ranks))
    order = [ranks[first + second] for first, second in pairs]
    added = content.get("added_tokens") or []
    words = {*ranks, *known} - ({each["content"] for each in added} - ranks.keys())
    ways = sum(word[:at] in known and word[at:] in known
               for word in words if not is_byte(word) for at in range(1, len(word)))  # fmt: skip
    has_scores = order == sorted(order) and ways == len(set(pairs))
    if not has_scores and any("\n" in word and word.strip("\n") for word in ranks):
        raise no_tokenizer("its merges are not those of SentencePiece, and go beyond a line")
    tokens, types = vocabulary_of(known, added, vocabulary)
    for index, token in enumerate(tokens):
        if types[index] == NORMAL and is_byte(token):
            types[index] = BYTE
        elif token == model.get("unk_token"):
            types[index] = UNKNOWN
    if not has_scores:
        return GgufTokenizer(OF_LINES, tokens, types, list(map(" ".join, pairs)))
    scores = [-float(ranks.get(token, len(ranks))) for token in tokens]
    return GgufTokenizer("default", tokens, types, [], scores)


def is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x")


def no_tokenizer(why: str) -> UserError:
    return UserError(f"to gguf: the tokenizer cannot be converted ({why}): {INSTEAD}")


def splitting(pre_tokenizer: Any, has_merges: bool, ignores_merges: bool) -> str:
    """llama.cpp's name of how a text is split. Where nothing is merged it makes no difference."""
    parts = [] if pre_tokenizer is None else pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    by: list[str] = []
    by_words = is_byte_level = False
    for part in parts:
        kind = part["type"]
        if kind == "ByteLevel":
            is_byte_level, by_words = True, part.get("use_regex", True)
            if part.get("add_prefix_space"):
                raise no_tokenizer("it puts a space before every text")
        elif kind == "Split" and (part["behavior"], bool(part.get("invert"))) in WHOLE:
            by.append(part["pattern"].get("Regex", ""))
        elif kind == "Digits" and part.get("individual_digits"):
            by.append("digits")
        else:
            raise no_tokenizer(f"it splits texts by {kind}")
    if not is_byte_level:
        raise no_tokenizer("its tokens are not bytes")
    if not has_merges:
        return "gpt-2"
    name = SPLITS.get((tuple(by), by_words, ignores_merges))
    if name is None:
        raise no_tokenizer(
            f"it splits texts by a pattern that is not known here: {' '.join(by):.100}"
        )
    return name


def vocabulary_of(
    vocab: dict[str, int], added: list[dict[str, Any]], size: int
) -> tuple[list[str], list[int]]:
    """-> (token, type) by id, as many as the embedding has rows."""
    tokens, types = [f"[PAD{index}]" for index in range(size)], [UNUSED] * size
    entries = [(index, token, NORMAL) for token, index in vocab.items()]
    for each in (each for each in added if each["id"] < size):  # Gemma 3's of 1B has one of images
        is_shown = not each.get("special") or each["content"] in SHOWN
        kind = USER_DEFINED if is_shown else CONTROL
        entries.append((each["id"], each["content"], kind))
    for index, token, kind in entries:
        if not 0 <= index < size:
            raise no_tokenizer(f"token {index} has no row in the embedding, which has {size}")
        tokens[index], types[index] = token, kind
    return tokens, types


def add_tokenizer(writer: Any, tokenizer: GgufTokenizer) -> None:
    if tokenizer.pre == OF_LINES and not tokenizer.adds_bos:
        raise no_tokenizer("llama.cpp would put a mark before every text")
    merging = OF_LINES if tokenizer.pre == OF_LINES else "gpt2"
    writer.add_tokenizer_model("llama" if tokenizer.scores else merging)
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.types)
    if tokenizer.scores:
        writer.add_token_scores(tokenizer.scores)
    else:
        writer.add_token_merges(tokenizer.merges or NEVER_MERGED)
    writer.add_add_space_prefix(False)
    for which, token in tokenizer.special.items():
        getattr(writer, f"add_{which}_token_id")(token)
    writer.add_add_bos_token(tokenizer.adds_bos)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)

"""Rows that are too long by their characters are dropped without a look at their tokens."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from unslothrl.offline import examples, lengths, tables
from unslothrl.offline.sequences import Writer
from unslothrl.weights import base_model

pytestmark = pytest.mark.real

TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }}<end>{% endfor %}"


def tokenizer_of(model=None, normalizer=None, split="bytes", **added):
    """With a token for every byte, and one of four characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, "aa", "aaaa"])}
    backend = Tokenizer(model or models.BPE(vocabulary, [("a", "a"), ("aa", "aa")]))
    if normalizer is not None:
        backend.normalizer = normalizer
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = whole if split == "bytes" else split
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", **added)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", chat_template=TEMPLATE
    )


def test_a_token_stands_for_no_more_characters_than_the_longest_has():
    assert lengths.most_characters(tokenizer_of()) == len("<end>")
    composing = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "_")])
    assert lengths.most_characters(tokenizer_of(normalizer=composing)) == 4 * len("<end>")
    embedded = base_model.load_tokenizer(base_model.find("embedded", weights=False))
    assert lengths.most_characters(embedded) == max(map(len, embedded.get_vocab()))


@pytest.mark.parametrize(
    "given",
    [
        {"model": models.WordLevel({"[UNK]": 0}, "[UNK]"), "split": pre_tokenizers.Whitespace()},
        {"normalizer": normalizers.Strip()},
        {"normalizer": normalizers.Replace("  ", " ")},
        {"split": pre_tokenizers.Whitespace()},
        {"split": pre_tokenizers.Split(" ", "removed")},
        {"lstrip": True},
    ],
)
def test_of_a_tokenizer_that_may_drop_characters_nothing_is_certain(given):
    tokenizer = tokenizer_of(**given)
    assert lengths.most_characters(tokenizer) is None
    lengths.Limit(tokenizer, 1).check("a" * 10_000)


HUGE = "a" * 2_000_000
ROWS = {
    "sft": ({"prompt": "1?", "completion": HUGE}, {"prompt": HUGE, "completion": "b"},
            {"text": HUGE}),
    "dpo": ({"prompt": "1?", "chosen": HUGE, "rejected": "b"},
            {"prompt": HUGE, "chosen": "c", "rejected": "b"}),
    "rm": ({"prompt": "1?", "chosen": "c", "rejected": HUGE},),
}  # fmt: skip
FORMS = {"sft": tables.SFT, "dpo": tables.DPO, "rm": tables.RM}


@pytest.mark.parametrize("command", ROWS)
@pytest.mark.parametrize("has_template", [True, False])
def test_a_huge_row_is_dropped_before_it_is_tokenised(command, has_template, monkeypatch):
    tokenizer = tokenizer_of()
    tokenizer.chat_template = TEMPLATE if has_template else None
    seen = []
    call = type(tokenizer).__call__

    def counted(self, texts, *given, **named):
        seen.extend(map(len, texts))
        return call(self, texts, *given, **named)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    small = {name: value[:40] + name[:1] for name, value in ROWS[command][0].items()}
    rows = [*ROWS[command], small]
    options = tables.TableOptions(
        "x", (), 0.1, 0, 200, 0, columns=examples.ExampleColumns(), default_prompt=""
    )
    writer = Writer(tokenizer, max_length=200)
    found, skipped, _ = tables.table(rows, options, FORMS[command], writer)
    assert len(found) == 1 and len(skipped.too_long) == len(ROWS[command]), json.dumps(
        list(skipped.unusable)
    )
    assert min(skipped.too_long) > 200 and max(seen) < 10_000
    assert all(length <= len(HUGE) / 4 for length in skipped.too_long)


def test_a_row_that_may_fit_is_tokenised():
    """Its characters are more than `max_length`, its tokens are not."""
    writer = Writer(tokenizer_of(), max_length=200)
    (found,) = writer.sequences(examples.Example(text="a" * 700))
    assert len(found.ids) == 700 // 4 + 1

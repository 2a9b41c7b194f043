"""The embedded base and its problems: small, whole, and disjoint; test_learning.py trains it."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unslothrl import embedded
from unslothrl.embedded import task
from unslothrl.weights import base_model


@settings(deadline=None)  # loading transformers counts as part of the first example
@given(text=st.text(alphabet=st.characters(exclude_categories=("Cs",))))
def test_any_text_survives_the_tokenizer(tokenizer, text):
    for name in ("<|pad|>", "<|im_start|>", "<|im_end|>"):
        text = text.replace(name, "")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert all(0 <= i < 320 for i in ids)


def test_the_tags_are_one_token_each_and_the_saved_ids_agree(tokenizer):
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert len(tokenizer(tag, add_special_tokens=False)["input_ids"]) == 1
        assert tag not in tokenizer.all_special_tokens  # which are left out of the text
    assert base_model.stop_token_ids(embedded.BASE) == [tokenizer.eos_token_id]
    assert tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id) == "<|im_end|>"
    assert tokenizer.pad_token == "<|pad|>"


@pytest.mark.real
def test_the_auto_classes_load_it():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(embedded.BASE)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.config.hidden_size // model.config.num_attention_heads == 32  # vLLM's least on CPU
    auto = AutoTokenizer.from_pretrained(embedded.BASE)  # Qwen2's class: same ids for plain text
    ids = auto("What is 347 + 285?", add_special_tokens=False)["input_ids"]
    assert auto.decode(ids) == "What is 347 + 285?"
    assert len(auto) <= model.config.vocab_size


def test_worked_answers_by_hand():
    assert task.careful_answer(347, "+", 285) == (
        "<think>7+5=12 4+8+1=13 3+2+1=6</think>\n<answer>632</answer>"
    )
    assert task.worked(532, "-", 278) == "12-8=4 13-7-1=5 5-2-1=2"
    assert task.careful_answer(512, "-", 478).endswith("<answer>34</answer>")
    assert task.careful_answer(999, "+", 999).endswith("9+9+1=19</think>\n<answer>1998</answer>")


def test_answers_are_right_and_never_negative():
    for split in ("train", "test"):
        for row in itertools.islice(task.problems(split, 3), 300):
            a, sign, b = re.fullmatch(r"What is (\d+) ([+-]) (\d+)\?", row["problem"]).groups()
            expected = int(a) + int(b) if sign == "+" else int(a) - int(b)
            assert int(row["answer"]) == expected >= 0


def test_splits_are_disjoint_seeded_and_endless():
    def problems(split: str, seed: int, count: int) -> list[str]:
        return [row["problem"] for row in itertools.islice(task.problems(split, seed), count)]

    test = set(problems("test", 0, 3000))
    assert test.isdisjoint(problems("train", 0, 3000)) and len(test) > 2900
    assert problems("train", 1, 5) == problems("train", 1, 5) != problems("train", 2, 5)
    held_out = sum(task.is_held_out(a, "+", 500) for a in range(100, 1000))
    assert 60 < held_out < 120  # about a tenth of 900

"""The embedded base and its problems: small, whole, disjoint, and able but careless."""

import itertools
import re

import pytest
from fakes import draw_groups
from hypothesis import given, settings
from hypothesis import strategies as st

from unslothrl import embedded
from unslothrl.data.rendering import render
from unslothrl.embedded import task
from unslothrl.weights import base_model


@pytest.fixture(scope="session")
def tokenizer():
    return base_model.load_tokenizer(embedded.BASE)


@settings(deadline=None)  # loading transformers counts as part of the first example
@given(text=st.text(alphabet=st.characters(exclude_categories=("Cs",))))
def test_any_text_survives_the_tokenizer(tokenizer, text):
    for name in ("<|pad|>", "<|im_start|>", "<|im_end|>"):
        text = text.replace(name, "")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert all(0 <= i < 320 for i in ids)


def test_the_tags_are_one_token_each_and_are_kept_in_the_text(tokenizer):
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert len(tokenizer(tag, add_special_tokens=False)["input_ids"]) == 1
        assert tag not in tokenizer.all_special_tokens


def test_the_chat_template_by_hand(tokenizer):
    assert render(tokenizer, "What is 1 + 2?", "") == (
        "<|im_start|>user\nWhat is 1 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(tokenizer, "b", "a").startswith(
        "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb"
    )
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<answer>3</answer>"},
    ]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<answer>3</answer><|im_end|>\n"
    )


def test_the_saved_ids_agree(tokenizer):
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
    for split in task.SPLITS:
        for row in itertools.islice(task.problems(split, 3), 300):
            a, sign, b = re.fullmatch(r"What is (\d+) ([+-]) (\d+)\?", row["problem"]).groups()
            expected = int(a) + int(b) if sign == "+" else int(a) - int(b)
            assert int(row["answer"]) == expected >= 0


def test_splits_are_disjoint_seeded_and_endless():
    train = {row["problem"] for row in itertools.islice(task.problems("train", 0), 3000)}
    test = {row["problem"] for row in itertools.islice(task.problems("test", 0), 3000)}
    assert train.isdisjoint(test)
    assert len(test) > 2900
    first = list(itertools.islice(task.problems("train", 1), 5))
    assert first == list(itertools.islice(task.problems("train", 1), 5))
    assert first != list(itertools.islice(task.problems("train", 2), 5))
    held_out = sum(task.is_held_out(a, "+", 500) for a in range(100, 1000))
    assert 60 < held_out < 120  # about a tenth of 900
    with pytest.raises(ValueError, match="split must be one of"):
        next(task.problems("validation", 0))


@pytest.mark.slow
def test_the_base_is_able_but_careless(tokenizer, make_backend):
    """48 held-out problems, 8 completions at 1.0: works additions out, guesses subtractions, and
    now and then works one of those out as well, which is what there is to reinforce."""
    from unslothrl.actors.actor import Actor
    from unslothrl.data.rendering import Renderer, Skipped, numbered
    from unslothrl.engines.transformers import TransformersEngine
    from unslothrl.records import Sampling

    base = base_model.quantise(embedded.BASE)
    engine = TransformersEngine(
        make_backend(base, trained=False), base, max_num_seqs=400, has_own_base=False
    )
    rows = list(itertools.islice(task.problems("test", 0), 48))
    problems = list(Renderer(tokenizer, "", 64).tasks("test", numbered(rows), Skipped()))
    assert len(problems) == 48
    actor = Actor("a", engine, tokenizer)
    groups = draw_groups(actor, problems, 8, Sampling(1.0, 1.0, 0, 64), ("ability",))
    worked = {"+": [], "-": []}
    right = []
    for group in groups:
        sign = "+" if "+" in group.task.problem else "-"
        for score, one in zip(group.scores, group.completions, strict=True):
            worked[sign].append("=" in one.text)
            right += [score] if "=" in one.text else []
    assert 0.8 < sum(worked["+"]) / len(worked["+"]) < 0.98
    assert 0.05 < sum(worked["-"]) / len(worked["-"]) < 0.2
    assert sum(right) / len(right) > 0.95

"""Conversations keep what was sampled: for every chat template that is installed, over tokenizers
of one token per byte. No real tokenizer of these families is here.
"""

import json
import random

import pytest
from byte_tokenizers import for_template, installed_templates
from few_cases import few
from hypothesis import given, settings
from hypothesis import strategies as st

from unslothrl.dialogue.conversation import Conversation
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.errors import UserError

pytestmark = pytest.mark.real

TAKES = {"a": {"type": "string", "description": "one"}}
PARAMETERS = {"type": "object", "properties": TAKES, "required": ["a"]}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
ASKED = [{"role": "user", "content": "What is 2 + 3?"}]
TEMPLATES = list(installed_templates())


def dialogue_of(name):
    tokenizer = for_template(name)
    return TemplateDialogue(tokenizer), tokenizer


def hostile_text(draw, tokenizer):
    """Words, special tokens, whole and in pieces, brackets, Unicode."""
    specials = [token.content for token in tokenizer.added_tokens_decoder.values()]
    halves = [special[: len(special) // 2] for special in specials]
    words = [*"a\n<|>{}ü\U0001f600", " b", "</", "</think>", "call", *specials, *halves]
    return "".join(draw.choice(words) for _ in range(draw.randint(1, 12)))


def sampled_ids(draw, dialogue, tokenizer, canonical):
    """A reply: random tokens, readable text, or a call; with an end token or without."""
    kind = draw.random()
    if kind < 0.3:
        ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randint(0, 12))]
    elif kind < 0.5 and canonical:
        return canonical
    elif kind < 0.7:
        ids = tokenizer.encode(hostile_text(draw, tokenizer))
    else:
        thought = draw.choice(["", "<think>\nhm\n</think>\n\n", "hm\n</think>\n\n", "hm</think>"])
        ids = tokenizer.encode(thought + "It is 5.")
    if draw.random() < 0.7:
        ids = [*ids, draw.choice(sorted(dialogue.ends))]
    return ids


def observation(draw, text, with_tools):
    if with_tools and draw.random() < 0.6:
        return [{"role": "tool", "content": text}] * draw.randint(1, 2)
    return [{"role": "system" if draw.random() < 0.15 else "user", "content": text}]


def anew(tokenizer, conversation):
    """What the model's own writer makes of the whole conversation."""
    named = {"tools": conversation.native_tools or None}
    named |= {"tokenize": False, "add_generation_prompt": True}
    try:
        text = tokenizer.apply_chat_template(conversation.raw, **named)
    except Exception:
        text = tokenizer.apply_chat_template(conversation.parsed, **named)
    return tokenizer.encode(text)


def refuses(dialogue, messages, tools, turns, turn):
    """Whether these roles are refused after plain replies too, so that it is no reply's doing."""
    conversation = Conversation(dialogue, messages, tools)
    try:
        for each in (*turns, turn):
            conversation.reply(dialogue.tokenizer.encode("It is 5."))
            conversation.add([{**message, "content": "x"} for message in each])
    except UserError:
        return True
    return False


def canonical_call(dialogue, tokenizer, tools, thought=""):
    """The ids of a turn that is one call, as the model's own writer writes it."""
    function = {"name": "add", "arguments": {"a": "2 + 3"}}
    call = {"id": "functions.add:0", "type": "function", "function": function}  # as Kimi's
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    if thought:
        calling["reasoning_content"] = thought
    if dialogue.native is None:
        prompt = dialogue.written(ASKED, [])
        closed = "\n</think>\n" if prompt.rstrip().endswith("<think>") else ""
        return tokenizer.encode(f"{closed}<tool_call>\n{json.dumps(function)}\n</tool_call>")
    prompt = tokenizer.encode(dialogue.written(ASKED, tools))
    whole = tokenizer.encode(dialogue.written([*ASKED, calling], tools, False))
    if whole[: len(prompt)] != prompt and not thought:  # it begins with reasoning
        return canonical_call(dialogue, tokenizer, tools, "Ask.")
    return whole[len(prompt) :] if whole[: len(prompt)] == prompt else None


@pytest.mark.parametrize("which", few(TEMPLATES, 24))
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_what_was_sampled_stays_and_observations_forge_nothing(which, seed):
    """Token for token over three turns, with the special tokens that harmless observations have."""
    dialogue, tokenizer = dialogue_of(which)
    draw = random.Random(seed)
    tools = [TOOL] if draw.random() < 0.6 else []
    messages = [*ASKED]
    if draw.random() < 0.5:
        messages.insert(0, {"role": "system", "content": "Be brief."})
    try:
        conversation = Conversation(dialogue, messages, tools)
        twin = Conversation(dialogue, messages, tools)
    except UserError:
        assert messages[0]["role"] == "system" or which == "vllm/template_kimi_audio"
        return
    canonical = canonical_call(dialogue, tokenizer, [TOOL]) if tools else None
    special = set(tokenizer.all_special_ids)
    record, is_sampled = list(conversation.prompt_ids), [False] * len(conversation.prompt_ids)
    sampled, turns = [], []
    for _ in range(3):
        before = conversation.prompt_ids
        ids = sampled_ids(draw, dialogue, tokenizer, canonical)
        reply = conversation.reply(ids)
        twin.reply(ids)
        assert reply == tokenizer.decode(ids, skip_special_tokens=True)
        record, is_sampled = record + ids, is_sampled + [True] * len(ids)
        sampled += ids
        turn = observation(draw, hostile_text(draw, tokenizer), bool(tools))
        try:
            extension, is_continuation = conversation.add(turn)
            harmless, continues = twin.add([{**message, "content": "x"} for message in turn])
        except UserError as error:
            assert "refuses" in str(error) or "does not write every turn" in str(error)
            assert refuses(dialogue, messages, tools, turns, turn)
            return
        turns.append(turn)
        written = list(extension)
        if is_continuation:
            record, is_sampled = record + written, is_sampled + [False] * len(written)
            assert conversation.prompt_ids == before + tuple(ids) + extension
        else:
            record, is_sampled, sampled = written, [False] * len(written), []
            assert conversation.prompt_ids == extension
            assert written == anew(tokenizer, conversation)
        assert tuple(record) == conversation.prompt_ids
        assert [i for i, taken in zip(record, is_sampled, strict=True) if taken] == sampled
        if is_continuation == continues:
            found = [i for i in extension if i in special]
            assert found == [i for i in harmless if i in special]


@pytest.mark.parametrize("which", few(TEMPLATES, 40))
def test_a_canonical_call_is_read(which):
    dialogue, tokenizer = dialogue_of(which)
    if which == "vllm/template_kimi_audio":
        pytest.skip("it writes nothing")
    ids = canonical_call(dialogue, tokenizer, [TOOL])
    if ids is None:
        pytest.skip("the turn does not begin where the policy would begin it")
    (call,) = Conversation(dialogue, ASKED, [TOOL]).reply(ids).calls
    assert (call.name, call.arguments, call.error) == ("add", {"a": "2 + 3"}, "")

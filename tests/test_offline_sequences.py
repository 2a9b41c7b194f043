"""Conversations as token ids: which are learnt, with chat templates of different habits.

The tokenizer has a token for every byte, and one for each marker.
"""

import pytest
from byte_tokenizers import ByteTokenizer
from test_offline_examples import assistant, system, user

from unslothrl.errors import UserError
from unslothrl.offline.examples import Example, Pair
from unslothrl.offline.sequences import Writer, Written

START, END = "<|im_start|>", "<|im_end|>"
TURN = START + "{{ message.role }}\n{{ message.content }}" + END + "\n"
EACH = "{% for message in messages %}" + TURN + "{% endfor %}"
OPEN = "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"

CHATML = EACH + OPEN
THINKING = EACH + OPEN.replace("assistant\n", "assistant\n<think>\n")
DROPPING = CHATML.replace(  # Qwen3's habit: the reasoning of earlier turns is left out
    "{{ message.content }}",
    "{{ message.content if loop.last else message.content.split('</think>\n')[-1] }}",
)
APPENDING = EACH + "{% if not add_generation_prompt %}<|end|>Thanks.{% endif %}" + OPEN
REFUSED = "{{ raise_exception('no system role') }}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}" + REFUSED + "{% endif %}" + CHATML
ENDLESS = (  # only what the user says has an end
    "{% for message in messages %}{% if message.role == 'user' %}User: {{ message.content }}"
    + END
    + "{% else %}Bot: {{ message.content }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}Bot: {% endif %}"
)


def tokenizer_of(template):
    return ByteTokenizer((START, END, "<|end|>", "<think>", "</think>"), END, template)


def pair_of(chosen, rejected, **more):
    return Pair(TWO[:1], chosen=chosen, rejected=rejected, **more)


def written(tokenizer, *parts):
    """A sequence of texts: those that are learnt stand in lists of their own."""
    ids, learnt = [], []
    for part in parts:
        tokens = tokenizer.encode(part[0] if isinstance(part, list) else part)
        ids += tokens
        learnt += [isinstance(part, list)] * len(tokens)
    return Written(tuple(ids), tuple(learnt))


def asked(text, role="user"):
    return f"{START}{role}\n{text}{END}\n"


BOT = f"{START}assistant\n"
ASKED, AGAIN = asked("1?") + BOT, "\n" + asked("2?") + BOT
TWO = (user("1?"), assistant("a"), user("2?"), assistant("b"))
OTHER = (assistant("c"),)
HM, SO = "<think>\nhm\n</think>\na", "<think>\nso\n</think>\nb"
THOUGHT = (user("1?"), assistant(HM), user("2?"), assistant(SO))


SEQUENCES = {
    "a system turn": (
        CHATML, (system("s"), *TWO[:2]), [(asked("s", "system") + ASKED, ["a" + END])],
    ),
    "the turns are one sequence": (CHATML, TWO, [(ASKED, ["a" + END], AGAIN, ["b" + END])]),
    "a template that drops earlier reasoning": (
        DROPPING, THOUGHT, [(ASKED, [HM + END]), (f"{ASKED}a{END}{AGAIN}", [SO + END])],
    ),
    "text after the last turn's end": (APPENDING, TWO[:2], [(ASKED, ["a" + END])]),
    "a prompt that opens reasoning": (
        THINKING, THOUGHT[:2], [(ASKED + "<think>\n", ["hm\n</think>\na" + END])],
    ),
    "it opens reasoning, a reply without": (THINKING, TWO[:2], [(ASKED, ["a" + END])]),
    "no end of a turn": (ENDLESS, TWO[:2], [(f"User: 1?{END}Bot: ", ["a"])]),
}  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCES)
def test_ids_and_what_is_learnt(name):
    template, messages, expected = SEQUENCES[name]
    tokenizer = tokenizer_of(template)
    found = Writer(tokenizer).sequences(Example(messages))
    assert found == [written(tokenizer, *parts) for parts in expected]


@pytest.mark.parametrize("template", [CHATML, DROPPING, THINKING])
def test_what_is_learnt_is_what_a_policy_would_sample(template):
    """Before each reply stands the prompt that a rollout gets, to the token."""
    tokenizer = tokenizer_of(template)
    writer = Writer(tokenizer)
    (one,) = writer.sequences(Example(THOUGHT[:2]))
    prompt = tokenizer.apply_chat_template(list(THOUGHT[:1]), add_generation_prompt=True)
    begun = tuple(tokenizer.encode(prompt))
    assert one.ids[: len(begun)] == begun and one.ids[-1] == tokenizer.eos_token_id
    assert one.learnt == (False,) * len(begun) + (True,) * (len(one.ids) - len(begun))
    assert not writer.notes


def test_what_a_reader_must_know_is_noted_once():
    for template, said in (
        (THINKING, r"ends a prompt with '<think>\n', and writes a reply without it"),
        (ENDLESS, "when to stop is not learnt"),
    ):
        writer = Writer(tokenizer_of(template))
        for _ in range(2):
            writer.sequences(Example(TWO[:2]))
        (note,) = writer.notes
        assert said in note


def test_a_conversation_that_the_template_refuses():
    with pytest.raises(UserError, match="its chat template refuses a conversation of system, user"):
        Writer(tokenizer_of(NO_SYSTEM)).sequences(Example((system("s"), *TWO[:2])))


@pytest.mark.parametrize(
    ("turns", "is_plain"), [(TWO[:2], False), (TWO, True), ((system("s"), *TWO[:2]), True)]
)
def test_a_conversation_without_a_template(turns, is_plain):
    writer = Writer(tokenizer_of(None))
    with pytest.raises(UserError, match="a conversation, and the model has no chat template"):
        writer.sequences(Example(turns, is_plain=is_plain))
    with pytest.raises(UserError, match="a conversation, and the model has no chat template"):
        writer.pair(Pair(turns[:-1], chosen=turns[-1:], rejected=OTHER, is_plain=is_plain))


def test_texts_without_a_template():
    tokenizer = tokenizer_of(None)
    writer = Writer(tokenizer)
    example = Example(TWO[:2], is_plain=True)
    assert writer.sequences(example) == [written(tokenizer, "1?", ["a" + END])]
    every = Writer(tokenizer, only_replies=False)
    assert every.sequences(example) == [written(tokenizer, ["1?a" + END])]
    pair = writer.pair(pair_of(TWO[1:2], OTHER, is_plain=True))
    assert texts(tokenizer, pair) == ("1?", "a" + END, "c" + END)
    assert "has no chat template" in "".join(writer.notes)
    for text in ("Once.", "Once." + END):  # it gets one end
        assert writer.sequences(Example(text=text)) == [written(tokenizer, ["Once." + END])]


def test_all_of_a_conversation_can_be_learnt():
    tokenizer = tokenizer_of(CHATML)
    (found,) = Writer(tokenizer, only_replies=False).sequences(Example(TWO[:2]))
    assert found == written(tokenizer, [ASKED + f"a{END}\n"])


def test_calls_are_learnt_and_their_results_are_not():
    """By a template without tools, in Hermes' form."""
    called = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    call = {**assistant(""), "tool_calls": [called]}
    tokenizer = tokenizer_of(CHATML)
    turns = (user("1?"), call, {"role": "tool", "content": "2"}, assistant("It is 2."))
    (found,) = Writer(tokenizer).sequences(Example(turns))
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' + END
    result = "\n" + asked("<tool_response>\n2\n</tool_response>") + BOT
    assert found == written(tokenizer, ASKED, [said], result, ["It is 2." + END])


def texts(tokenizer, ids):
    prompt, chosen, rejected = ids
    return tuple(map(tokenizer.decode, (prompt, chosen.ids, rejected.ids)))


PAIRS = {
    "replies that begin alike": (CHATML, ("30", "31"), (ASKED, "30" + END, "31" + END)),
    "one that begins the other": (CHATML, ("3", "31"), (ASKED, "3" + END, "31" + END)),
    "reasoning that the prompt opens": (
        THINKING, ("<think>\na</think>3", "<think>\n</think>4"),
        (ASKED + "<think>\n", "a</think>3" + END, "</think>4" + END),
    ),
    "reasoning in one of them": (
        THINKING, ("<think>\na</think>3", "4"), (ASKED, "<think>\na</think>3" + END, "4" + END),
    ),
    "no end": (ENDLESS, ("3", "4"), (f"User: 1?{END}Bot: ", "3", "4")),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair(name):
    template, (chosen, rejected), expected = PAIRS[name]
    tokenizer = tokenizer_of(template)
    found = Writer(tokenizer).pair(pair_of((assistant(chosen),), (assistant(rejected),)))
    assert texts(tokenizer, found) == expected
    assert all(found[1].learnt) and all(found[2].learnt)


ANSWERS = {
    "turns of the user": (CHATML, TWO[1:], BOT, [["a" + END], AGAIN, ["b" + END]]),
    "a turn without an end": (ENDLESS, TWO[1:], "Bot: ", [["a"], f"User: 2?{END}Bot: ", ["b"]]),
    "a prompt that opens reasoning": (
        THINKING, THOUGHT[1:], BOT, [[HM + END], AGAIN + "<think>\n", ["so\n</think>\nb" + END]],
    ),
    "reasoning left out later": (DROPPING, THOUGHT[1:], BOT, [f"a{END}{AGAIN}", [SO + END]]),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_of_an_answer_of_several_turns_only_the_assistant_is_learnt(name):
    template, turns, begin, parts = ANSWERS[name]
    tokenizer = tokenizer_of(template)
    for given in ((turns, OTHER), (OTHER, turns)):
        writer = Writer(tokenizer)
        prompt, *answers = writer.pair(pair_of(*given))
        long, short = answers[:: 1 if given[0] == turns else -1]
        assert long == written(tokenizer, *parts)
        assert tokenizer.decode(prompt).endswith(begin)
        assert all(short.learnt) and tokenizer.decode(short.ids).startswith("c")
        assert any("rewrites" in note for note in writer.notes) == (template == DROPPING)

"""What a row means to SFT, and what to DPO or a reward model."""

import json

import pytest

from unslothrl.data.columns import UnusableRow
from unslothrl.offline.examples import Example, ExampleColumns, Pair, example, pair


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


ASKED = (user("What is 1 + 2?"), assistant("3"))
PARTS = ("What is ", "1 + 2?")
SHARE_GPT = [{"from": "human", "value": "What is 1 + 2?"}, {"from": "gpt", "value": "3"}]

EXAMPLES = {
    "messages as JSON": ({"messages": json.dumps(list(ASKED))}, ASKED),
    "several turns": (
        {"messages": [system("Be brief."), *ASKED, user("And 2 + 2?"), assistant("4")]},
        (system("Be brief."), *ASKED, user("And 2 + 2?"), assistant("4")),
    ),
    "parts of text": (
        {"messages": [user([{"type": "text", "text": part} for part in PARTS]), ASKED[1]]},
        ASKED,
    ),
    "ShareGPT with its system": (
        {"conversations": SHARE_GPT, "system": "Be brief."},
        (system("Be brief."), *ASKED),
    ),
    "ShareGPT whose own system turn counts": (
        {"conversations": [{"from": "system", "value": "Rhyme."}, *SHARE_GPT], "system": "x"},
        (system("Rhyme."), *ASKED),
    ),
    "Alpaca": (
        {"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "Below is ..."},
        (user("Add.\n\n1 and 2"), assistant("3")),
    ),
    "prompt and completion": ({"prompt": "What is 1 + 2?", "completion": "3"}, ASKED),
    "question and answer": ({"Question": "What is 1 + 2?", " Answer": 3}, ASKED),
    "the better of a pair": (
        {"prompt": "What is 1 + 2?", "chosen": list(ASKED), "rejected": [ASKED[0], assistant("4")]},
        ASKED,
    ),
    "a prompt of turns and a completion of turns": (
        {"prompt": [system("Be brief."), ASKED[0]], "completion": [ASKED[1]]},
        (system("Be brief."), *ASKED),
    ),
    "a prompt that happens to be JSON": (
        {"prompt": "[1, 2]", "completion": "3"},
        (user("[1, 2]"), assistant("3")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name):
    row, messages = EXAMPLES[name]
    assert example(row) == Example(messages)


def test_a_text_is_learnt_as_it_stands():
    assert example({"text": "Once upon a time."}) == Example(text="Once upon a time.")


def test_columns_by_name():
    row = {"prompt": "no", "completion": "no", "q": {"text": "What is 1 + 2?"}, "best": "3"}
    assert example(row, ExampleColumns("q.text", "best")).messages == ASKED
    row |= {"worse": "4"}
    columns = ExampleColumns("q.text", chosen="best", rejected="worse")
    assert pair(row, columns) == Pair(
        (ASKED[0],), chosen=(assistant("3"),), rejected=(assistant("4"),)
    )


CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "id": "a", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    ],
}


def test_calls_of_tools_have_objects_as_arguments():
    schema = {"type": "function", "function": {"name": "add", "parameters": {}}}
    result = {"role": "tool", "content": "3", "tool_call_id": "a"}
    turns = [ASKED[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}, result]
    row = {"messages": [*turns, assistant("It is 3.")], "tools": json.dumps([schema])}
    found = example(row)
    assert found.messages == (ASKED[0], CALLED, result, assistant("It is 3."))
    assert found.tools == (schema,)


def test_reasoning_beside_the_content_is_kept():
    said = {**assistant("3"), "reasoning_content": "1 and 2"}
    assert example({"messages": [ASKED[0], said]}).messages[-1] == said


PAIRS = {
    "texts": {"prompt": "What is 1 + 2?", "chosen": "3", "rejected": "4"},
    "more names": {"Prompt": "What is 1 + 2?", "Chosen_Response": "3", "rejected_response": "4"},
    "turns": {"prompt": [ASKED[0]], "chosen": [ASKED[1]], "rejected": [assistant("4")]},
    "turns with the prompt again": {
        "prompt": "What is 1 + 2?", "chosen": list(ASKED), "rejected": [ASKED[0], assistant("4")],
    },
    "conversations": {"chosen": list(ASKED), "rejected": [ASKED[0], assistant("4")]},
    "ShareGPT": {
        "conversations": SHARE_GPT[:1], "chosen": SHARE_GPT[1],
        "rejected": {"from": "gpt", "value": "4"},
    },
    "Anthropic's": {
        "chosen": "\n\nHuman: What is 1 + 2?\n\nAssistant: 3",
        "rejected": "\n\nHuman: What is 1 + 2?\n\nAssistant: 4",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair(name):
    assert pair(PAIRS[name]) == Pair(
        (ASKED[0],), chosen=(assistant("3"),), rejected=(assistant("4"),)
    )


def test_conversations_have_in_common_what_both_begin_with():
    """Also replies, but for one that both begin with and that nobody answers."""
    start = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: 1 + 2?"
    found = pair({"chosen": f"{start}\n\nAssistant: 3", "rejected": f"{start}\n\nAssistant: 4"})
    assert found.messages == (user("Hi"), assistant("Hello."), user("1 + 2?"))
    turns = [user("Hi"), assistant("Hello.")]
    longer = [*turns, user("1?"), assistant("1")]
    found = pair({"chosen": longer, "rejected": [*turns, user("2?"), assistant("2")]})
    assert found.messages == (user("Hi"),)
    assert found.chosen == (assistant("Hello."), user("1?"), assistant("1"))


def test_a_margin_is_kept():
    assert pair({**PAIRS["texts"], "margin": "1.5"}).margin == 1.5
    assert pair({**PAIRS["texts"], "margin": None}).margin is None


BAD_EXAMPLES = {
    "no reply": ({"prompt": "a"}, "no column messages or conversations or text or completion"),
    "empty turn": ({"messages": [user("a"), assistant("")]}, "column messages is empty"),
    "ends with the user": ({"messages": [user("a")]}, "no column messages or conversations"),
    "user twice": (
        {"messages": [user("a"), user("b"), assistant("c")]}, "a turn of the user after user",
    ),
    "assistant twice": (
        {"messages": [user("a"), assistant("b"), assistant("c")]}, "the assistant after assistant",
    ),
    "system late": (
        {"messages": [user("a"), system("b"), assistant("c")]}, "a turn of the system after user",
    ),
    "tool first": (
        {"messages": [user("a"), {"role": "tool", "content": "b"}, assistant("c")]},
        "a turn of the tool after user",
    ),
    "no list": ({"messages": "hello"}, "column messages is no list of turns with a role"),
    "an image": (
        {"messages": [user([{"type": "image", "url": "x"}]), assistant("b")]}, "more than text",
    ),
    "call whose arguments are no object": (
        {
            "messages": [
                user("a"), {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "x"}]},
            ]
        },
        "a tool call whose arguments are no object",
    ),
    }  # fmt: skip


@pytest.mark.parametrize("name", BAD_EXAMPLES)
def test_an_example_that_cannot_be_used(name):
    row, reason = BAD_EXAMPLES[name]
    with pytest.raises(UnusableRow) as caught:
        example(row)
    assert reason in str(caught.value)


TEXTS = PAIRS["texts"]
BAD_PAIRS = {
    "equal": ({**TEXTS, "rejected": "3"}, "chosen and rejected are equal"),
    "equal conversations": (
        {"chosen": list(ASKED), "rejected": list(ASKED)}, "chosen and rejected are equal",
    ),
    "empty chosen": ({**TEXTS, "chosen": ""}, "column chosen is empty"),
    "no rejected": ({"prompt": "a", "chosen": "b"}, "no column rejected or rejected_response"),
    "none in common": (
        {"chosen": list(ASKED), "rejected": [user("b"), assistant("4")]}, "no prompt in common",
    ),
    "nothing after the prompt": (
        {**TEXTS, "rejected": [ASKED[0]]}, "column rejected has nothing after the prompt",
    ),
    "a turn of the user after the user": (
        {**TEXTS, "rejected": [user("b"), assistant("4")]}, "a turn of the user after user",
    ),
    "Anthropic's that begins otherwise": (
        {"chosen": "Hm\n\nHuman: a\n\nAssistant: 3", "rejected": "\n\nHuman: a\n\nAssistant: 4"},
        "begins with neither Human: nor Assistant:",
    ),
    "margin below 0": ({**TEXTS, "margin": -1}, "column margin is -1, no number from 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PAIRS)
def test_a_pair_that_cannot_be_used(name):
    row, reason = BAD_PAIRS[name]
    with pytest.raises(UnusableRow) as caught:
        pair(row)
    assert reason in str(caught.value)


def test_a_column_that_is_named_must_be_there():
    with pytest.raises(UnusableRow, match=r"no column quetion; .*question.*: set --prompt_column"):
        example({"question": "a", "answer": "b"}, ExampleColumns("quetion"))
    with pytest.raises(UnusableRow, match="column worse is empty"):
        pair({"prompt": "a", "chosen": "b", "worse": None}, ExampleColumns(rejected="worse"))


def test_a_system_prompt_takes_the_place_of_the_rows_own():
    with_own = Example((system("Rhyme."), *ASKED))
    assert with_own.under("Be brief.").messages == (system("Be brief."), *ASKED)
    assert with_own.under("").messages == ASKED
    assert Example(ASKED).under("Be brief.").messages == (system("Be brief."), *ASKED)
    assert Example(text="a").under("Be brief.") == Example(text="a")
    assert pair(TEXTS).under("Be brief.").messages == (system("Be brief."), ASKED[0])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "1?", "completion": "a"}, True),
        ({"instruction": "Add", "input": "1 2", "output": "3"}, True),
        ({"prompt": "1?", "completion": [{"role": "assistant", "content": "a"}]}, False),
        ],
)  # fmt: skip
def test_whether_a_row_is_of_texts(row, expected):
    assert example(row).is_plain is expected
    if "completion" in row:
        other = [{"role": "assistant", "content": "b"}]
        two = {"prompt": row["prompt"], "chosen": row["completion"], "rejected": "b"}
        assert pair(two).is_plain is expected
        assert pair({**two, "rejected": other}).is_plain is False


def test_a_column_system_comes_before_the_question():
    row = {"system": "Be brief.", "question": "1?", "chosen": "a", "rejected": "b"}  # Orca's pairs
    asked = (system("Be brief."), user("1?"))
    assert pair(row).messages == asked
    assert pair({**row, "system": ""}).messages == asked[1:]
    assert example({**row, "response": "a"}).messages[:2] == asked

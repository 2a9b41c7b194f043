"""What a row means to SFT, and what to DPO or a reward model."""

import json
from dataclasses import replace
from functools import partial

import pyarrow
import pyarrow.parquet
import pytest

from unslothrl.data import files
from unslothrl.data.formats import UnusableRow
from unslothrl.offline.examples import Example, Pair, example, pair


def turn(role, text):
    return {"role": role, "content": text}


user, assistant, system = (partial(turn, role) for role in ("user", "assistant", "system"))
ASKED = (user("What is 1 + 2?"), assistant("3"))
PAIR = Pair((ASKED[0],), chosen=(assistant("3"),), rejected=(assistant("4"),))
THOUGHT = {**assistant("3"), "reasoning_content": "1 and 2"}
BRIEF = (system("Be brief."), *ASKED)
PARTS = [{"type": "text", "text": part} for part in ("What is ", "1 + 2?")]
FLIGHT = '{"from": "Rome", "to": "Oslo", "role": "pilot"}'
SHARE_GPT = [{"from": "human", "value": "What is 1 + 2?"}, {"from": "gpt", "value": "3"}]

EXAMPLES = {
    "messages as JSON": ({"messages": json.dumps(list(ASKED))}, ASKED),
    "several turns": (
        {"messages": [*BRIEF, user("2 + 2?"), assistant("4")]},
        (*BRIEF, user("2 + 2?"), assistant("4")),
    ),
    "parts of text": ({"messages": [user(PARTS), ASKED[1]]}, ASKED),
    "ShareGPT with its system": ({"conversations": SHARE_GPT, "system": "Be brief."}, BRIEF),
    "ShareGPT whose own system turn counts": (
        {"conversations": [{"from": "system", "value": "Rhyme."}, *SHARE_GPT], "system": "x"},
        (system("Rhyme."), *ASKED),
    ),
    "Alpaca": (
        {"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "Below is ..."},
        (user("Add.\n\n1 and 2"), assistant("3")),
    ),
    "prompt and completion": ({"prompt": "What is 1 + 2?", "completion": "3"}, ASKED),
    "reasoning beside the content": ({"messages": [ASKED[0], THOUGHT]}, (ASKED[0], THOUGHT)),
    "question and answer": ({"Question": "What is 1 + 2?", " Answer": 3}, ASKED),
    "the better of a pair": (
        {"prompt": "What is 1 + 2?", "chosen": list(ASKED), "rejected": [ASKED[0], assistant("4")]},
        ASKED,
    ),
    "a prompt of turns and a completion of turns": (
        {"prompt": [system("Be brief."), ASKED[0]], "completion": [ASKED[1]]},
        BRIEF,
    ),
    "a prompt that happens to be JSON": (
        {"prompt": "[1, 2]", "completion": "3"}, (user("[1, 2]"), assistant("3")),
    ),
    "JSON with keys that turns have, too": (
        {"prompt": f"[{FLIGHT}]", "completion": FLIGHT}, (user(f"[{FLIGHT}]"), assistant(FLIGHT)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name):
    row, messages = EXAMPLES[name]
    assert example(row) == Example(messages)
    assert example({"text": "Once upon a time."}) == Example(text="Once upon a time.")


def test_columns_by_name():
    row = {"prompt": "no", "completion": "no", "q": {"text": "What is 1 + 2?"}, "best": "3"}
    assert example(row, {"prompt": "q.text", "completion": "best"}).messages == ASKED
    columns = {"prompt": "q.text", "chosen": "best", "rejected": "worse"}
    assert pair({**row, "worse": "4"}, columns) == PAIR


def calling(content, arguments):
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def test_calls_of_tools_have_objects_as_arguments():
    schema = {"type": "function", "function": {"name": "add", "parameters": {}}}
    after = {"role": "tool", "content": "3", "tool_call_id": "a"}, assistant("It is 3.")
    turns = [ASKED[0], calling(None, '{"a": 1, "b": 2}'), *after]
    found = example({"messages": turns, "tools": json.dumps([schema])})
    assert found.messages == (ASKED[0], calling("", {"a": 1, "b": 2}), *after)
    assert found.tools == (schema,)


def test_what_parquet_adds_to_a_call_is_not_learnt(tmp_path):
    """A null for every key that a call or a schema of another row has."""
    rows = []
    for name, arguments in (("add", {"a": 1, "b": 2}), ("say", {"text": "Hi"}), ("now", {})):
        kinds = {key: {"type": type(value).__name__} for key, value in arguments.items()}
        schema = {"type": "object", "properties": kinds, "required": list(kinds)}
        function = {"name": name, "parameters": schema}
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        reply = {"role": "assistant", "content": None, "tool_calls": [call]}
        tools = [{"type": "function", "function": function}]
        rows.append({"messages": [ASKED[0], reply], "tools": tools})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "calls.parquet")
    found = files.read(tmp_path / "calls.parquet")
    assert found[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]["text"] is None
    assert [example(row) for row in found] == [example(row) for row in rows]


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
    assert pair({**PAIRS[name], "margin": "1.5"}) == replace(PAIR, margin=1.5)
    assert pair(PAIRS[name]) == PAIR


def test_conversations_have_in_common_what_both_begin_with():
    """Also replies, but for one that both begin with and that nobody answers."""
    start = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: 1 + 2?\n\nAssistant: "
    found = pair({"chosen": f"{start}3", "rejected": f"{start}4"})
    assert found.messages == (user("Hi"), assistant("Hello."), user("1 + 2?"))
    turns = [user("Hi"), assistant("Hello.")]
    longer = [*turns, user("1?"), assistant("1")]
    found = pair({"chosen": longer, "rejected": [*turns, user("2?"), assistant("2")]})
    assert found.messages == (user("Hi"),)
    assert found.chosen == (assistant("Hello."), user("1?"), assistant("1"))


TEXTS = PAIRS["texts"]
OTHERWISE = {"chosen": "Hm\n\nHuman: a\n\nAssistant: 3", "rejected": "\n\nHuman: a\n\nAssistant: 4"}
CALLS_A_TEXT = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "x"}]}
UNUSABLE = [
    (example, {"prompt": "a"}, "no column messages or conversations or text or completion"),
    (example, {"messages": [user("a"), assistant("")]}, "column messages is empty"),
    (example, {"messages": [user("a")]}, "no column messages or conversations"),
    (example, {"messages": [user("a"), user("b"), assistant("c")]}, "of the user after user"),
    (example, {"messages": [user("a"), assistant("b"), assistant("c")]}, "after assistant"),
    (example, {"messages": [user("a"), system("b"), assistant("c")]}, "of the system after user"),
    (example, {"messages": [user("a"), turn("tool", "b"), assistant("c")]}, "the tool after user"),
    (example, {"messages": "hello"}, "column messages is no list of turns with a role"),
    (example, {"messages": [user([{"type": "image"}]), assistant("b")]}, "more than text"),
    (example, {"messages": [user("a"), CALLS_A_TEXT]}, "a tool call whose arguments are no object"),
    (pair, {**TEXTS, "rejected": "3"}, "chosen and rejected are equal"),
    (pair, {"chosen": list(ASKED), "rejected": list(ASKED)}, "chosen and rejected are equal"),
    (pair, {**TEXTS, "chosen": ""}, "column chosen is empty"),
    (pair, {"prompt": "a", "chosen": "b"}, "no column rejected or rejected_response"),
    (pair, {"chosen": list(ASKED), "rejected": [user("b"), assistant("4")]}, "no prompt in common"),
    (pair, {**TEXTS, "rejected": [ASKED[0]]}, "column rejected has nothing after the prompt"),
    (pair, {**TEXTS, "rejected": [user("b"), assistant("4")]}, "a turn of the user after user"),
    (pair, OTHERWISE, "begins with neither Human: nor Assistant:"),
    (pair, {**TEXTS, "margin": -1}, "column margin is -1, no number from 0"),
]


@pytest.mark.parametrize(("read", "row", "reason"), UNUSABLE)
def test_a_row_that_cannot_be_used(read, row, reason):
    with pytest.raises(UnusableRow, match=reason):
        read(row)


def test_a_column_that_is_named_must_be_there():
    with pytest.raises(UnusableRow, match=r"no column quetion; .*question.*: set --prompt_column"):
        example({"question": "a", "answer": "b"}, {"prompt": "quetion"})
    with pytest.raises(UnusableRow, match="column worse is empty"):
        pair({"prompt": "a", "chosen": "b", "worse": None}, {"rejected": "worse"})


def test_a_system_prompt_takes_the_place_of_the_rows_own():
    with_own = Example((system("Rhyme."), *ASKED))
    assert with_own.under("Be brief.").messages == BRIEF and with_own.under("").messages == ASKED
    assert Example(ASKED).under("Be brief.").messages == BRIEF
    assert Example(text="a").under("Be brief.") == Example(text="a")
    assert pair(TEXTS).under("Be brief.").messages == BRIEF[:2]


def test_whether_a_row_is_of_texts():
    assert example({"instruction": "Add", "input": "1 2", "output": "3"}).is_plain
    for said, is_plain in (("a", True), ([assistant("a")], False)):
        assert example({"prompt": "1?", "completion": said}).is_plain is is_plain
        assert pair({"prompt": "1?", "chosen": said, "rejected": "b"}).is_plain is is_plain
        assert not pair({"prompt": "1?", "chosen": said, "rejected": [assistant("b")]}).is_plain


def test_a_column_system_comes_before_the_question():
    row = {"system": "Be brief.", "question": "1?", "chosen": "a", "rejected": "b"}  # Orca's pairs
    asked = (system("Be brief."), user("1?"))
    assert pair(row).messages == asked
    assert pair({**row, "system": ""}).messages == asked[1:]
    assert example({**row, "response": "a"}).messages[:2] == asked

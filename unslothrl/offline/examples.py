"""What a row means to SFT, and what to DPO or a reward model; recognised by its columns.

docs/offline.md has them. A column with dots, and any column that is named, as in `data.formats`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from unslothrl.config.offline_options import OfflineOptions
from unslothrl.data import formats
from unslothrl.data.formats import UnusableRow, is_turns, names_of, parsed, plain_value, value_of
from unslothrl.text import plain

Message = dict[str, Any]  # role, content and, of a turn that calls tools, tool_calls
Messages = tuple[Message, ...]
COMPLETIONS = ("completion", "response", "output", "chosen", "solution", "answer")
CONVERSATIONS = ("messages", "conversations")
TEXT = "text"
REPLIES = {
    "chosen": ("chosen", "chosen_response", "response_j"),
    "rejected": ("rejected", "rejected_response", "response_k"),
}
MARKER = re.compile(r"\n\n(Human|Assistant):")  # of Anthropic's hh-rlhf
MARGIN, NUMBER = "margin", r"\d+(\.\d*)?([eE][+-]?\d+)?"
AFTER = {  # role of a turn -> roles of the turn before it, "": none
    "system": ("",),
    "user": ("", "system", "assistant", "tool"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def named_columns(options: OfflineOptions) -> dict[str, str]:
    """What a column holds -> its name, of those that the user names; others are recognised."""
    held = ("prompt", "completion", *REPLIES)
    names = {what: getattr(options, f"{what}_column", None) for what in held}
    return {what: name for what, name in names.items() if name is not None}


@dataclass(frozen=True)
class Example:
    """What SFT learns: a conversation, or else a text."""

    messages: Messages = ()  # of a pair the prompt
    text: str = ""
    tools: tuple[Any, ...] = field(default=(), kw_only=True)  # schemas that the template shows
    # columns that it was read from; whether prompt and replies are given as texts
    columns: tuple[str, ...] = field(default=(), compare=False, kw_only=True)
    is_plain: bool = field(default=False, compare=False, kw_only=True)

    @property
    def system_prompt(self) -> str:
        """ "": none."""
        first = self.messages[:1]
        return next((each["content"] for each in first if each["role"] == "system"), "")

    def under(self, system_prompt: str) -> Self:
        """With this system prompt in place of its own; "": without one."""
        rest = tuple(each for each in self.messages if each["role"] != "system")  # the first
        if system_prompt and rest:
            rest = ({"role": "system", "content": system_prompt}, *rest)
        return replace(self, messages=rest)


@dataclass(frozen=True, kw_only=True)
class Pair(Example):
    """A prompt and two ways to go on; the one of them is better, by `margin` where that is said."""

    chosen: Messages
    rejected: Messages
    margin: float | None = None


def example(row: Mapping, columns: Mapping[str, str] = {}) -> Example:
    """Raises UnusableRow."""
    names, row = names_of(row), named(row, columns)
    tools = tools_of(row)
    if not columns:
        for name in CONVERSATIONS:
            if row.get(name):
                messages = with_system(messages_of(row[name], name), row)
                if messages[-1]["role"] == "assistant":
                    return Example(in_order(messages, name), tools=tools, columns=(name,))
        if filled(row.get(TEXT)) and not any(row.get(name) for name in formats.PROMPTS):
            return Example(text=formats.text_of(row[TEXT], TEXT), columns=(TEXT,))
    usual = next((name for name in COMPLETIONS if filled(row.get(name))), None)
    if (completion := columns.get("completion", usual)) is None:
        wanted = " or ".join((*CONVERSATIONS, TEXT, *COMPLETIONS))
        raise UnusableRow(f"no column {wanted}; it has {names}: set --completion_column")
    column = columns.get("prompt", usual_prompt(row))
    before, value = prompt_of(row, column), value_of(row, completion)
    messages = in_order((*before, *turns_of_reply(value, completion, before)), completion)
    is_plain = column is not None and is_text(value_of(row, column)) and is_text(value)
    read = (*filter(None, [column]), completion)
    return Example(messages, tools=tools, columns=read, is_plain=is_plain)


def pair(row: Mapping, columns: Mapping[str, str] = {}) -> Pair:
    """Raises UnusableRow, also for two that are equal."""
    all_names, row = names_of(row), named(row, columns)
    found = {
        flag: columns.get(flag) or next((n for n in usual if row.get(n) is not None), None)
        for flag, usual in REPLIES.items()
    }
    if missing := [flag for flag, name in found.items() if name is None]:
        lacking = " and no column ".join(" or ".join(REPLIES[flag]) for flag in missing)
        flags = " and ".join(f"--{flag}_column" for flag in missing)
        raise UnusableRow(f"no column {lacking}; it has {all_names}: set {flags}")
    names = [str(name) for name in found.values()]
    values = [value_of(row, name) for name in names]
    column = columns.get("prompt", usual_prompt(row))
    if column is not None:
        prompt = prompt_of(row, column)
        replies = [turns_of_reply(v, name, prompt) for v, name in zip(values, names, strict=True)]
    else:
        prompt, replies = apart(*(whole(v, name) for v, name in zip(values, names, strict=True)))
    if replies[0] == replies[1]:
        raise UnusableRow("chosen and rejected are equal")
    for said, name in zip(replies, names, strict=True):
        in_order((*prompt, *said), name)
    return Pair(
        prompt,
        chosen=replies[0],
        rejected=replies[1],
        margin=margin_of(row),
        tools=tools_of(row),
        columns=(*filter(None, [column]), *names),
        is_plain=column is not None and all(map(is_text, (value_of(row, column), *values))),
    )


def named(row: Mapping, columns: Mapping[str, str]) -> Mapping:
    """The row, with columns such as "Chosen" under known names as well. Raises UnusableRow."""
    lowered = {name.strip().lower(): row[name] for name in row if isinstance(name, str)}
    both = {**lowered, **row}
    for flag, name in columns.items():
        if value_of(both, name) is None:
            raise formats.missing(both, (name,), flag)
    return both


def filled(value: Any) -> bool:
    return formats.filled(value) and value != []


def is_text(value: Any) -> bool:
    return not is_turns(parsed(value)) and not is_turns([parsed(value)])


def usual_prompt(row: Mapping) -> str | None:
    return next((name for name in formats.PROMPTS if filled(row.get(name))), None)


def prompt_of(row: Mapping, column: str | None) -> Messages:
    """The turns of a prompt. Raises UnusableRow."""
    if column is not None and column != formats.INSTRUCTION:
        as_json = parsed(value_of(row, column))
        if is_turns(as_json):
            messages = with_system(messages_of(as_json, column), row)
            if messages[-1]["role"] == "assistant":  # the conversation's own reply is not asked for
                messages = messages[:-1]
            if not messages:
                raise UnusableRow(f"column {column} has no turn of the user before the answer")
            return messages
    turns, _, _ = formats.read_prompt(row, column, tuple)
    return with_system(tuple({"role": role, "content": said} for role, said in turns), row)


def with_system(messages: Messages, row: Mapping) -> Messages:
    """With what a column `system` says before them, as in ShareGPT's and Orca's rows."""
    if messages[0]["role"] == "system" or not filled(row.get(formats.SYSTEM)):
        return messages
    said = formats.text_of(row[formats.SYSTEM], formats.SYSTEM)
    return ({"role": "system", "content": said}, *messages)


def turns_of_reply(value: Any, column: str, prompt: Messages) -> Messages:
    """What follows a prompt: a text, or messages that may begin with it. Raises UnusableRow."""
    if is_text(value):
        return ({"role": "assistant", "content": formats.text_of(value, column)},)
    as_json = parsed(value)
    messages = messages_of(as_json if is_turns(as_json) else [as_json], column)
    without_system = tuple(each for each in prompt if each["role"] != "system")
    for start in (prompt, without_system):
        if start and messages[: len(start)] == start:
            messages = messages[len(start) :]
            break
    if not messages:
        raise UnusableRow(f"column {column} has nothing after the prompt")
    return messages


def whole(value: Any, column: str) -> Messages:
    """A conversation with its prompt, as turns, or as a text with "Human:" before. UnusableRow."""
    as_json = parsed(value)
    if is_turns(as_json):
        return messages_of(as_json, column)
    text = formats.text_of(value, column)
    begin, *parts = MARKER.split(text if text.startswith("\n\n") else f"\n\n{text}")
    if not {"Human", "Assistant"} <= set(parts[::2]):
        raise UnusableRow(f"column {column} is a text, and there is no prompt: set --prompt_column")
    if begin:
        raise UnusableRow(f"column {column} begins with neither Human: nor Assistant:")
    found = []
    for name, said in zip(parts[::2], parts[1::2], strict=True):
        role = "user" if name == "Human" else "assistant"
        if not said.strip():
            raise UnusableRow(f"column {column} has an empty turn of the {role}")
        found.append({"role": role, "content": said.strip()})
    return tuple(found)


def apart(chosen: Messages, rejected: Messages) -> tuple[Messages, list[Messages]]:
    """-> (the turns with which both begin, what each goes on with). Raises UnusableRow."""
    shorter = min(len(chosen), len(rejected))
    same = next((n for n in range(shorter) if chosen[n] != rejected[n]), shorter)
    while same and chosen[same - 1]["role"] == "assistant":  # a reply belongs to its continuation
        same -= 1
    if not same or same == shorter:
        raise UnusableRow("chosen and rejected have no prompt in common: set --prompt_column")
    return chosen[:same], [chosen[same:], rejected[same:]]


def messages_of(value: Any, column: str) -> Messages:
    """Turns in the template's form. Raises UnusableRow."""
    turns = parsed(value)
    if not is_turns(turns):
        raise UnusableRow(f"column {column} is no list of turns with a role")
    return tuple(message_of(turn, column) for turn in turns)


def message_of(turn: Mapping, column: str) -> Message:
    message: Message = {"role": formats.role_of(turn, column)}
    calls = turn.get("tool_calls") if message["role"] == "assistant" else None
    is_silent = calls and turn.get("content", turn.get("value")) in (None, "")
    message["content"] = "" if is_silent else formats.content_of(turn, column)
    if calls:
        message["tool_calls"] = [call_of(call, column) for call in calls]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(turn.get(name), str):
            message[name] = turn[name]
    return message


def call_of(call: Any, column: str) -> Any:
    """A call of a tool, its arguments an object: what templates write as JSON. UnusableRow."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UnusableRow(f"column {column} has a tool call without a name")
    arguments = object_of(function.get("arguments") or {})
    if not isinstance(arguments, Mapping):
        raise UnusableRow(f"column {column} has a tool call whose arguments are no object")
    made = {"name": function["name"], "arguments": arguments}
    named = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {"type": "function", **named, "function": made}


def in_order(messages: Messages, column: str) -> Messages:
    """The turns, if they are a conversation that ends with the assistant. Raises UnusableRow."""
    before = ""
    for role in (message["role"] for message in messages):
        if before not in AFTER[role]:
            raise UnusableRow(f"column {column} has a turn of the {role} after {before or 'none'}")
        before = role
    if before != "assistant":
        raise UnusableRow(f"column {column} does not end with a turn of the assistant")
    return messages


def tools_of(row: Mapping) -> tuple[Any, ...]:
    """Schemas of tools in a column `tools`, as a list or as JSON. Raises UnusableRow."""
    found = object_of(row.get("tools"))
    if not filled(found):
        return ()
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise UnusableRow("column tools is no list of schemas")
    return tuple(found)


def object_of(value: Any) -> Any:
    """What a text is as JSON; of any other value the same in JSON's types, without nulls."""
    return parsed(value) if isinstance(value, str) else without_nulls(value)


def without_nulls(value: Any) -> Any:
    """Parquet and Arrow give an object a null for every key that another row's has."""
    if isinstance(value, Mapping):
        return {str(key): without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(each) for each in value]
    return plain_value(value)


def margin_of(row: Mapping) -> float | None:
    """None: the row has none. Raises UnusableRow for one below 0, or without an end."""
    value = row.get(MARGIN)
    if value is None:
        return None
    if not re.fullmatch(NUMBER, str(value)) or math.isinf(float(value)):
        raise UnusableRow(f"column {MARGIN} is {plain(str(value), 40)}, no number from 0")
    return float(value)

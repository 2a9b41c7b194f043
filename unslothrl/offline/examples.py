"""What a row means to SFT, and what to DPO or a reward model; recognised by its columns.

    example  messages | conversations           all turns; those of the assistant are learnt
             text                                a text that is learnt as it stands
             prompt | problem | question | ...   with completion | response | output | chosen |
                                                 solution | answer; Alpaca's instruction and input
    pair     a prompt as above                   with chosen and rejected: texts, or messages
             chosen and rejected                 whole conversations: what both begin with is the
                                                 prompt; also as text, "\\n\\nHuman: ...
                                                 \\n\\nAssistant: ...", which Anthropic writes

Chosen and rejected may be called chosen_response and rejected_response, or response_j and
response_k, as well. A column with dots, and any column that is named, as in `data.formats`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unslothrl.columns import UnusableRow, names_of, parsed, plain_value, value_of
from unslothrl.data import formats

Message = dict[str, Any]  # role, content and, of a turn that calls tools, tool_calls
COMPLETIONS = ("completion", "response", "output", "chosen", "solution", "answer")
CONVERSATIONS = ("messages", "conversations")
TEXT = "text"
CHOSEN = ("chosen", "chosen_response", "response_j")
REJECTED = ("rejected", "rejected_response", "response_k")
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"  # of Anthropic's hh-rlhf
MARGIN = "margin"
MOST_MARGIN = (2 - 2**-23) * 2.0**127  # float32's largest


@dataclass(frozen=True)
class ExampleColumns:
    """The columns as the user names them; None: recognised."""

    prompt: str | None = None
    completion: str | None = None
    chosen: str | None = None
    rejected: str | None = None


@dataclass(frozen=True)
class Example:
    """What SFT learns: a conversation, or else a text."""

    messages: tuple[Message, ...] = ()
    text: str = ""
    tools: tuple[Any, ...] = ()  # schemas that the template shows
    columns: tuple[str, ...] = field(default=(), compare=False)  # that it was read from
    is_plain: bool = field(default=False, compare=False)  # prompt and reply are given as texts

    @property
    def system_prompt(self) -> str:
        return system_prompt_of(self.messages)

    def under(self, system_prompt: str) -> "Example":
        return replace(self, messages=under(system_prompt, self.messages))


@dataclass(frozen=True)
class Pair:
    """A prompt and two ways to go on; the one of them is better, by `margin` where that is said."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    margin: float | None = None
    tools: tuple[Any, ...] = ()
    columns: tuple[str, ...] = field(default=(), compare=False)  # that it was read from
    is_plain: bool = field(default=False, compare=False)

    @property
    def system_prompt(self) -> str:
        return system_prompt_of(self.prompt)

    def under(self, system_prompt: str) -> "Pair":
        return replace(self, prompt=under(system_prompt, self.prompt))


def system_prompt_of(messages: Sequence[Message]) -> str:
    """ "": none."""
    return messages[0]["content"] if messages and messages[0]["role"] == "system" else ""


def under(system_prompt: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """The turns with this system prompt in place of their own; "": without one."""
    own: tuple[Message, ...] = ({"role": "system", "content": system_prompt},)
    rest = messages[1:] if messages and messages[0]["role"] == "system" else messages
    return (*(own if system_prompt and messages else ()), *rest)


def example(row: Mapping, columns: ExampleColumns = ExampleColumns()) -> Example:
    """Raises UnusableRow."""
    row = known(row)
    check_named(row, columns)
    tools = tools_of(row)
    has_prompt = columns.prompt is not None or any(row.get(name) for name in formats.PROMPTS)
    if columns.completion is None and columns.prompt is None:
        for name in CONVERSATIONS:
            if row.get(name):
                messages = with_system(messages_of(row[name], name), row)
                if messages[-1]["role"] == "assistant":
                    return Example(in_order(messages, name), tools=tools, columns=(name,))
        if filled(row.get(TEXT)) and not has_prompt:
            return Example(text=formats.text_of(row[TEXT], TEXT), columns=(TEXT,))
    completion = columns.completion or next((c for c in COMPLETIONS if filled(row.get(c))), None)
    if completion is None:
        wanted = " or ".join((*CONVERSATIONS, TEXT, *COMPLETIONS))
        raise UnusableRow(f"no column {wanted}; it has {names_of(row)}: set --completion_column")
    before = prompt_of(row, columns.prompt)
    value = value_of(row, completion)
    messages = in_order((*before, *turns_of_reply(value, completion, before)), completion)
    read = (*filter(None, [prompt_column(row, columns.prompt)]), completion)
    is_plain = has_text_prompt(row, columns.prompt) and is_text(value)
    return Example(messages, tools=tools, columns=read, is_plain=is_plain)


def pair(row: Mapping, columns: ExampleColumns = ExampleColumns()) -> Pair:
    """Raises UnusableRow, also for two that are equal."""
    row = known(row)
    check_named(row, columns)
    names = (columns.chosen or first(row, CHOSEN), columns.rejected or first(row, REJECTED))
    usual = {"chosen": CHOSEN, "rejected": REJECTED}
    if missing := [flag for flag, name in zip(usual, names, strict=True) if name is None]:
        wanted = " and no column ".join(" or ".join(usual[flag]) for flag in missing)
        flags = " and ".join(f"--{flag}_column" for flag in missing)
        raise UnusableRow(f"no column {wanted}; it has {names_of(row)}: set {flags}")
    given = columns.prompt is not None or any(filled(row.get(name)) for name in formats.PROMPTS)
    values = [value_of(row, str(name)) for name in names]
    if given:
        prompt = prompt_of(row, columns.prompt)
        replies = [
            turns_of_reply(value, str(name), prompt)
            for value, name in zip(values, names, strict=True)
        ]
    else:
        both = [whole(value, str(name)) for value, name in zip(values, names, strict=True)]
        prompt, replies = apart(*both)
    chosen, rejected = replies
    if chosen == rejected:
        raise UnusableRow("chosen and rejected are equal")
    for said, name in zip(replies, names, strict=True):
        in_order((*prompt, *said), str(name))
    before = prompt_column(row, columns.prompt) if given else None
    read = tuple(str(name) for name in (before, *names) if name is not None)
    is_plain = given and has_text_prompt(row, columns.prompt) and all(map(is_text, values))
    return Pair(prompt, chosen, rejected, margin_of(row), tools_of(row), read, is_plain)


def known(row: Mapping) -> Mapping:
    """The row with columns such as "Chosen" under the names that are known."""
    named = formats.with_known_names(row)
    ours = {*COMPLETIONS, *CHOSEN, *REJECTED, TEXT, MARGIN, "tools"}
    others = {
        name: plain
        for name in named
        if isinstance(name, str) and (plain := name.strip().lower()) in ours and plain not in named
    }
    return {others.get(name, name): value for name, value in named.items()} if others else named


def check_named(row: Mapping, columns: ExampleColumns) -> None:
    """Raises UnusableRow where a column that is named is not there, or empty."""
    for flag in ("prompt", "completion", "chosen", "rejected"):
        name = getattr(columns, flag)
        if name is not None and value_of(row, name) is None:
            raise UnusableRow(
                f"column {name} is empty"
                if name in row
                else f"no column {name}; it has {names_of(row)}: set "
                f"{formats.instead(name, flag, row)}"
            )


def first(row: Mapping, names: Sequence[str]) -> str | None:
    return next((name for name in names if row.get(name) is not None), None)


def filled(value: Any) -> bool:
    return formats.filled(value) and value != []


def has_text_prompt(row: Mapping, column: str | None) -> bool:
    """Whether its prompt is a text, and not turns."""
    column = prompt_column(row, column)
    return column is not None and is_text(value_of(row, column))


def is_text(value: Any) -> bool:
    return not is_turns(parsed(value)) and not is_turns([parsed(value)])


def prompt_column(row: Mapping, column: str | None) -> str | None:
    return column or next((name for name in formats.PROMPTS if filled(row.get(name))), None)


def prompt_of(row: Mapping, column: str | None) -> tuple[Message, ...]:
    """The turns of a prompt. Raises UnusableRow."""
    column = prompt_column(row, column)
    if column is not None and column != formats.INSTRUCTION:
        as_json = parsed(value_of(row, column))
        if is_turns(as_json):
            messages = with_system(messages_of(as_json, column), row)
            if messages[-1]["role"] == "assistant":  # the conversation's own reply is not asked for
                messages = messages[:-1]
            if not messages:
                raise UnusableRow(f"column {column} has no turn of the user before the answer")
            return messages
    turns, _, _ = formats.read_prompt(row, column, ())
    messages = tuple({"role": role, "content": content} for role, content in turns)
    return messages if column == formats.INSTRUCTION else with_system(messages, row)


def with_system(messages: tuple[Message, ...], row: Mapping) -> tuple[Message, ...]:
    """With what a column `system` says before them, as in ShareGPT's and Orca's rows."""
    if messages[0]["role"] == "system" or not filled(row.get(formats.SYSTEM)):
        return messages
    said = formats.text_of(row[formats.SYSTEM], formats.SYSTEM)
    return ({"role": "system", "content": said}, *messages)


def turns_of_reply(value: Any, column: str, prompt: Sequence[Message]) -> tuple[Message, ...]:
    """What follows a prompt: a text is a turn of the assistant's. Messages may begin with the
    prompt itself. Raises UnusableRow."""
    as_json = parsed(value)
    if is_turns([as_json]):  # a single turn
        as_json = [as_json]
    if not is_turns(as_json):
        return ({"role": "assistant", "content": formats.text_of(value, column)},)
    messages = messages_of(as_json, column)
    without_system = [each for each in prompt if each["role"] != "system"]
    for start in (list(prompt), without_system):
        if start and list(messages[: len(start)]) == start:
            messages = messages[len(start) :]
            break
    if not messages:
        raise UnusableRow(f"column {column} has nothing after the prompt")
    return messages


def whole(value: Any, column: str) -> tuple[Message, ...]:
    """A conversation with its prompt. Raises UnusableRow."""
    as_json = parsed(value)
    if is_turns(as_json):
        return messages_of(as_json, column)
    text = formats.text_of(value, column)
    if HUMAN not in text or ASSISTANT not in text:
        raise UnusableRow(f"column {column} is a text, and there is no prompt: set --prompt_column")
    return dialogue(text, column)


def dialogue(text: str, column: str) -> tuple[Message, ...]:
    """The turns of a text with "Human:" and "Assistant:" before each. Raises UnusableRow."""
    found: list[Message] = []
    rest = text if text.startswith("\n\n") else f"\n\n{text}"
    while rest:
        marker, role = (HUMAN, "user") if rest.startswith(HUMAN) else (ASSISTANT, "assistant")
        if not rest.startswith(marker):
            raise UnusableRow(f"column {column} begins with neither Human: nor Assistant:")
        rest = rest[len(marker) :]
        ends = [at for other in (HUMAN, ASSISTANT) if (at := rest.find(other)) >= 0]
        said, rest = (rest[: min(ends)], rest[min(ends) :]) if ends else (rest, "")
        if not said.strip():
            raise UnusableRow(f"column {column} has an empty turn of the {role}")
        found.append({"role": role, "content": said.strip()})
    return tuple(found)


def apart(
    chosen: tuple[Message, ...], rejected: tuple[Message, ...]
) -> tuple[tuple[Message, ...], list[tuple[Message, ...]]]:
    """-> (the turns with which both begin, what each goes on with). Raises UnusableRow."""
    if chosen == rejected:
        raise UnusableRow("chosen and rejected are equal")
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    while same and chosen[same - 1]["role"] == "assistant":  # a reply belongs to its continuation
        same -= 1
    if not same or same == len(chosen) or same == len(rejected):
        raise UnusableRow("chosen and rejected have no prompt in common: set --prompt_column")
    return chosen[:same], [chosen[same:], rejected[same:]]


def is_turns(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, Mapping) and ("role" in turn or "from" in turn) for turn in value)
    )


def messages_of(value: Any, column: str) -> tuple[Message, ...]:
    """Turns in the template's form. Raises UnusableRow."""
    turns = parsed(value)
    if not is_turns(turns):
        raise UnusableRow(f"column {column} is no list of turns with a role")
    return tuple(message_of(turn, column) for turn in turns)


def message_of(turn: Mapping, column: str) -> Message:
    message: Message = {"role": formats.role_of(turn, column)}
    calls = turn.get("tool_calls")
    said = turn.get("content", turn.get("value"))
    if message["role"] == "assistant" and calls:
        message["content"] = "" if said in (None, "") else formats.content_of(turn, column)
        message["tool_calls"] = [call_of(call, column) for call in calls]
    else:
        message["content"] = formats.content_of(turn, column)
    for name in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(turn.get(name), str):
            message[name] = turn[name]
    return message


def call_of(call: Any, column: str) -> Any:
    """A call of a tool, its arguments an object: what templates write as JSON. UnusableRow."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UnusableRow(f"column {column} has a tool call without a name")
    arguments = parsed(function.get("arguments", {}))
    if not isinstance(arguments, Mapping):
        raise UnusableRow(f"column {column} has a tool call whose arguments are no object")
    made = {"name": function["name"], "arguments": plain_value(arguments)}
    named = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {"type": "function", **named, "function": made}


def in_order(messages: Sequence[Message], column: str) -> tuple[Message, ...]:
    """The turns, if they are a conversation that ends with the assistant. Raises UnusableRow."""
    before = ""
    for number, message in enumerate(messages):
        role = message["role"]
        wrong = (
            (role == "system" and number > 0)
            or (role == "user" and before == "user")
            or (role == "assistant" and before in ("", "system", "assistant"))
            or (role == "tool" and before not in ("assistant", "tool"))
        )
        if wrong:
            raise UnusableRow(f"column {column} has a turn of the {role} after {before or 'none'}")
        before = role
    if before != "assistant":
        raise UnusableRow(f"column {column} does not end with a turn of the assistant")
    return tuple(messages)


def tools_of(row: Mapping) -> tuple[Any, ...]:
    """Schemas of tools in a column `tools`, as a list or as JSON. Raises UnusableRow."""
    found = parsed(row.get("tools"))
    if not filled(found):
        return ()
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise UnusableRow("column tools is no list of schemas")
    return tuple(plain_value(each) for each in found)


def margin_of(row: Mapping) -> float | None:
    """None: the row has none. Raises UnusableRow for one below 0, or infinite in float32."""
    value = row.get(MARGIN)
    if value is None:
        return None
    try:
        margin = float(value)
    except (TypeError, ValueError, OverflowError):
        margin = math.nan
    if not 0 <= margin <= MOST_MARGIN:
        raise UnusableRow(
            f"column {MARGIN} is {json.dumps(plain_value(value))[:40]}, no number from 0"
        )
    return margin

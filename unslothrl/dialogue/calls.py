"""The forms in which models write their calls of tools, each read as it stands in a reply.

    Hermes, Qwen      <tool_call> {"name": ..., "arguments": {...}} </tool_call>
    Llama 3           {"name": ..., "parameters": {...}}
    Mistral           [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]
                      [TOOL_CALLS]NAME[ARGS]{...}
    DeepSeek V3       ...function<｜tool▁sep｜>NAME ```json {...} ```...
    gpt-oss           to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|>
    Qwen 3.5          <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> ...
    GLM 4.5           <tool_call>NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ...

A chat template's form is the one that reads the call of a probe with unusual names. One that has
none gets Hermes' form: tools in the system message, calls in <tool_call>, results as a turn of the
user in <tool_response>.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unslothrl.environments.base import Message
from unslothrl.text import is_too_deep, json_or_text

Tool = Mapping[str, Any]
"""{"type": "function", "function": {"name", "description", "parameters"}}, as in OpenAI's API."""

NAME, KEY, VALUE, CONTENT = "zq_name_7", "zq_key_7", "zq value 7", "zqcontent7"
PROBE_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "-",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "-"}},
            "required": [KEY],
        },
    },
}
TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
CUT_OFF, NOT_JSON = "the call is cut off", "the call is not JSON"
NOT_IN_FORM = "the call is not in the model's form"
NO_NAME, NO_OBJECT = "the call has no name", "the arguments are not a JSON object"


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call as it stands in a reply."""

    text: str
    name: str = ""
    arguments: dict[str, Any] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class CallForm:
    """Texts have no spaces around them. Either the keys or `to_arguments` is used."""

    before: str
    between: str | None  # two calls; None: there is only one, or all are in one JSON list
    after: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    to_arguments: str | None = None  # what stands between a name and its arguments

    def read(self, text: str, tools: Sequence[Tool] = ()) -> tuple[str, list[RawCall]]:
        """-> (what is no call, the calls in their order, broken ones too)."""
        kept, calls = [], []
        at = 0
        while (found := self._next(text, at)) is not None:
            start, at_value = found
            end, more = self._run(text, at_value)
            if not more:  # no call after all
                kept.append(text[at:end])
            else:
                kept.append(text[at:start])
                calls += more
            at = end
        return "".join((*kept, text[at:])), calls

    def _next(self, text: str, at: int) -> tuple[int, int] | None:
        """-> (where the next calls begin, where what follows `before` begins)."""
        if self.before:
            start = text.find(self.before, at)
            return None if start < 0 else (start, start + len(self.before))
        start = skipped(text, 0)
        return (start, start) if at == 0 and text[start : start + 1] in ("{", "[") else None

    def _run(self, text: str, at: int) -> tuple[int, list[RawCall]]:
        """A call and those that follow it directly -> (where they end, the calls)."""
        calls: list[RawCall] = []
        while True:
            end, found = self._one(text, at)
            calls += found
            if not found or found[-1].error in (CUT_OFF, NOT_JSON):
                return end, calls
            end = skipped(text, end)
            if self.between is not None and text.startswith(self.between, end):
                at = end + len(self.between)
                if self.between or text[skipped(text, at) : skipped(text, at) + 1] == "{":
                    continue
            return (end + len(self.after) if text.startswith(self.after, end) else end), calls

    def _one(self, text: str, at: int) -> tuple[int, list[RawCall]]:
        """The JSON value at a place -> (where it ends, its calls)."""
        start, name = at, ""
        if self.to_arguments is not None:
            split = text.find(self.to_arguments, at) if self.to_arguments else text.find("{", at)
            if split < 0:
                return len(text), [RawCall(text[start:], text[at:].strip(), error=CUT_OFF)]
            name, at = text[at:split].strip(), split + len(self.to_arguments)
        at = skipped(text, at)
        try:
            value, end = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            if not self.before and f'"{self.name_key}"' not in text:
                return len(text), []
            end = text.find(self.after, at) if self.after else -1
            if end < 0:
                whole = self.after == "" and text.rstrip().endswith(("}", "]"))
                return len(text), [RawCall(text[start:], error=NOT_JSON if whole else CUT_OFF)]
            return end + len(self.after), [RawCall(text[start:end], error=NOT_JSON)]
        written = text[start:end]
        if self.to_arguments is not None:
            return end, [call_of(written, name, value)]
        values = value if isinstance(value, list) else [value]
        keys = {self.name_key, self.arguments_key}
        if not self.before and not all(isinstance(v, dict) and keys <= v.keys() for v in values):
            return end, []
        return end, [self._call(written, each) for each in values]

    def _call(self, text: str, value: Any) -> RawCall:
        if not isinstance(value, dict):
            return RawCall(text, error=NO_NAME)
        return call_of(text, value.get(self.name_key), value.get(self.arguments_key, {}))


@dataclass(frozen=True, slots=True)
class TaggedForm:
    """Calls in <tool_call> whose arguments have a tag each. `call` finds a name and its arguments,
    `argument` the key and the value of one, which is JSON unless the tool takes a text."""

    call: re.Pattern
    argument: re.Pattern

    def read(self, text: str, tools: Sequence[Tool] = ()) -> tuple[str, list[RawCall]]:
        """As `CallForm.read`."""
        first, *pieces = text.split("<tool_call>")
        kept, calls = [first], []
        for piece in pieces:
            body, closed, rest = piece.partition("</tool_call>")
            kept.append(rest)
            if not closed:
                calls.append(RawCall(body, error=CUT_OFF))
            elif (found := self.call.fullmatch(body.strip())) is None:
                calls.append(RawCall(body, error=NOT_IN_FORM))
            else:
                texts = texts_of(found[1], tools)
                pairs = self.argument.findall(found[2])
                values = {
                    key: value if key in texts else json_or_text(value) for key, value in pairs
                }
                calls.append(call_of(body, found[1], values))
        return "".join(kept), calls


def texts_of(name: str, tools: Sequence[Tool]) -> set[str]:
    """The parameters of a tool that are texts."""
    functions = (tool["function"] for tool in tools)
    schema: dict[str, Any] = next((each for each in functions if each["name"] == name), {})
    parameters = schema.get("parameters", {}).get("properties", {})
    return {key for key, value in parameters.items() if value.get("type") == "string"}


DECODER = json.JSONDecoder()
HERMES = CallForm("<tool_call>", "</tool_call>\n<tool_call>", "</tool_call>")
FORMS = (
    HERMES,
    CallForm("[TOOL_CALLS]", None, ""),
    CallForm("[TOOL_CALLS]", "[TOOL_CALLS]", "", to_arguments="[ARGS]"),
    CallForm(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        to_arguments="```json",
    ),
    CallForm(
        "to=functions.", None, "<|call|>", to_arguments="<|channel|>commentary json<|message|>"
    ),
    CallForm("", None, "", arguments_key="parameters"),
    CallForm("", None, ""),
    TaggedForm(
        re.compile(r"<function=([^<>]+)>(.*?)(?:</function>)?", re.DOTALL),
        re.compile(r"<parameter=([^<>]+)>\n?(.*?)\n?</parameter>", re.DOTALL),
    ),
    TaggedForm(
        re.compile(r"([^<>\s]+)(.*)", re.DOTALL),
        re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
    ),
)


def call_of(text: str, name: Any, arguments: Any) -> RawCall:
    """A call whose name and arguments may be anything."""
    if not isinstance(name, str) or not name.strip():
        return RawCall(text, error=NO_NAME)
    if isinstance(arguments, str):
        arguments = json_or_text(arguments)
    if not isinstance(arguments, dict) or not is_sound(name, arguments):
        return RawCall(text, name if is_sound(name, {}) else "", error=NO_OBJECT)
    return RawCall(text, name, arguments)


def is_sound(name: str, arguments: Any) -> bool:
    """Whether they can be written again: not too deep, of characters that UTF-8 has, and without
    what Python reads although JSON lacks it, such as NaN, Infinity and 1e999."""
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + written).encode()
    except (ValueError, RecursionError):
        return False
    return not is_too_deep(written, arguments)


def skipped(text: str, at: int) -> int:
    """The next place without white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


Write = Callable[[list[Message], list[Tool], bool], str]
"""(messages, tools, whether the policy's turn begins behind them) -> the text, "" if refused."""


def form_of(write: Write) -> CallForm | TaggedForm | None:
    """The form in which a chat template writes calls; None where it is none of `FORMS`."""
    for content in ("", CONTENT):
        text = probed(write, content)
        for form in FORMS:
            _, calls = form.read(text)
            if [(call.name, call.arguments) for call in calls] == [(NAME, {KEY: VALUE})]:
                return form
    return None


def probed(write: Write, content: str) -> str:
    """What a template writes for a call, after the turn's content; "" if it refuses."""
    user: Message = {"role": "user", "content": "-"}
    call = {"type": "function", "function": {"name": NAME, "arguments": {KEY: VALUE}}}
    calling: Message = {"role": "assistant", "content": content}
    calling["tool_calls"] = [{"id": "call00000", **call}]
    opening = write([user], [PROBE_TOOL], True)
    text = write([user, calling], [PROBE_TOOL], False)
    if content and content in text:
        return text.rpartition(content)[2]
    pairs = enumerate(zip(text, opening, strict=False))
    return text[next((i for i, (one, other) in pairs if one != other), len(opening)) :]


def with_tools(messages: list[Message], tools: Sequence[Tool], role: str) -> list[Message]:
    """The tools after the system message or, if that is the `role`, before the user's first one."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = TOOLS.format(tools=lines)
    if not messages or messages[0]["role"] != role:
        return [{"role": role, "content": text}, *messages]
    parts = (messages[0]["content"], text) if role == "system" else (text, messages[0]["content"])
    return [{**messages[0], "content": "\n\n".join(parts)}, *messages[1:]]


def as_texts(messages: Sequence[Message]) -> list[Message]:
    """Calls as text of the assistant, results of tools as turns of the user."""
    written: list[Message] = []
    was_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if was_result:
                written[-1]["content"] += "\n" + text
            else:
                written.append({"role": "user", "content": text})
        elif has_calls(message):
            calls = [
                json.dumps(function(call), ensure_ascii=False) for call in message["tool_calls"]
            ]
            texts = (f"<tool_call>\n{call}\n</tool_call>" for call in calls)
            content = "\n".join(filter(None, (message.get("content"), *texts)))
            written.append({"role": "assistant", "content": content})
        else:
            written.append(message)
        was_result = is_result
    return written


def has_tools(messages: Sequence[Message]) -> bool:
    """Whether there are calls or results in them."""
    return any(message["role"] == "tool" or has_calls(message) for message in messages)


def has_calls(message: Message) -> bool:
    """The policy's own turn alone: no one else can call."""
    return message["role"] == "assistant" and bool(message.get("tool_calls"))


def function(call: dict[str, Any]) -> dict[str, Any]:
    """Of a call in OpenAI's form, which may lack its outer object."""
    inner = call.get("function", call)
    return {"name": inner["name"], "arguments": inner["arguments"]}

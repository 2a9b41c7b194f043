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

from unslothrl.environments.base import Message, ToolCall
from unslothrl.text import is_too_deep, json_or_text

Tool = Mapping[str, Any]
"""{"type": "function", "function": {"name", "description", "parameters"}}, as in OpenAI's API."""

NAME, KEY, VALUE = "zq_name_7", "zq_key_7", "zq value 7"
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
class CallForm:
    """Calls as JSON. `begin` ends where a call's JSON begins, or that of a list of calls; where it
    has a group, that is the name, and the JSON the arguments. `end` may follow the JSON."""

    begin: re.Pattern
    end: re.Pattern = re.compile(r"\Z")
    arguments_key: str = "arguments"
    is_bare: bool = False  # no mark says that JSON is a call: its keys do

    def read(self, text: str, tools: Sequence[Tool] = ()) -> tuple[str, list[ToolCall]]:
        """-> (what is no call, the calls in their order, broken ones too)."""
        kept: list[str] = []
        calls: list[ToolCall] = []
        at = 0
        while (found := self.begin.search(text, at)) is not None:
            end, more = self._one(text, found)
            kept.append(text[at : found.start() if more else end])
            calls += more
            at = end
        return "".join((*kept, text[at:])), calls

    def _one(self, text: str, found: re.Match) -> tuple[int, list[ToolCall]]:
        """-> (where what begins there ends, its calls)."""
        has_name = bool(self.begin.groups)
        start = found.start(1) if has_name else found.end()
        try:
            value, at = DECODER.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            if self.is_bare and '"name"' not in text:
                return len(text), []
            closing = self.end.search(text, found.end())
            if closing is None:
                return len(text), [broken(text[start:], CUT_OFF)]
            at, end = closing.span()
            is_whole = at < end or text.rstrip().endswith(("}", "]"))
            return end, [broken(text[start:at], NOT_JSON if is_whole else CUT_OFF)]
        written = text[start:at]
        at = len(text) - len(text[at:].lstrip())
        closing = self.end.match(text, at)
        end = closing.end() if closing else at
        if has_name:
            return end, [call_of(written, found[1].strip(), value)]
        values = value if isinstance(value, list) else [value]
        calls = [value if isinstance(value, dict) else {} for value in values]  # {}: has no name
        key = self.arguments_key
        if self.is_bare and not all({"name", key} <= call.keys() for call in calls):
            return end, []
        return end, [call_of(written, call.get("name"), call.get(key, {})) for call in calls]


@dataclass(frozen=True, slots=True)
class TaggedForm:
    """Calls in <tool_call> whose arguments have a tag each. `call` finds a name and its arguments,
    `argument` the key and the value of one, which is JSON unless the tool takes a text."""

    call: re.Pattern
    argument: re.Pattern

    def read(self, text: str, tools: Sequence[Tool] = ()) -> tuple[str, list[ToolCall]]:
        """As `CallForm.read`."""
        first, *pieces = text.split("<tool_call>")
        kept, calls = [first], []
        for piece in pieces:
            body, closed, rest = piece.partition("</tool_call>")
            kept.append(rest)
            if not closed:
                calls.append(broken(body, CUT_OFF))
            elif (found := self.call.fullmatch(body.strip())) is None:
                calls.append(broken(body, NOT_IN_FORM))
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
HERMES = CallForm(re.compile(r"<tool_call>\s*"), re.compile(r"</tool_call>(?:\s*(?=<tool_call>))?"))
_BARE = re.compile(r"\A\s*(?=[{\[])")
FORMS: dict[str, CallForm | TaggedForm] = {
    "Hermes": HERMES,
    "Mistral": CallForm(re.compile(r"\[TOOL_CALLS\]\s*")),
    "Mistral, newer": CallForm(re.compile(r"\[TOOL_CALLS\](.*?)(?:\[ARGS\]|\Z)\s*", re.DOTALL)),
    "DeepSeek V3": CallForm(
        re.compile(
            r"(?:<｜tool▁calls▁begin｜>)?<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
            r"(.*?)(?:```json|\Z)\s*",
            re.DOTALL,
        ),
        re.compile(
            r"```<｜tool▁call▁end｜>"
            r"(?:<｜tool▁calls▁end｜>|\s*(?=<｜tool▁call▁begin｜>))?"
        ),
    ),
    "gpt-oss": CallForm(
        re.compile(
            r"to=functions\.(.*?)(?:<\|channel\|>commentary json<\|message\|>|\Z)\s*", re.DOTALL
        ),
        re.compile(r"<\|call\|>"),
    ),
    "Llama 3": CallForm(_BARE, arguments_key="parameters", is_bare=True),
    "plain JSON": CallForm(_BARE, is_bare=True),
    "Qwen 3.5": TaggedForm(
        re.compile(r"<function=([^<>]+)>(.*?)(?:</function>)?", re.DOTALL),
        re.compile(r"<parameter=([^<>]+)>\n?(.*?)\n?</parameter>", re.DOTALL),
    ),
    "GLM 4.5": TaggedForm(
        re.compile(r"([^<>\s]+)(.*)", re.DOTALL),
        re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
    ),
}


def call_of(text: str, name: Any, arguments: Any) -> ToolCall:
    """A call whose name and arguments may be anything."""
    if not isinstance(name, str) or not name.strip():
        return broken(text, NO_NAME)
    if isinstance(arguments, str):
        arguments = json_or_text(arguments)
    if not isinstance(arguments, dict) or not is_sound(name, arguments):
        return broken(text, NO_OBJECT, name if is_sound(name, {}) else "")
    return ToolCall(name, arguments, text=text)


def broken(text: str, error: str, name: str = "") -> ToolCall:
    return ToolCall(name, None, error, text=text)


def is_sound(name: str, arguments: Any) -> bool:
    """Whether they can be written again: not too deep, of characters that UTF-8 has, and without
    what Python reads although JSON lacks it, such as NaN, Infinity and 1e999."""
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + written).encode()
    except (ValueError, RecursionError):
        return False
    return not is_too_deep(written, arguments)


Write = Callable[[list[Message], list[Tool], bool], str]
"""(messages, tools, whether the policy's turn begins behind them) -> the text, "" if refused."""


def form_of(write: Write) -> CallForm | TaggedForm | None:
    """The form in which a chat template writes calls; None where it is none of `FORMS`."""
    user: Message = {"role": "user", "content": "-"}
    call = {"type": "function", "function": {"name": NAME, "arguments": {KEY: VALUE}}}
    calling: Message = {"role": "assistant", "content": ""}
    calling["tool_calls"] = [{"id": "call00000", **call}]
    opening = write([user], [PROBE_TOOL], True)
    text = write([user, calling], [PROBE_TOOL], False)
    pairs = enumerate(zip(text, opening, strict=False))
    begin = next((i for i, (one, other) in pairs if one != other), len(opening))
    for form in FORMS.values():
        _, calls = form.read(text[begin:])
        if [(call.name, call.arguments) for call in calls] == [(NAME, {KEY: VALUE})]:
            return form
    return None


def as_texts(messages: Sequence[Message]) -> list[Message]:
    """Calls as text of the assistant, results of tools as turns of the user. A call in OpenAI's
    form may lack its outer object."""
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
            inner = [call.get("function", call) for call in message["tool_calls"]]
            made = ({"name": each["name"], "arguments": each["arguments"]} for each in inner)
            calls = (json.dumps(each, ensure_ascii=False) for each in made)
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

"""The form in which a model writes its calls of tools: learned from its chat template, then read.

A probe with unusual names is rendered. The JSON value that holds it, the keys of its name and of
its arguments, and the text before, between and after the calls make up the form:

    Hermes, Qwen      <tool_call> {"name": ..., "arguments": {...}} </tool_call>
    Llama 3           {"name": ..., "parameters": {...}}
    Mistral           [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]
    DeepSeek V3       ...function<|tool_sep|>NAME ```json {...} ```...

Forms that are not made of JSON have no `CallForm`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from unslothrl.dialogue.base import Message, Tool
from unslothrl.text import is_too_deep

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
CUT_OFF, NOT_JSON = "the call is cut off", "the call is not JSON"
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
    between: str | None  # two calls; None: the template writes only one, or all in one JSON list
    after: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    path: tuple[str, ...] = ()  # keys from a call's object down to the one with these keys
    to_arguments: str | None = None  # what stands between a name and its arguments

    def read(self, text: str) -> tuple[str, list[RawCall]]:
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
        if not self.before and not all(self._is_call(each) for each in values):
            return end, []
        return end, [self._call(written, each) for each in values]

    def _is_call(self, value: Any) -> bool:
        inner = self._inner(value)
        return isinstance(inner, dict) and self.name_key in inner and self.arguments_key in inner

    def _inner(self, value: Any) -> Any:
        for key in self.path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def _call(self, text: str, value: Any) -> RawCall:
        inner = self._inner(value)
        if not isinstance(inner, dict):
            return RawCall(text, error=NO_NAME)
        return call_of(text, inner.get(self.name_key), inner.get(self.arguments_key, {}))


DECODER = json.JSONDecoder()
HERMES = CallForm("<tool_call>", "</tool_call>\n<tool_call>", "</tool_call>")


def call_of(text: str, name: Any, arguments: Any) -> RawCall:
    """A call whose name and arguments may be anything."""
    if not isinstance(name, str) or not name.strip():
        return RawCall(text, error=NO_NAME)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
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


class Write(Protocol):
    """Renders messages as text, or raises."""

    def __call__(
        self, messages: list[Message], tools: list[Tool], add_generation_prompt: bool
    ) -> str: ...


def learned(write: Write) -> CallForm | None:
    """The form in which a chat template writes calls, or None if it has none that can be read."""
    alone, after_text = form_of(write, ""), form_of(write, CONTENT)
    if alone is None or after_text is None or not after_text.before.endswith(alone.before):
        return after_text
    return alone  # without what only ends the text before a call


def form_of(write: Write, content: str) -> CallForm | None:
    """The form of calls in a turn that has this content."""
    one = probed(write, 1, content)
    located = value_of(one)
    if located is None:
        return None
    value, start, stop = located
    before, after = one[:start], one[stop:]
    found = keys_of(value)
    if found is None and NAME not in before:
        return None
    two = probed(write, 2, content)
    between = None
    if NAME in two and not isinstance(value, list):
        first = two.find(one[start:stop]) + (stop - start)
        last = two.rfind(one[start:stop])
        if first <= last and two[last + stop - start :] == after:
            between = two[first:last]
    if found is None:
        before, _, to_arguments = before.rpartition(NAME)
        between = None if between is None else between.rpartition(NAME)[0]
        return CallForm(
            before.strip(), stripped(between), after.strip(), to_arguments=to_arguments.strip()
        )
    name_key, arguments_key, path = found
    return CallForm(before.strip(), stripped(between), after.strip(), name_key, arguments_key, path)


def stripped(text: str | None) -> str | None:
    return None if text is None else text.strip()


def probed(write: Write, count: int, content: str) -> str:
    """What a template writes for so many calls, without the end of the turn; "" if it refuses."""
    user: Message = {"role": "user", "content": "-"}
    call = {"type": "function", "function": {"name": NAME, "arguments": {KEY: VALUE}}}
    calls = [{"id": f"call{i:05}", **call} for i in range(count)]
    plain: Message = {"role": "assistant", "content": CONTENT}
    calling: Message = {"role": "assistant", "content": content, "tool_calls": calls}
    try:
        opening = write([user], [PROBE_TOOL], True)
        reply = write([user, plain], [PROBE_TOOL], False)
        text = write([user, calling], [PROBE_TOOL], False)
    except Exception:  # whatever a template raises: it is a program
        return ""
    end = reply.rpartition(CONTENT)[2]
    if content and content in text:
        text = text.rpartition(content)[2]
    else:
        text = text[common_start(text, opening) :]
    return text.removesuffix(end)


def common_start(one: str, other: str) -> int:
    """How many characters two texts have in common."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def value_of(text: str) -> tuple[Any, int, int] | None:
    """The outermost JSON value that holds the probe -> (value, start, end)."""
    for start, letter in enumerate(text):
        if letter in "[{":
            try:
                value, end = DECODER.raw_decode(text, start)
            except ValueError:
                continue
            if KEY in text[start:end]:
                return value, start, end
    return None


def keys_of(value: Any) -> tuple[str, str, tuple[str, ...]] | None:
    """-> (the name's key, the arguments' key, the keys down to their object); None: not in it."""
    for path, inner in objects(value, ()):
        names = [key for key, each in inner.items() if each == NAME]
        arguments = [
            key for key, each in inner.items() if each == {KEY: VALUE} or each == PROBE_TEXT
        ]
        if names and arguments:
            return names[0], arguments[0], path
    return None


PROBE_TEXT = json.dumps({KEY: VALUE})


def objects(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """An object, or that of a list, and the objects in it."""
    if isinstance(value, list):
        for each in value[:1]:
            yield from objects(each, path)
    elif isinstance(value, dict):
        yield path, value
        for key, each in value.items():
            if isinstance(each, dict):
                yield from objects(each, (*path, key))

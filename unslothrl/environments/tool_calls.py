"""Functions that the policy may call: their schemas, and what becomes of a call.

A schema is made of the signature and the docstring, in Google's style, as transformers reads them.
"""

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unslothrl.environments.base import Action, ToolCall, ToolError

MOST_ERROR = 500  # characters that the policy reads of an error
MOST_TOOL_ERROR = 10_000  # and of one that a tool has written
TOOL = (
    "give it types and a docstring that describes each argument, or, if it is no tool, a name that "
    "begins with _"
)
TYPES: dict[str, type | tuple[type, ...]] = {  # others, such as images, are not checked
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": (dict, list),  # also what a bare `list` and unknown classes are called
    "null": type(None),
}


written = functools.partial(json.dumps, ensure_ascii=False, default=str)


class InvalidEnvironment(Exception):
    """What an environment must not do: a line for its author."""


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """The event loop of an episode's process, made at its first use: no two processes may share
    one across a fork.

    It runs while something is awaited, and not while synchronous code is called: that may wrap an
    asynchronous client by `asyncio.run`, which refuses to begin inside a running loop. Tasks that
    the user's code has left behind go on while the next call is awaited.
    """
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    return made


def awaited(value: Any) -> Any:
    """The value, or what comes of it where it is awaitable."""
    return loop().run_until_complete(value) if inspect.isawaitable(value) else value


class Tools:
    """Of an episode. At most `most_calls` are made, 0: any number."""

    def __init__(self, functions: Sequence[Callable], most_calls: int = 0):
        self.functions: dict[str, Callable] = {}
        for function in functions:
            if self.functions.setdefault(function.__name__, function) != function:
                raise InvalidEnvironment(f"two tools are named {function.__name__}: rename one")
        self.most_calls, self.made = most_calls, 0
        self.schemas = [schema(function) for function in self.functions.values()]
        self.kinds = {  # by name, what each argument must be
            each["function"]["name"]: each["function"]["parameters"]["properties"]
            for each in self.schemas
        }

    @staticmethod
    def of_file(module: Any) -> list[Callable]:
        """The public functions that a file defines."""
        return [
            function
            for name, function in vars(module).items()
            if inspect.isfunction(function)
            and function.__module__ == module.__name__
            and not name.startswith("_")
        ]

    def answer(self, action: Action) -> dict[str, Any]:
        """What a turn's calls have given, a message each; failures are told in them."""
        messages, errors = [], 0
        for call in action.calls:
            said, failed = self.call(call)
            errors += failed
            message = {"role": "tool", "name": call.name, "content": said}
            messages.append(message | ({"tool_call_id": call.id} if call.id else {}))
        step = {"observation": messages, "reward": 0.0, "done": False, "score": None}
        return {**step, "calls": len(messages), "errors": errors}

    def call(self, call: ToolCall) -> tuple[str, bool]:
        """-> (what the policy reads, whether it failed)."""
        function = self.functions.get(call.name)
        if call.error:
            return f"error: {call.error}", True
        if function is None:
            known = ", ".join(self.functions) or "none"
            return f"error: there is no tool {call.name!r:.80}; there are: {known}", True
        if self.most_calls and self.made >= self.most_calls:
            return f"error: no more calls: {self.most_calls} were made", True
        self.made += 1
        arguments = call.arguments or {}
        if why := misfit(function, self.kinds[call.name], arguments):
            return f"error: {call.name}: {why}"[:MOST_ERROR], True
        try:
            value = awaited(function(**arguments))
            return value if isinstance(value, str) else written(value), False
        except Exception as error:
            if isinstance(error, ToolError):
                return str(error)[:MOST_TOOL_ERROR], True
            said = " ".join(f"{type(error).__name__}: {error}".split())
            return f"error: {said.removesuffix(':')}"[:MOST_ERROR], True


def schema(function: Callable) -> dict[str, Any]:
    """The JSON schema of a function or a method. Raises InvalidEnvironment where it has none."""
    from transformers.utils import chat_template_utils

    try:
        # It would import torch, 3 s in each process, for tools that take a tensor.
        chat_template_utils.is_torch_available = lambda: False
        return dict(chat_template_utils.get_json_schema(function))
    except Exception as error:  # of many kinds, some with several arguments
        why = " ".join(" ".join(map(str, error.args)).split()).rstrip("!. ")
        raise InvalidEnvironment(
            f"the tool {function.__name__} has no schema ({why:.200}): {TOOL}"
        ) from None


def misfit(function: Callable, kinds: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What is wrong with the arguments of a call, "" where nothing is."""
    signature = inspect.signature(function)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        return str(error)
    for name, value in arguments.items():
        parameter = signature.parameters.get(name)
        is_default = value is None and parameter is not None and parameter.default is None
        if not is_default and (why := unlike(name, value, kinds.get(name, {}))):
            return why
    return ""


def unlike(name: str, value: Any, kind: Mapping[str, Any]) -> str:
    """How a value differs from a JSON schema as transformers writes it, "" where it does not. What
    is in a list or an object is the function's to check."""
    named = (each.get("type", []) for each in kind.get("anyOf", [kind]))  # a name, or several
    types = [each for names in named for each in ([names] if isinstance(names, str) else names)]
    if value is None and kind.get("nullable"):
        return ""
    if types and not any(is_of(value, each) for each in types):
        return f"{name} must be of type {' or '.join(types)}, got {written(value):.80}"
    choices = kind.get("enum", [])
    if choices and value not in choices:
        return f"{name} must be one of {written(choices):.80}, got {written(value):.80}"
    return ""


def is_of(value: Any, name: str) -> bool:
    if isinstance(value, bool) and name in ("integer", "number"):
        return False
    return name not in TYPES or isinstance(value, TYPES[name])

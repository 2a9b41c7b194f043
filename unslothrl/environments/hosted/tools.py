"""Functions that the policy may call: their schemas, and what becomes of a call.

A schema is made of the signature and the docstring, in Google's style, as transformers reads them.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

from unslothrl.environments.base import Action, ToolCall, ToolError
from unslothrl.environments.hosted.arguments import misfit
from unslothrl.environments.hosted.loop import awaited

MOST_ERROR = 500  # characters that the policy reads of an error
MOST_TOOL_ERROR = 10_000  # and of one that a tool has written
SCHEMAS: dict[Any, dict[str, Any]] = {}  # function -> its own, of all that were ever asked for
TOOL = (
    "give it types and a docstring that describes each argument, or, if it is no tool, a name that "
    "begins with _"
)
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Wrong(Exception):
    """What an environment must not do: a line for its author."""


class Tools:
    """Of an episode. At most `most_calls` are made, 0: any number."""

    def __init__(self, functions: Sequence[Callable], most_calls: int = 0):
        self.functions: dict[str, Callable] = {}
        for function in functions:
            if self.functions.setdefault(function.__name__, function) != function:
                raise Wrong(f"two tools are named {function.__name__}: rename one")
        self.most_calls, self.made = most_calls, 0
        self.schemas = [schema(function) for function in self.functions.values()]

    def __bool__(self) -> bool:
        return bool(self.functions)

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
        """What the calls of a turn have given, a message each; one that fails says so to the
        policy."""
        messages, errors = [], 0
        for call in action.calls:
            said, failed = self.call(call)
            errors += failed
            message = {"role": "tool", "name": call.name, "content": said}
            messages.append(message | ({"tool_call_id": call.id} if call.id else {}))
        return {
            "observation": messages,
            "reward": 0.0,
            "done": False,
            "score": None,
            "calls": len(messages),
            "errors": errors,
        }

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
        kinds = schema(function)["function"]["parameters"]["properties"]
        if why := misfit(inspect.signature(function), kinds, call.arguments or {}):
            return f"error: {call.name}: {why}"[:MOST_ERROR], True
        try:
            return text(awaited(function(**(call.arguments or {})))), False
        except ToolError as error:
            return str(error)[:MOST_TOOL_ERROR], True
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            return f"error: {said.removesuffix(':')}"[:MOST_ERROR], True


def schema(function: Callable) -> dict[str, Any]:
    """The JSON schema of a function or a method. Raises ImportError without transformers, and Wrong
    for one that no call could be made of."""
    plain = getattr(function, "__func__", function)
    if plain not in SCHEMAS:
        try:
            from transformers.utils import chat_template_utils
        except ImportError as error:
            raise ImportError(f"tools need the package transformers ({error})") from None
        check_parameters(function)
        try:
            # It would import torch, 3 s in each process, for tools that take a tensor.
            chat_template_utils.is_torch_available = lambda: False
            SCHEMAS[plain] = dict(chat_template_utils.get_json_schema(function))
        except Exception as error:  # of many kinds, some with several arguments
            why = " ".join(" ".join(map(str, error.args)).split()).rstrip("!. ")
            raise Wrong(
                f"the tool {function.__name__} has no schema ({why:.200}): {TOOL}"
            ) from None
    return SCHEMAS[plain]


def check_parameters(function: Callable) -> None:
    """Raises Wrong for a parameter that a call, whose arguments have names, cannot fill."""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in BY_NAME:
            stars: dict[Any, str] = {
                inspect.Parameter.VAR_POSITIONAL: "*",
                inspect.Parameter.VAR_KEYWORD: "**",
            }
            shown = stars.get(parameter.kind, "") + name
            raise Wrong(
                f"the tool {function.__name__} has the parameter {shown}, which no call can fill: "
                "arguments are given by name, make it an ordinary parameter"
            )


def text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)

"""Whether the arguments of a call are those that a tool's schema asks for.

Of JSON Schema this knows what transformers writes for a function: "type", "enum", "nullable",
"anyOf", "items", "prefixItems" and "additionalProperties".
"""

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

TYPES: dict[str, tuple[str, type | tuple[type, ...]]] = {  # others, such as images, are not checked
    "string": ("a string", str),
    "integer": ("an integer", int),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", bool),
    "array": ("an array", list),
    "object": ("an object", (dict, list)),  # also what a bare `list` and unknown classes are called
    "null": ("null", type(None)),
}


def misfit(signature: inspect.Signature, kinds: Mapping[str, Any], values: Mapping) -> str:
    """What is wrong with the arguments of a call, "" where nothing is. `kinds` has the schema of
    each parameter."""
    try:
        signature.bind(**values)
    except TypeError as error:
        return str(error)
    for name, value in values.items():
        parameter = signature.parameters.get(name)
        is_default = value is None and parameter is not None and parameter.default is None
        if not is_default and (why := unlike(name, value, kinds.get(name, {}))):
            return why
    return ""


def unlike(name: str, value: Any, kind: Mapping[str, Any]) -> str:
    """How a value differs from a schema, "" where it does not."""
    if value is None and kind.get("nullable"):
        return ""
    if "anyOf" in kind:
        found = [unlike(name, value, each) for each in kind["anyOf"]]
        return found[0] if all(found) else ""
    types = kind.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(is_of(value, each) for each in types):
        wanted = dict.fromkeys(TYPES[each][0] for each in types)
        return f"{name} must be {' or '.join(wanted)}, got {shown(value)}"
    choices = kind.get("enum", [])
    if choices and not isinstance(value, list) and not any(same(value, each) for each in choices):
        return f"{name} must be {' or '.join(map(shown, choices))}, got {shown(value)}"
    said = (unlike(f"{name}[{shown(key)}]", each, inner) for key, each, inner in parts(value, kind))
    return next(filter(None, said), "")


def parts(value: Any, kind: Mapping[str, Any]) -> Iterator[tuple[int | str, Any, Mapping]]:
    """(index or key, value, its schema) of what a value holds."""
    if isinstance(value, list):
        inner = kind.get("prefixItems") or [kind.get("items", {})] * len(value)
        for index, (each, its) in enumerate(zip(value, inner, strict=False)):
            yield index, each, its
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key, each, kind.get("additionalProperties", {})


def is_of(value: Any, name: str) -> bool:
    if name not in TYPES:
        return True
    is_number = name in ("integer", "number")
    return isinstance(value, TYPES[name][1]) and not (is_number and isinstance(value, bool))


def same(value: Any, other: Any) -> bool:
    """Whether two values are the same JSON: true is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def shown(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False, default=str):.80}"

"""From a file of the user's to what makes the environments of its episodes.

Which form a class or a function has can be seen by its names and parameters: see `shapes`.
"""

import functools
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unslothrl.environments.hosted.loop import awaited
from unslothrl.environments.hosted.shapes import (
    OfGymnasium,
    OfRl2,
    OfTrl,
    OnlyTools,
    Ours,
    Shape,
)
from unslothrl.environments.hosted.tools import Tools, Wrong

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RL2_PARAMETERS = ("state", "action", "extra_info")
Make = Callable[[], Shape]
"""Makes the environment of an episode."""


def load(setup: Mapping[str, Any]) -> Make:
    """What makes the episodes' environments. `setup` has "file" and "name" of the class or
    function, "" for none; "options" for it; "tools": files whose functions are tools, or tools of
    this package; and "max_calls" of them in an episode."""
    tools = [function for text in setup["tools"] for function in tools_of(text)]
    options, most = dict(setup["options"]), int(setup["max_calls"])
    Tools(tools)  # raises now what is wrong with one
    if not setup["file"]:
        return lambda: OnlyTools(Tools(tools, most))
    found: Any = getattr(module(setup["file"]), setup["name"], None)
    if not callable(found):
        if type(found).__module__ == "builtins":  # None, a number
            raise Wrong(f"the file defines no {setup['name']}")
        raise Wrong(f"{setup['name']} is an object: name its class, {type(found).__name__}")
    if is_rl2(found):
        check_alone(found, tools, options)
        return lambda: OfRl2(found)
    check_options(found, options)
    if inspect.isclass(found) and kind_of(found) is OfTrl:  # raises now if it is none
        Tools([bound(found, method) for method in OfTrl.methods(found)])
    if isinstance(inspect.getattr_static(found, "prepare", None), classmethod):
        getattr(found, "prepare")(**options)  # noqa: B009
    return lambda: made(found(**options), tools, most)


def tools_of(text: str) -> list[Callable]:
    """Those of a file or, by NAME or NAME:ARGUMENT, of this package's `tools`."""
    name, separator, argument = text.partition(":")
    file = os.path.join(OURS, "tools", f"{name}.py")
    if not name.isidentifier() or not os.path.isfile(file):
        found = Tools.of_file(module(text))
        if not found:
            raise Wrong(f"{os.path.basename(text)} defines no function that is a tool")
        return found
    return module(file).tools(argument) if separator else Tools.of_file(module(file))


def made(environment: Any, tools: Sequence[Callable], most: int) -> Shape:
    environment = awaited(environment)
    return kind_of(type(environment))(environment, tools, most)


@functools.cache
def module(file: str) -> Any:
    """A file's module, once."""
    name = f"unslothrl_environment_{os.path.splitext(os.path.basename(file))[0]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise Wrong(f"Python cannot read {file}")
    folder = os.path.dirname(os.path.abspath(file))
    if folder not in sys.path and not folder.startswith(OURS):
        sys.path.append(folder)  # for what lies beside it
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def is_rl2(found: Callable) -> bool:
    if inspect.isclass(found):
        return False
    return tuple(inspect.signature(found).parameters)[:3] == RL2_PARAMETERS


def check_alone(found: Callable, tools: Sequence[Callable], options: Mapping[str, Any]) -> None:
    """A function in RL2's form takes nothing but its three arguments."""
    given = [("tools", [each.__name__ for each in tools]), ("environment_options", list(options))]
    for option, names in given:
        if names:
            said = f"{option} {', '.join(names)}: {found.__name__} is a function in RL2's form"
            raise Wrong(f"{said}, which takes none: leave them out")


def check_options(found: Callable, options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise Wrong(f"environment_options do not fit it: {error}") from None
    except ValueError:  # it has no signature, being no Python
        return


def kind_of(found: type) -> type[Ours] | type[OfGymnasium] | type[OfTrl]:
    """Raises Wrong for a class that is none of them."""
    reset, step = getattr(found, "reset", None), getattr(found, "step", None)
    if not callable(reset):
        raise Wrong(f"{found.__name__} lacks reset: see docs/environments.md")
    parameters = list(inspect.signature(reset).parameters.values())[1:]
    names = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    takes_row = len(names) < len(parameters) and "task" not in names and "seed" not in names
    if hasattr(found, "get_reward") or takes_row or not callable(step):
        return OfTrl
    if not names or names[0] in ("seed", "options"):
        return OfGymnasium
    return Ours


def bound(found: type, method: Callable) -> Callable:
    """A method without the parameter that an object of the class fills; a static one has none."""
    is_static = isinstance(inspect.getattr_static(found, method.__name__, None), staticmethod)
    return method if is_static else types.MethodType(method, found)

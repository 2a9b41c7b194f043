"""The forms in which environments are written, each made into one: see `Shape`.

    ours          reset(task, seed) -> messages, async step(action) -> Step
    Gymnasium's   reset(seed=...) -> observation, info; step(action) -> five values
    TRL's         reset(**row) -> None or a text, public methods are tools, get_reward()
    RL2's         def step(state, action, extra_info) -> {next_state, reward, ...}
    tools         functions that the policy may call

Which of them a class or a function is can be seen by its names and parameters. Any method may be
`async`.
"""

import functools
import importlib.util
import inspect
import math
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from unslothrl.environments.base import Action, Message, Step, Task
from unslothrl.environments.hosted.loop import awaited
from unslothrl.environments.hosted.tools import Tools, Wrong

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RL2_PARAMETERS = ("state", "action", "extra_info")
Answer = dict[str, Any]


class Shape(Protocol):
    """An episode's environment, as a session calls it."""

    def reset(self, task: Task, seed: int) -> Answer:
        """-> {"prompt": None for the task's own, a text (a user's turn) or messages; or "more": a
        text behind the task's prompt; "tools": their JSON schemas, "max_turns": or None}."""

    def step(self, action: Action) -> Answer:
        """-> {"observation": a text (a user's turn) or messages, "reward", "done", "score", "calls"
        and "errors": of tools}; "raw" in the observation's place: {"text", "continues"}."""

    def finish(self) -> float:
        """-> the reward of an episode that has ended before the environment ended it."""

    def close(self) -> None: ...


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
    found = getattr(module(setup["file"]), setup["name"], None)
    if not callable(found):
        raise Wrong(f"the file defines no {setup['name']}")
    if is_rl2(found):
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
        return Tools.of_file(module(text))
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


def check_options(found: Callable, options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise Wrong(f"environment_options do not fit it: {error}") from None
    except ValueError:  # it has no signature, being no Python
        return


def kind_of(found: type) -> type["Ours | OfGymnasium | OfTrl"]:
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


class Based:
    """What they share. `environment` is the user's object."""

    def __init__(self, environment: Any, tools: Sequence[Callable], most_calls: int):
        self.environment = environment
        own = list(getattr(environment, "tools", ()))
        self.tools = Tools([*tools, *own], most_calls)

    @property
    def max_turns(self) -> int | None:
        most = getattr(self.environment, "max_turns", None)
        return most if type(most) is int and most > 0 else None

    def began(self, **prompt: Any) -> Answer:
        return {"tools": self.tools.schemas, "max_turns": self.max_turns, **prompt}

    def finish(self) -> float:
        return 0.0

    def close(self) -> None:
        close = getattr(self.environment, "close", None)
        if callable(close):
            awaited(close())


class Ours(Based):
    """A class of this package's form. Where it has tools, it is asked only about a turn without
    calls."""

    def reset(self, task: Task, seed: int) -> Answer:
        reset = self.environment.reset
        takes_seed = len(inspect.signature(reset).parameters) > 1
        prompt = awaited(reset(task, seed) if takes_seed else reset(task))
        if prompt is not None:
            prompt = conversation(prompt)
        return self.began(prompt=prompt)

    def step(self, action: Action) -> Answer:
        if self.tools and action.calls:
            return self.tools.answer(action)
        return answer(awaited(self.environment.step(action)))

    def finish(self) -> float:
        finish = getattr(self.environment, "finish", None)
        return number(awaited(finish()), "finish") if callable(finish) else 0.0


class OfGymnasium(Based):
    """`reset(seed=...)` gives the first observation, or that and a dict; `step` five values: the
    observation, the reward, whether the episode has ended, whether it is cut off, and a dict."""

    def reset(self, task: Task, seed: int) -> Answer:
        reset = self.environment.reset
        takes_seed = "seed" in inspect.signature(reset).parameters
        first = awaited(reset(seed=seed) if takes_seed else reset())
        if isinstance(first, tuple) and len(first) == 2:
            first = first[0]
        return self.began(prompt=conversation(first))

    def step(self, action: Action) -> Answer:
        if self.tools and action.calls:
            return self.tools.answer(action)
        return answer(awaited(self.environment.step(str(action))))


class OfTrl(Based):
    """Its public methods are tools; a turn without a call ends the episode."""

    NOT_TOOLS = ("reset", "get_reward", "close")

    def __init__(self, environment: Any, tools: Sequence[Callable], most_calls: int):
        super().__init__(environment, tools, most_calls)
        own = [getattr(environment, method.__name__) for method in self.methods(type(environment))]
        self.tools = Tools([*self.tools.functions.values(), *own], most_calls)

    @classmethod
    def methods(cls, found: type) -> list[Callable]:
        """Those of a class that are tools, as functions."""
        return [
            method
            for name, method in inspect.getmembers(found, inspect.isfunction)
            if name not in cls.NOT_TOOLS and not name.startswith("_")
        ]

    def reset(self, task: Task, seed: int) -> Answer:
        row = {"prompt": task.messages, "answer": task.answer, **task.extra}
        reset = self.environment.reset
        more = awaited(reset(**accepted(reset, row)))
        if more is not None and not isinstance(more, str):
            raise Wrong(f"reset returned {kind(more)}: return None or a text")
        return self.began(more=more or "")

    def step(self, action: Action) -> Answer:
        if action.calls:
            return self.tools.answer(action)
        return {**OVER, "reward": self.finish()}

    def finish(self) -> float:
        get_reward = getattr(self.environment, "get_reward", None)
        return 0.0 if get_reward is None else number(awaited(get_reward()), "get_reward")


class OnlyTools:
    """No environment: the rewards judge the last turn, which is one without a call."""

    def __init__(self, tools: Tools):
        self.tools = tools

    def reset(self, task: Task, seed: int) -> Answer:
        return {"prompt": None, "tools": self.tools.schemas, "max_turns": None}

    def step(self, action: Action) -> Answer:
        return self.tools.answer(action) if action.calls else dict(OVER)

    def finish(self) -> float:
        return 0.0

    def close(self) -> None:
        """Nothing is held."""


class OfRl2:
    """A function over texts: what the policy has read so far, and what it wrote."""

    def __init__(self, function: Callable):
        self.function = function
        self.state, self.extra_info = "", dict[str, Any]()

    def reset(self, task: Task, seed: int) -> Answer:
        self.state = task.prompt
        own = task.extra.get("extra_info")  # RL2's column
        row = {"answer": task.answer, "problem": task.problem, **task.extra}
        self.extra_info = {**row, **own} if isinstance(own, Mapping) else row
        return {"prompt": None, "tools": [], "max_turns": None, "wants_text": True}

    def step(self, action: Action) -> Answer:
        said = awaited(self.function(self.state, str(action), self.extra_info))
        if not isinstance(said, Mapping):
            raise Wrong(f"step returned {kind(said)}: return a dict with next_state and done")
        answered = answer(said)
        following = said.get("next_state")
        self.extra_info = said.get("extra_info", self.extra_info)
        if following is None:
            return {**answered, "done": True}
        if not isinstance(following, str):
            raise Wrong(f"next_state is {kind(following)}: give a text")
        before, self.state = self.state + str(action), following
        continues = following.startswith(before)
        text = following[len(before) :] if continues else following
        return {**answered, "raw": {"text": text, "continues": continues}}

    def finish(self) -> float:
        return 0.0

    def close(self) -> None:
        """Nothing is held."""


OVER: Answer = {"observation": "", "reward": 0.0, "done": True, "score": None}


def answer(said: Any) -> Answer:
    """What `step` has returned, in one form. Raises Wrong."""
    if isinstance(said, Step) or all(hasattr(said, name) for name in ("observation", "done")):
        observation, reward, done = said.observation, getattr(said, "reward", 0.0), said.done
        score = getattr(said, "score", None)
    elif isinstance(said, Mapping):
        observation, reward = said.get("observation", ""), said.get("reward", 0.0)
        done, score = said.get("done", False), said.get("score")
    elif isinstance(said, tuple) and 3 <= len(said) <= 5:
        observation, reward, done, *rest = said
        done = done or (len(said) == 5 and rest[0])
        info = rest[-1] if len(said) > 3 and isinstance(rest[-1], Mapping) else {}
        score = info.get("score")
    else:
        raise Wrong(f"step returned {kind(said)}: return (observation, reward, done) or a Step")
    return {
        "observation": "" if observation is None else conversation(observation),
        "reward": number(0.0 if reward is None else reward, "reward"),
        "done": bool(done),
        "score": None if score is None else number(score, "score"),
    }


def conversation(value: Any) -> str | list[Message]:
    """A text, or messages that are well formed. Raises Wrong."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping) and "role" in value:
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, bytes) or not value:
        raise Wrong(f"an observation is {kind(value)}: give a text, or messages")
    for each in value:
        if not isinstance(each, Mapping) or not isinstance(each.get("role"), str):
            raise Wrong(f"a message is {kind(each)}: give {{'role': ..., 'content': ...}}")
        if not isinstance(each.get("content"), str):
            raise Wrong(f"a message's content is {kind(each.get('content'))}: give a text")
    return [dict(each) for each in value]


def number(value: Any, name: str) -> float:
    """Raises Wrong for what is no finite number."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise Wrong(f"its {name} is {kind(value)}: give a number") from None
    if isinstance(value, str) or not math.isfinite(found):
        raise Wrong(f"its {name} is {value!r:.40}: give a finite number")
    return found


def kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def accepted(function: Callable, values: Mapping[str, Any]) -> dict[str, Any]:
    """As many of the values as a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return dict(values)
    return {each.name: values[each.name] for each in parameters if each.name in values}

"""The forms in which environments are written (ours, Gymnasium's, TRL's, RL2's, and tools alone),
each made into one: see `EnvironmentForm`, and docs/environments.md.

Which form a class or a function has is seen by its names and parameters. Any method may be `async`.
"""

import functools
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from unslothrl.environments.base import Action, Message, Step, Task, ToolCall
from unslothrl.environments.tool_calls import InvalidEnvironment, Tools, awaited

MOST_REWARD, ROUNDING = 1e12, 1e-6  # as in `records`, whose NumPy another Python may lack
HERE = os.path.dirname(os.path.abspath(__file__))
RL2_PARAMETERS = ("state", "action", "extra_info")
OBSERVED = ("user", "tool", "system")  # roles
MESSAGE = ("role", "content", "name", "tool_call_id")  # the parts of one, all of them texts
Answer = dict[str, Any]


class EnvironmentForm:
    """An episode's environment as the server calls it. `environment` is the user's object."""

    FINISH = "finish"

    def __init__(self, environment: Any, tools: Sequence[Callable] = (), most_calls: int = 0):
        self.environment = environment
        self.tools = Tools([*tools, *self.own_tools()], most_calls)

    def own_tools(self) -> list[Callable]:
        return list(getattr(self.environment, "tools", ()))

    @property
    def max_turns(self) -> int | None:
        most = getattr(self.environment, "max_turns", None)
        if most is not None and (type(most) is not int or most < 1):
            raise InvalidEnvironment(
                f"its max_turns is {most!r:.40}: give a whole number from 1 on"
            )
        return most

    def reset(self, task: Answer, seed: int) -> Answer:
        """-> {"prompt": None for the task's own, a text (a user's turn) or messages; or "more": a
        text behind the task's prompt; "tools": their JSON schemas, "max_turns": or None}."""
        prompt = self.prompt(Task(**task), seed)
        return {"tools": self.tools.schemas, "max_turns": self.max_turns, **prompt}

    def prompt(self, task: Task, seed: int) -> Answer:
        """Ours: the seed may be left out. Gymnasium's may give a dict beside the first text."""
        reset = self.environment.reset
        kinds = {each.name: each.kind for each in inspect.signature(reset).parameters.values()}
        first = next(iter(kinds), "seed")  # unlike Gymnasium's, ours takes the task
        is_named = kinds.get(first) is not inspect.Parameter.VAR_KEYWORD
        given = (task,) if is_named and first not in ("seed", "options") else ()
        said = awaited(reset(*given, **taken(reset, {"seed": seed})))
        if not given and isinstance(said, tuple) and len(said) == 2:
            said = said[0]
        return {"prompt": None if given and said is None else opening(said)}

    def step(self, text: str, content: str, reasoning: str | None, calls: list[Answer]) -> Answer:
        """-> {"observation": a text (a user's turn) or messages, "reward", "done", "score", "calls"
        and "errors": of tools}; "raw" in the observation's place: {"text", "continues"}."""
        action = Action.of(text, content, reasoning, [ToolCall(**call) for call in calls])
        if self.tools.functions and action.calls:
            return self.tools.answer(action)
        return self.answered(action)

    def answered(self, action: Action) -> Answer:
        """To a turn without calls."""
        return answer(awaited(self.environment.step(action)))

    def finish(self) -> Answer:
        """-> {"reward"} of an episode that has ended before the environment ended it."""
        finish = getattr(self.environment, self.FINISH, None)
        return {"reward": number(awaited(finish()), self.FINISH) if callable(finish) else 0.0}

    def close(self) -> Answer:
        close = getattr(self.environment, "close", None)
        self.environment = None  # once
        if callable(close):
            awaited(close())
        return {}


class TrlForm(EnvironmentForm):
    """Its public methods are tools; a turn without a call ends the episode."""

    FINISH = "get_reward"
    NOT_TOOLS = ("reset", FINISH, "close")

    def own_tools(self) -> list[Callable]:
        methods = self.methods(type(self.environment))
        own = [getattr(self.environment, method.__name__) for method in methods]
        return [*super().own_tools(), *own]

    @classmethod
    def methods(cls, found: type) -> list[Callable]:
        """Those of a class that are tools, as functions."""
        return [
            method
            for name, method in inspect.getmembers(found, inspect.isfunction)
            if name not in cls.NOT_TOOLS and not name.startswith("_")
        ]

    def prompt(self, task: Task, seed: int) -> Answer:
        row = {"problem": task.problem, "answer": task.answer, **task.read, "prompt": task.messages}
        row |= task.extra
        reset = self.environment.reset
        more = awaited(reset(**taken(reset, row)))
        if more is not None and not isinstance(more, str):
            raise InvalidEnvironment(f"reset returned {kind(more)}: return None or a text")
        return {"more": more or ""}

    def answered(self, action: Action) -> Answer:
        return {"observation": "", "done": True, "score": None, **self.finish()}


class Rl2Form(EnvironmentForm):
    """A function over texts: what the policy has read so far, and what it wrote."""

    def prompt(self, task: Task, seed: int) -> Answer:
        self.state = task.prompt
        own = task.extra.get("extra_info")  # RL2's column
        row = {"answer": task.answer, "problem": task.problem, **task.extra}
        self.extra_info = {**row, **own} if isinstance(own, Mapping) else row
        return {"prompt": None}

    def answered(self, action: Action) -> Answer:
        said = awaited(self.environment(self.state, str(action), self.extra_info))
        answered = answer(said)
        following = said.get("next_state")
        self.extra_info = said.get("extra_info", self.extra_info)
        if following is None:
            return {**answered, "done": True}
        before, self.state = self.state + str(action), following
        continues = following.startswith(before)
        text = following[len(before) :] if continues else following
        return {**answered, "raw": {"text": text, "continues": continues}}


Make = Callable[[], EnvironmentForm]
"""Makes the environment of an episode."""


def load(setup: Mapping[str, Any]) -> Make:
    """What makes the episodes' environments. `setup` has "file" and "name" of the class or
    function, "" for none; "options" for it; "tools": files whose functions are tools, or tools of
    this package; and "max_calls" of them in an episode."""
    tools = [function for text in setup["tools"] for function in tools_of(text)]
    options, most = dict(setup["options"]), int(setup["max_calls"])
    Tools(tools)  # raises now what is wrong with one
    if not setup["file"]:
        alone = SimpleNamespace(reset=lambda: None)  # the rewards judge the turn without a call
        return lambda: TrlForm(alone, tools, most)
    found: Any = getattr(module(setup["file"]), setup["name"], None)
    if not callable(found):
        raise InvalidEnvironment(f"the file defines no class or function {setup['name']}")
    if (
        not inspect.isclass(found)
        and tuple(inspect.signature(found).parameters)[:3] == RL2_PARAMETERS
    ):
        if tools or options:
            raise InvalidEnvironment(
                f"{found.__name__} is a function in RL2's form, which takes no tools and no "
                "environment_options: leave them out"
            )
        return lambda: Rl2Form(found)
    if inspect.isclass(found) and form_of(found) is TrlForm:  # raises now if it is none
        Tools(TrlForm.methods(found))
    if isinstance(inspect.getattr_static(found, "prepare", None), classmethod):
        getattr(found, "prepare")(**options)  # noqa: B009

    def make() -> EnvironmentForm:
        environment = awaited(found(**options))
        return form_of(type(environment))(environment, tools, most)

    return make


def tools_of(text: str) -> list[Callable]:
    """Those of a file or, by NAME or NAME:ARGUMENT, of this package's `tools`."""
    name, separator, argument = text.partition(":")
    file = os.path.join(HERE, "tools", f"{name}.py")
    if not name.isidentifier() or not os.path.isfile(file):
        found = Tools.of_file(module(text))
        if not found:
            raise InvalidEnvironment(f"{os.path.basename(text)} defines no function that is a tool")
        return found
    return module(file).tools(argument) if separator else Tools.of_file(module(file))


@functools.cache
def module(file: str) -> Any:
    name = f"unslothrl_environment_{os.path.splitext(os.path.basename(file))[0]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InvalidEnvironment(f"Python cannot read {file}")
    folder = os.path.dirname(os.path.abspath(file))
    if folder not in sys.path and not folder.startswith(HERE):
        sys.path.append(folder)  # for what lies beside it
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def form_of(found: type) -> type[EnvironmentForm]:
    """Raises InvalidEnvironment for a class of no form."""
    reset, step = getattr(found, "reset", None), getattr(found, "step", None)
    if not callable(reset):
        raise InvalidEnvironment(f"{found.__name__} lacks reset: see docs/environments.md")
    parameters = list(inspect.signature(reset).parameters.values())[1:]
    names = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    takes_row = len(names) < len(parameters) and "task" not in names and "seed" not in names
    is_trls = hasattr(found, "get_reward") or takes_row or not callable(step)
    return TrlForm if is_trls else EnvironmentForm


def taken(function: Callable, named: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a function takes, all of them where it has `**`."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return named
    return {each.name: named[each.name] for each in parameters if each.name in named}


def answer(said: Any) -> Answer:
    """What `step` has returned, in one form."""
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
        raise InvalidEnvironment(
            f"step returned {kind(said)}: return (observation, reward, done) or a Step"
        )
    if score is not None:
        score = number(score, "score")
        if not -ROUNDING <= score <= 1 + ROUNDING:
            raise InvalidEnvironment(f"its score is {score:g}: give 0 to 1")
        score = min(1.0, max(0.0, score))
    return {
        "observation": "" if done or observation is None else conversation(observation),
        "reward": number(0.0 if reward is None else reward, "reward"),
        "done": bool(done),
        "score": score,
    }


def opening(value: Any) -> str | list[Message]:
    """A prompt, in which examples may come before the question."""
    said = conversation(value, (*OBSERVED, "assistant"))
    if not isinstance(said, str) and said[-1]["role"] == "assistant":
        raise InvalidEnvironment("its prompt ends with a turn of the assistant: leave it out")
    return said


def conversation(value: Any, roles: Sequence[str] = OBSERVED) -> str | list[Message]:
    """A text, or messages that are well formed."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping) and "role" in value:
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, bytes) or not value:
        raise InvalidEnvironment(f"an observation is {kind(value)}: give a text, or messages")
    return [message(each, roles) for each in value]


def message(given: Any, roles: Sequence[str]) -> Message:
    """Without a call, which would make a turn of the policy's of it whatever the role."""
    if not isinstance(given, Mapping) or "role" not in given or "content" not in given:
        raise InvalidEnvironment(
            f"a message is {kind(given)}: give {{'role': ..., 'content': ...}}"
        )
    found = {key: given[key] for key in MESSAGE if key in given}
    for key, value in found.items():
        if not isinstance(value, str) and (value is not None or key in ("role", "content")):
            raise InvalidEnvironment(f"a message's {key} is {kind(value)}: give a text")
    if found["role"] not in roles:
        raise InvalidEnvironment(
            f"a message of role {found['role']!r}: choose one of {', '.join(roles)}"
        )
    return {key: str(value) for key, value in found.items() if value is not None}


def number(value: Any, name: str) -> float:
    """A finite one that sums can hold."""
    found = math.nan if isinstance(value, str | bytes) else float(value)
    if not abs(found) < MOST_REWARD:
        shown = f"{found:g}" if isinstance(value, int | float) else f"{value!r:.40}"
        said = f"its {name} is {shown}: give a finite number below {MOST_REWARD:g}"
        raise InvalidEnvironment(said)
    return found


def kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"

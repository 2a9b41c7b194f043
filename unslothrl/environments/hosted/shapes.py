"""The forms in which environments are written, each made into one: see `Shape`.

    ours          reset(task, seed) -> messages, async step(action) -> Step
    Gymnasium's   reset(seed=...) -> observation, info; step(action) -> five values
    TRL's         reset(**row) -> None or a text, public methods are tools, get_reward()
    RL2's         def step(state, action, extra_info) -> {next_state, reward, ...}
    tools         functions that the policy may call

`loading` sees which of them a class or a function is. Any method may be `async`.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from unslothrl.environments.base import Action, Message, Step, Task
from unslothrl.environments.hosted.loop import awaited
from unslothrl.environments.hosted.tools import Tools, Wrong
from unslothrl.turn import MOST_REWARD, ROUNDING

MESSAGE = ("role", "content", "name", "tool_call_id")  # the parts of one, all of them texts
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


def own_tools(environment: Any) -> list[Callable]:
    """The functions in an environment's `tools`. Raises Wrong for what is none."""
    wanted = "give a list of functions and methods, each with types and a docstring"
    found = getattr(environment, "tools", ())
    if not isinstance(found, list | tuple):
        raise Wrong(f"its tools are {kind(found)}: {wanted}")
    for each in found:
        if not inspect.isroutine(each):
            raise Wrong(f"its tools hold {kind(each)}: {wanted}")
    return list(found)


class Based:
    """What they share. `environment` is the user's object."""

    def __init__(self, environment: Any, tools: Sequence[Callable], most_calls: int):
        self.environment = environment
        self.tools = Tools([*tools, *own_tools(environment)], most_calls)

    @property
    def max_turns(self) -> int | None:
        most = getattr(self.environment, "max_turns", None)
        if most is None:
            return None
        try:
            if isinstance(most, bool) or most < 1 or most != int(most):
                raise ValueError
            return int(most)
        except (TypeError, ValueError, OverflowError):
            raise Wrong(f"its max_turns is {most!r:.40}: give a whole number from 1 on") from None

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

    def begun(self, task: Task, seed: int) -> Any:
        """What `reset` returns, which may take the seed by its place, by its name or not at all."""
        reset = self.environment.reset
        parameters = inspect.signature(reset).parameters
        kinds = [each.kind for each in parameters.values()]
        places = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
        places += kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if places > 1 or inspect.Parameter.VAR_POSITIONAL in kinds:
            return reset(task, seed)
        if "seed" in parameters or inspect.Parameter.VAR_KEYWORD in kinds:
            return reset(task, seed=seed)
        return reset(task)

    def reset(self, task: Task, seed: int) -> Answer:
        prompt = awaited(self.begun(task, seed))
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
        row = {"problem": task.problem, "answer": task.answer, **task.read, "prompt": task.messages}
        row |= task.extra
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
    if observation is None or (done and isinstance(observation, list | tuple) and not observation):
        observation = ""  # what nobody reads may be missing
    return {
        "observation": conversation(observation),
        "reward": number(0.0 if reward is None else reward, "reward"),
        "done": bool(done),
        "score": None if score is None else share(score),
    }


def conversation(value: Any) -> str | list[Message]:
    """A text, or messages that are well formed. Raises Wrong."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping) and "role" in value:
        value = [value]
    if isinstance(value, list | tuple) and not value:
        raise Wrong("an observation has no message: give a text, or messages")
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise Wrong(f"an observation is {kind(value)}: give a text, or messages")
    for each in value:
        if not isinstance(each, Mapping) or not isinstance(each.get("role"), str):
            raise Wrong(f"a message is {kind(each)}: give {{'role': ..., 'content': ...}}")
        if not isinstance(each.get("content"), str):
            raise Wrong(f"a message's content is {kind(each.get('content'))}: give a text")
    return [message(each) for each in value]


def message(given: Mapping) -> Message:
    """What a template may see of a message: with a call in it, it would write a turn of the
    policy's whatever the role. Raises Wrong."""
    found = {key: given[key] for key in MESSAGE if given.get(key) is not None}
    for key, value in found.items():
        if not isinstance(value, str):
            raise Wrong(f"a message's {key} is {kind(value)}: give a text")
    return {key: str(value) for key, value in found.items()}


def number(value: Any, name: str) -> float:
    """Raises Wrong for what is no finite number, or one that sums could not hold."""
    if isinstance(value, str | bytes):
        raise Wrong(f"its {name} is {value!r:.40}: give a finite number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    except (TypeError, ValueError):
        raise Wrong(f"its {name} is {kind(value)}: give a number") from None
    if not math.isfinite(found):
        raise Wrong(f"its {name} is {found}: give a finite number")
    if abs(found) >= MOST_REWARD:
        raise Wrong(f"its {name} is {found:g}: give one below {MOST_REWARD:g}")
    return found


def share(value: Any) -> float:
    """A score, from 0 to 1 but for a rounding error. Raises Wrong."""
    score = number(value, "score")
    if not -ROUNDING <= score <= 1 + ROUNDING:
        raise Wrong(f"its score is {score:g}: give 0 to 1")
    return min(1.0, max(0.0, score))


def kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def accepted(function: Callable, values: Mapping[str, Any]) -> dict[str, Any]:
    """As many of the values as a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return dict(values)
    return {each.name: values[each.name] for each in parameters if each.name in values}

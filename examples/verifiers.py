"""A taskset of verifiers, or an environment over one.

    --environment examples/verifiers.py:Verifiers --environment_options taskset=gsm8k-v1

`env=ID` names an environment of its own package; other options are the taskset's. Each group has a
task of its own, by its seed.

The environment's own `run` is played, with the policy in its one agent's place: each turn of an
interaction is a turn of the policy. No agent program is started, so that what is made for one is
refused: tools, containers, several agents, and hooks that need a runtime or see the model's
requests.
"""

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import verifiers.v1 as vf
from verifiers.v1 import graph
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects import parse_message
from verifiers.v1.state import state_cls
from verifiers.v1.types import content_text
from verifiers.v1.utils.decorators import discover_decorated, invoke
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from unslothrl.environments.base import Action, Message, Step, Task

DEFAULTS = (vf.Task.setup, vf.Task.finalize)  # which do nothing
MOST_TASKS = 1000  # of a taskset that has no end


class Verifiers:
    """`env` and `tasks` are loaded once, for all episodes."""

    env: vf.Env
    tasks: list[vf.Task]

    @classmethod
    def prepare(cls, taskset: str, env: str = "", **options: Any) -> None:
        config = {"id": env, "taskset": {"id": taskset, **options}}
        cls.env = load_environment(resolve_env_config(config))
        found = cls.env.taskset
        cls.tasks = list(found if found.bounded else itertools.islice(found, MOST_TASKS))
        if reason := refusal(cls.env, cls.tasks):
            raise ValueError(f"{env or taskset} {reason}: it cannot be played turn by turn")

    def __init__(self, taskset: str, env: str = "", **options: Any):
        self.table = Table()
        self.episode: asyncio.Task[float] | None = None
        self.max_turns = next(iter(agent_config_fields(self.env.config).values())).max_turns

    async def reset(self, task: Task, seed: int) -> list[Message]:
        self.episode = asyncio.create_task(self.play(self.tasks[seed % len(self.tasks)]))
        prompt = await self.table.next(self.episode)
        if prompt is None:
            raise ValueError("it has ended before the first turn")
        return prompt

    async def step(self, action: Action) -> Step:
        assert self.episode is not None
        self.table.answer(action)
        observation = await self.table.next(self.episode)
        if observation is not None:
            return Step(False, observation)
        reward = self.episode.result()
        return Step(True, reward=reward, score=float(reward >= 1 - 1e-6))

    async def finish(self) -> float:
        """What the turns so far have earned."""
        assert self.episode is not None
        if not self.table.turns:
            return 0.0
        self.table.answer(None)
        return await self.episode

    async def play(self, task: vf.Task) -> float:
        """An episode as verifiers runs it. -> the sum of its weighted rewards"""
        seats = dict[str, Seat]()

        def make(name: str, config: vf.AgentConfig) -> Any:
            return seats.setdefault(name, Seat(name, config, self.table))

        agents = vf.Agents(self.env.config, make)
        await self.env.start()
        try:
            await self.env.setup(agents)
            await self.env.run(task, agents)
            (seat,) = seats.values()
            assert seat.trace is not None
            info = vf.EnvInfo(id=self.env.config.env_id)
            episode = vf.Episode(env=info, task=record_of(task), traces=[seat.trace])
            await self.env.finalize(task, episode)
            return seat.trace.reward
        finally:
            await self.env.stop()

    async def close(self) -> None:
        if self.episode is not None:
            self.episode.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self.episode


class Table:
    """What the environment and the policy say to each other, in turn."""

    def __init__(self) -> None:
        self.asked, self.said = asyncio.Queue[list[Message]](), asyncio.Queue[Action | None]()
        self.turns = 0  # of the policy

    async def ask(self, messages: list[vf.Message]) -> Action | None:
        """-> the policy's turn, None: there is none any more."""
        self.asked.put_nowait([message_of(each) for each in messages])
        return await self.said.get()

    def answer(self, action: Action | None) -> None:
        self.turns += action is not None
        self.said.put_nowait(action)

    async def next(self, episode: "asyncio.Task[float]") -> list[Message] | None:
        """What the environment says next, None at its end. Raises what that has raised."""
        asked = asyncio.ensure_future(self.asked.get())
        await asyncio.wait({asked, episode}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        episode.result()
        return None


class Seat:
    """The policy, called as verifiers calls an agent."""

    def __init__(self, name: str, config: vf.AgentConfig, table: Table):
        self.name, self.config, self.table = name, config, table
        self.trace: vf.Trace | None = None

    async def run(self, task: vf.Task, **options: Any) -> vf.Trace:
        async with self.interaction(task) as interaction:
            await interaction.turn()
            interaction.trace.stop("agent_completed")
        return interaction.trace

    @contextlib.asynccontextmanager
    async def interaction(self, task: vf.Task, **options: Any) -> "AsyncIterator[Interaction]":
        if self.trace is not None:
            raise ValueError("it begins a second conversation: an episode is one")
        trace: vf.Trace = vf.Trace(
            task=record_of(task),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=self.config, name=self.name),
        )
        self.trace = trace
        await invoke(task.setup, {"trace": trace, "runtime": None})
        yield Interaction(task, trace, self.table)
        trace.stop("user_closed")
        trace.ok = True
        await invoke(task.finalize, {"trace": trace, "runtime": None})
        await task.score(trace)


class Interaction:
    """As verifiers' own, which an environment calls."""

    def __init__(self, task: vf.Task, trace: vf.Trace, table: Table):
        self.trace, self.table = trace, table
        system, prompt = task.data.system_prompt, task.data.prompt
        self.conversation: list[vf.Message] = []  # all of it
        self.unread = typed(prompt) if prompt is not None else []
        if system is not None:
            self.unread.insert(0, vf.SystemMessage(content=system))

    async def turn(self, message: str | list[Any] | None = None) -> vf.Segment:
        self.unread += typed(message) if message is not None else []
        if not self.unread:
            raise ValueError("it asks for a turn and says nothing")
        said = await self.table.ask(self.unread)
        if said is None:
            self.trace.stop("max_turns")
            return vf.Segment([], terminated=True)
        self.conversation += self.unread
        reply = vf.AssistantMessage(content=said.content, reasoning_content=said.reasoning)
        response = vf.Response(id="", created=0, model="", message=reply, finish_reason="stop")
        graph.prepare_turn(self.trace, list(self.conversation)).commit(response)
        self.conversation.append(reply)
        self.unread = []
        return vf.Segment([reply])


def record_of(task: vf.Task) -> vf.TraceTask:
    return vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)


def typed(message: str | list[Any]) -> list[vf.Message]:
    if isinstance(message, str):
        return [vf.UserMessage(content=message)]
    return [parse_message(each) if isinstance(each, dict) else each for each in message]


def message_of(message: vf.Message) -> Message:
    """A message as ours. Raises ValueError for what is no text."""
    content = message.content
    if isinstance(content, list) and any(part.type != "text" for part in content):
        raise ValueError("a message of it has an image")
    return {"role": message.role, "content": content_text(content)}


def refusal(env: vf.Env, tasks: list[vf.Task]) -> str:
    """Why its episodes cannot be played here, "": they can."""
    if not tasks:
        return "has no task"
    if len(agent_config_fields(env.config)) != 1:
        return f"has {len(agent_config_fields(env.config))} agents"
    taskset, task = env.taskset, tasks[0]
    if type(taskset).toolsets(taskset.config) or type(task).toolsets(task.config):
        return "has tools of its own"
    if task.NEEDS_CONTAINER or task.data.image:
        return "needs a container"
    if discover_decorated(task, "intercept") or task.hooks("stop"):
        return "has hooks on the model's requests"
    for hook in (task.setup, task.finalize, *task.hooks("metric"), *task.hooks("reward")):
        if needs_runtime(hook):
            return f"needs a runtime for {hook.__name__}"
    return ""


def needs_runtime(hook: Callable[..., Any]) -> bool:
    if getattr(hook, "__func__", hook) in DEFAULTS:
        return False
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty

"""An environment behind an OpenEnv server.

    --environment examples/openenv.py:OpenEnv --environment_options base_url=http://127.0.0.1:8000

Other options are passed on to the environment's `reset`.

A turn that is a JSON object is the action itself; any other text is the value of the action's one
required field. The server must allow as many sessions as there are episodes at once
(`max_concurrent_envs`).
"""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from openenv.core.generic_client import GenericEnvClient
from websockets.protocol import State

from unslothrl.environments.base import Action, Step, Task

ANSWER_S = 10.0  # for the server to say what its actions are
NO_LIMIT_S = 1e6  # of an answer: --environment_timeout has one
REFUSED = "(code: VALIDATION_ERROR)"  # ends what the client raises about an action


class Client(GenericEnvClient):
    """Connects once. OpenEnv's own would connect again in the middle of an episode: to a new
    session, whose environment knows nothing of what came before."""

    has_connected = False

    async def _connect_async(self) -> GenericEnvClient:
        if self.has_connected and (self._ws is None or self._ws.state is not State.OPEN):
            raise ConnectionError("the server has ended the session")
        self.has_connected = True
        return await super()._connect_async()


class OpenEnv:
    """A session of the server's. `fields`: those that an action must have."""

    fields: list[str]

    @classmethod
    def prepare(cls, base_url: str, **options: Any) -> None:
        url = re.sub("^ws", "http", base_url.rstrip("/")) + "/schema"
        parts = urllib.parse.urlsplit(url)
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        proxies = urllib.request.ProxyHandler({} if is_local else None)
        try:
            with urllib.request.build_opener(proxies).open(url, timeout=ANSWER_S) as answer:
                cls.fields = fields_of(json.load(answer)["action"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            address, said = parts.netloc.rpartition("@")[2], getattr(error, "reason", error)
            raise ValueError(f"no OpenEnv server answers at {address}: {said}") from None

    def __init__(self, base_url: str, **options: Any):
        self.client = Client(base_url=base_url, message_timeout_s=NO_LIMIT_S)
        self.options = options

    async def reset(self, task: Task, seed: int) -> str:
        await self.client.connect()
        result = await self.client.reset(seed=seed % 2**32, **self.options)
        return text_of(result.observation)

    async def step(self, action: Action) -> Step:
        try:
            result = await self.client.step(self.action_of(action.content))
        except RuntimeError as error:
            if REFUSED not in str(error):
                raise
            return Step(False, f"error: no such action: write {', '.join(self.fields)} in JSON")
        return Step(result.done, text_of(result.observation), result.reward or 0.0)

    def action_of(self, said: str) -> dict[str, Any]:
        try:
            value = json.loads(said)
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {self.fields[0]: said.strip()}

    async def close(self) -> None:
        await self.client.close()


def fields_of(schema: Mapping[str, Any]) -> list[str]:
    """The required fields of an action or, where there are none, its first own."""
    own = [name for name in schema.get("properties", {}) if name != "metadata"]
    return list(schema.get("required") or own[:1] or ["message"])


def text_of(observation: Mapping[str, Any]) -> str:
    """A text where that is all, else JSON."""
    said = {name: value for name, value in observation.items() if name != "metadata"}
    values = list(said.values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(said)

"""One episode in its process: the calls come over a socket, one after the other.

    {"call": "reset", "task": {...}, "seed": 7}   ->  {"prompt": None or a text or messages, ...}
    {"call": "step", "text": ..., "calls": ...}   ->  {"observation", "reward", "done", ...}
    {"call": "finish"}                            ->  {"reward"}: what is left to be earned
    {"call": "close"}                             ->  {}

What goes wrong is answered by {"error": ...}. No event loop runs while the user's synchronous code
does, so that it may call `asyncio.run`: see `loop`.
"""

import asyncio
import random
import socket
import sys
import traceback
from typing import Any

from unslothrl.environments.base import Action, Task, ToolCall
from unslothrl.environments.hosted import frames, loading
from unslothrl.environments.hosted.loop import awaited
from unslothrl.environments.hosted.shapes import Shape
from unslothrl.environments.hosted.tools import Wrong

MOST_REASON = 300  # characters


def run(connection: socket.socket, make: loading.Make) -> None:
    """Until the socket ends; the environment is closed in any case."""
    reader, writer = awaited(asyncio.open_connection(sock=connection, limit=frames.MOST))
    episode = Episode(make)
    try:
        while (call := awaited(frames.read(reader))) is not None:
            writer.write(answer(episode, call))
            awaited(writer.drain())
    finally:
        episode.close()


def answer(episode: "Episode", call: dict[str, Any]) -> bytes:
    """With "?" for what UTF-8 lacks: no tokenizer reads half a surrogate pair."""
    try:
        method = getattr(episode, call.pop("call"))
        return frames.packed(method(**call), errors="replace")
    except frames.TooLarge as error:
        return frames.packed({"error": f"it answered with {error}"})
    except BaseException as error:  # the user's code: it must not end the answer
        return frames.packed({"error": reason(error)}, errors="replace")


def reason(error: BaseException) -> str:
    """A line: what was raised and where."""
    if isinstance(error, Wrong):
        return str(error)
    said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    frames_of_user = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "unslothrl/environments/hosted" not in frame.filename.replace("\\", "/")
        and not frame.filename.startswith("<frozen")
    ]
    if frames_of_user:
        last = frames_of_user[-1]
        said = f"{said[:MOST_REASON]} ({last.filename.rpartition('/')[2]} line {last.lineno})"
    return said[: 2 * MOST_REASON]


class Episode:
    """The calls, as methods."""

    def __init__(self, make: loading.Make):
        self.make = make
        self.shape: Shape | None = None

    def reset(self, task: dict[str, Any], seed: int) -> dict[str, Any]:
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed % 2**32)
        self.shape = self.make()
        return self.shape.reset(Task(**task), seed)

    def step(
        self, text: str, content: str, reasoning: str | None, calls: list[dict[str, Any]]
    ) -> dict[str, Any]:
        assert self.shape is not None
        made = [ToolCall(**call) for call in calls]
        return self.shape.step(Action.of(text, content, reasoning, made))

    def finish(self) -> dict[str, Any]:
        assert self.shape is not None
        return {"reward": self.shape.finish()}

    def close(self) -> dict[str, Any]:
        shape, self.shape = self.shape, None
        if shape is not None:
            shape.close()
        return {}

"""The event loop of an episode's process, and the only place where it runs.

It runs while something is awaited, a call that comes or what the user's code has returned, and not
while synchronous code is called: that may wrap an asynchronous client by `asyncio.run`, which
refuses to begin inside a running loop. Tasks that the user's code has left behind go on meanwhile.
"""

import asyncio
import functools
import inspect
from typing import Any


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """Made at its first use: no two processes may share one across a fork."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    return made


def awaited(value: Any) -> Any:
    """The value, or what comes of it where it is awaitable."""
    return loop().run_until_complete(value) if inspect.isawaitable(value) else value

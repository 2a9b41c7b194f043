"""What a reward process runs: reads a call a line from its socket, answers each with a line.

    [token, function, arguments, named arguments]  ->  "imported" where it is new, [value, error]

Each reply is sealed with its call's token, see `functions.sealed`. So whatever a function writes to
any descriptor, none of it is taken for a reply: the process is replaced, see `ProcessPool`. The
socket moves to a number that differs between processes, which a stray write is unlikely to meet.

Not defended: a function that is hostile rather than wrong. It runs in this interpreter, so it can
find the token of its own call, and those of calls that wait in the socket, and answer for them.
Untrusted programs belong in the sandbox.
"""

import fcntl
import json
import os
import resource
import socket
import sys
from typing import Any

from unslothrl.rewards.functions import IMPORTED, as_json, load, reason, sealed


async def wait(value: Any) -> Any:
    return await value


def serve(connection: socket.socket) -> None:
    known: set[str] = set()
    for line in connection.makefile("rb"):
        token, name, arguments, named = json.loads(line)
        try:
            function = load(name)
            if name not in known:
                known.add(name)
                connection.sendall(sealed(token, IMPORTED))
            value = function(*arguments, **named)
            if hasattr(value, "__await__"):
                import asyncio  # large, and every program's process is a copy of this one

                value = asyncio.run(wait(value))
            answer = [as_json(value), None]
        except BaseException as error:  # hostile text, or the user's own code: it must not end us
            answer = [None, reason(error)]
        connection.sendall(sealed(token, answer))


def main(given: int, memory_mb: int) -> None:
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    number = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 64 + os.urandom(1)[0] // 2)
    os.close(given)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        serve(socket.socket(fileno=number))
    finally:  # with what a function's threads are at
        os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

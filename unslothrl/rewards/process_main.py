"""What a reward process runs: reads a call a line, answers each with a line.

    [token, function, arguments, named arguments]  ->  "imported" where it is new, [value, error]

Each reply is sealed with its call's token, see `functions.sealed`. So whatever a function writes to
any descriptor, none of it is taken for a reply: the process is replaced, see `Round.lose`. Stdin is
empty, and what a function prints goes nowhere or to stderr; calls and replies go through copies of
the two at numbers that differ between processes, so that a stray write is unlikely to meet them.

Not defended: a function that is hostile rather than wrong. It runs in this interpreter, so it can
find the token of its own call, and those of calls that wait in the pipe, and answer for them.
Untrusted programs belong in the sandbox.
"""

import fcntl
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

from unslothrl import long_json
from unslothrl.rewards.functions import IMPORTED, as_json, load, reason, sealed


async def wait(value: Any) -> Any:
    return await value


def out_of_reach(descriptor: int) -> int:
    """A copy of a descriptor, at a random number above those that functions are likely to use."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64 + os.urandom(1)[0] // 2)


def serve(requests: int, replies: int) -> None:
    known: dict[str, Callable[..., Any]] = {}
    answers = os.fdopen(replies, "wb")

    def reply(token: str, what: Any) -> None:
        answers.write(sealed(token, what))
        answers.flush()

    for line in os.fdopen(requests, "rb"):
        token, name, arguments, named = long_json.loads(line)
        try:
            if name not in known:
                known[name] = load(name)
                reply(token, IMPORTED)
            value = known[name](*arguments, **named)
            if hasattr(value, "__await__"):
                import asyncio  # large, and every program's process is a copy of this one

                value = asyncio.run(wait(value))
            answer = [as_json(value), None]
        except BaseException as error:  # hostile text, or the user's own code: it must not end us
            answer = [None, reason(error)]
        reply(token, answer)


def main() -> None:
    memory = int(sys.argv[1]) << 20  # 0: no limit
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    requests, replies = out_of_reach(0), out_of_reach(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2 if sys.argv[2:] else null, 1)
    os.close(null)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        serve(requests, replies)
    except Exception:  # a function has written to the descriptors, or closed them
        os._exit(1)


if __name__ == "__main__":
    main()

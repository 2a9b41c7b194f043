"""What a reward process runs: reads a call a line from stdin, answers each with a line on stdout.

    [function, arguments, named arguments]  ->  "imported" where it is new, then [value, error]

What a function prints goes nowhere, or to stderr, so that it cannot answer for itself.
"""

import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

from unslothrl import long_json
from unslothrl.rewards.functions import as_json, load, reason


def answer(function: Callable[..., Any], arguments: list, named: dict[str, Any]) -> list:
    """-> [value, error]"""
    try:
        value = function(*arguments, **named)
        if hasattr(value, "__await__"):
            import asyncio  # large, and every program's process is a copy of this one

            value = asyncio.run(wait(value))
        return [as_json(value), None]
    except BaseException as error:  # hostile text, or the user's own code: it must not end us
        return [None, reason(error)]


async def wait(value: Any) -> Any:
    return await value


def main() -> None:
    memory = int(sys.argv[1]) << 20  # 0: no limit
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2 if sys.argv[2:] else os.open(os.devnull, os.O_RDWR), 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    known: dict[str, Callable[..., Any]] = {}
    for line in sys.stdin:
        name, arguments, named = long_json.loads(line)
        try:
            if name not in known:
                known[name] = load(name)
                print("imported", file=replies)
        except BaseException as error:
            reply = [None, reason(error)]
        else:
            reply = answer(known[name], arguments, named)
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()

"""What reward processes run: reads a call a line from a socket, answers each with a line.

    [token, function, arguments, named arguments]  ->  [value, error]

Each reply is sealed with its call's token. So whatever a function writes to any descriptor, none of
it is taken for a reply: the process is replaced, see `ProcessPool`.

Not defended: a function that is hostile rather than wrong. It runs in this interpreter, so it can
find the token of its own call and answer before it returns. Untrusted programs belong in the
sandbox.
"""

import ctypes
import functools
import importlib
import importlib.util
import inspect
import os
import resource
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable
from hashlib import blake2b
from json import dumps, loads  # these, whatever a function makes of json.dumps
from typing import Any

LONGEST_ERROR = 300
LONGEST_TEXT = 100  # of what should have been a number
LONGEST_INTEGER = 1000  # bits
LOGS = ("log_extra", "log_metric")  # of TRL
SEAL = 16  # bytes
PR_SET_PDEATHSIG = 1  # linux/prctl.h
TICK_S = 0.1
STATE: dict[str, Any] = {  # of TRL's TrainerState, what is the same in every call
    "epoch": None, "log_history": [], "is_local_process_zero": True, "is_world_process_zero": True,
}  # fmt: skip
_files: set[str] = set()  # of the user's functions that are loaded


@functools.cache
def load(name: str) -> Callable[..., Any]:
    """ "module:function" or "file.py:function"."""
    where, _, function = name.rpartition(":")
    if not where.endswith(".py"):
        return getattr(importlib.import_module(where), function)
    _files.add(where)
    spec = importlib.util.spec_from_file_location(f"reward_{len(_files)}_of_the_user", where)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look for it there
    sys.path.insert(0, os.path.dirname(os.path.abspath(where)))
    spec.loader.exec_module(module)
    return called_as_by_trl(getattr(module, function))


@functools.cache
def loop() -> Any:
    """The event loop of all async functions here: the connections of a client that a file makes
    once belong to one."""
    import asyncio  # large, and every program's process is a copy of this one

    return asyncio.new_event_loop()


def check(function: str) -> None:
    """Loads a function, which raises what is wrong with its file."""
    load(function)


def together(function: str, calls: list[list], deadline_s: float) -> list[list]:
    """Calls an async function concurrently. -> [value, error] of each.

    Time in which one of them keeps all others waiting, as one that loads a model, does not count.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def result(text: str, named: dict[str, Any]) -> list:
        try:
            return [as_json(await load(function)(text, **named)), None]
        except BaseException as error:  # a cancelled request, say, is no other's error
            return [None, reason(error)]

    async def all_of_them() -> list[list]:
        tasks = [asyncio.create_task(result(text, named)) for text, named in calls]
        pending, spent = set(tasks), 0.0
        while pending and spent < deadline_s:
            tick = min(TICK_S, deadline_s - spent)
            started = time.monotonic()
            _, pending = await asyncio.wait(pending, timeout=tick)
            spent += min(tick, time.monotonic() - started)
        if pending:
            for task in pending:
                task.cancel()
            await asyncio.sleep(0)
            # their threads, which cannot be cancelled, are no later call's
            loop().set_default_executor(ThreadPoolExecutor())
        late = [None, f"took longer than {deadline_s:g} s"]
        return [late if task in pending else task.result() for task in tasks]

    load(function)
    return loop().run_until_complete(all_of_them())


class Text(str):
    """A completion or a prompt as text, which also reads as TRL's list of its one message: a
    function that was written for conversational data says `completion[0]["content"]`."""

    role: str

    def __getitem__(self, index: Any) -> str:
        character = str.__getitem__(self, index) if self or index not in (0, -1) else ""
        if index not in (0, -1):
            return character
        message = Message(character)
        message.fields = {"role": self.role, "content": str(self)}
        return message


class Message(str):
    """A text's first or last character, which also reads as the message that the text is."""

    fields: dict[str, str]

    def __getitem__(self, key: Any) -> str:
        return self.fields[key] if isinstance(key, str) else str.__getitem__(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)


def as_message(value: Any, role: str) -> Any:
    if isinstance(value, str):
        value = Text(value)
        value.role = role
    return value


def called_as_by_trl(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gets by name what TRL gives, as far as it takes that; what it logs is
    dropped. One that gets a completion by position is called as it is."""

    def call(*arguments: Any, **named: Any) -> Any:
        if arguments:
            return function(*arguments, **named)
        for name, role in (("completions", "assistant"), ("prompts", "user")):
            if name in named:
                named[name] = [as_message(value, role) for value in named[name]]
        named["trainer_state"] = types.SimpleNamespace(**STATE, **named.get("trainer_state", {}))
        named |= {name: lambda *_, **__: None for name in LOGS}
        parameters = inspect.signature(function).parameters.values()
        if not any(each.kind == each.VAR_KEYWORD for each in parameters):
            named = {each.name: named[each.name] for each in parameters if each.name in named}
        return function(**named)

    return call


def as_json(value: Any) -> Any:
    """A value as JSON has it: numbers of NumPy, PyTorch, Fraction and the like as Python's, arrays
    as lists. TypeError for what is no number, and holds none. A text, which is none either, is
    cut: it is for a message."""
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    is_small = not isinstance(value, int) or value.bit_length() < LONGEST_INTEGER
    if value is None or (isinstance(value, bool | int | float) and is_small):
        return value
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if hasattr(value, "tolist"):  # of NumPy, PyTorch, pandas
        return as_json(value.tolist())
    if hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"returned no number, but {type(value).__name__}")


def reason(error: BaseException) -> str:
    """What was raised, and where in the user's file."""
    text = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename in _files]
    if not frames:
        return text
    return f"{text} ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"


def sealed(token: str, reply: Any) -> bytes:
    """A reply as a line; its seal shows that it is whole and answers this token's request."""
    body = dumps(reply).encode()
    return seal(token, body) + body + b"\n"


def opened(token: str, line: bytes) -> Any:
    """What was sealed; None for a line that does not answer this request."""
    body = line[2 * SEAL :]
    return loads(body) if line == seal(token, body) + body else None


def seal(token: str, body: bytes) -> bytes:
    return blake2b(body, key=token.encode(), digest_size=SEAL).hexdigest().encode()


def answer(name: str, arguments: list, named: dict[str, Any]) -> list:
    """Makes a call. -> [value, error]."""
    try:
        value = load(name)(*arguments, **named)
        if hasattr(value, "__await__"):
            value = loop().run_until_complete(value)
        return [as_json(value), None]
    except BaseException as error:  # hostile text, or the user's own code: it must not end us
        return [None, reason(error)]


def each(name: str, calls: list[list]) -> list[list]:
    """Makes several calls, one after the other. -> [value, error] of each."""
    return [answer(name, arguments, {}) for arguments in calls]


def serve(connection: socket.socket) -> None:
    for line in connection.makefile("rb"):
        token, *call = loads(line)
        reply = answer(*call)
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm left behind is no later call's
        connection.sendall(sealed(token, reply))


def main(given: int, memory_mb: int) -> None:
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    os.set_inheritable(given, False)
    if sys.platform == "linux":  # in a call that never ends nothing else would be noticed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        serve(socket.socket(fileno=given))
    finally:  # with what a function's threads are at
        os._exit(1)

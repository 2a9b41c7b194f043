"""Runs a file of environments: imports it once, and forks a process for every episode.

What hangs, crashes, leaks or grows costs that episode alone. On the control socket come first
{"file", "name", "options", "tools", "memory_mb"}, answered by {"ready": true} or {"error"}; then
commands of a byte and eight: `o` and a number opens an episode on the socket that comes along, `e`
and a number ends its process, and whatever that has started. The end of the control socket ends
everything.

To an episode the calls come one after the other, as JSON in a line:

    {"call": "reset", "task": {...}, "seed": 7}   ->  {"prompt": None or a text or messages, ...}
    {"call": "step", "text": ..., "calls": ...}   ->  {"observation", "reward", "done", ...}
    {"call": "finish"}                            ->  {"reward"}: what is left to be earned
    {"call": "close"}                             ->  {}

What goes wrong is answered by {"error": ...}.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import traceback
from typing import Any

from unslothrl.environments.forms import EnvironmentForm, Make, load
from unslothrl.environments.tool_calls import InvalidEnvironment, awaited
from unslothrl.errors import UserError

COMMAND = struct.Struct(">cQ")
MOST = 1 << 20  # bytes of a value
MOST_REASON = 300  # characters
OWN = ("environments/server.py", "environments/forms.py", "environments/tool_calls.py")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LIBC = ctypes.CDLL(None)  # here: after each fork it takes a third of a millisecond


def packed(value: Any, errors: str = "surrogatepass") -> bytes:
    """A value as JSON in a line. `errors`: what becomes of half a surrogate pair, as `str.encode`
    has it; paths may have some. ValueError and TypeError for what JSON lacks, and for what is too
    long."""
    data = json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8", errors)
    if len(data) > MOST:
        raise ValueError(f"{len(data):,} bytes, at most {MOST:,} are read")
    return data + b"\n"


async def read(reader: asyncio.StreamReader) -> Any:
    """The next value; None at the end."""
    try:
        line = await reader.readline()
    except ConnectionError:
        return None
    return json.loads(line) if line.endswith(b"\n") else None


def receive(connection: socket.socket) -> Any:
    """The next value, behind which nothing may come yet; None at the end."""
    with connection.makefile("rb") as file:
        line = file.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def play(connection: socket.socket, make: Make) -> None:
    """Answers an episode's calls by methods of its environment, which is closed in any case."""
    reader, writer = awaited(asyncio.open_connection(sock=connection, limit=2 * MOST))
    form: EnvironmentForm | None = None
    try:
        while (call := awaited(read(reader))) is not None:
            name = call.pop("call")
            try:
                if name == "reset":
                    random.seed(call["seed"])
                    if (numpy := sys.modules.get("numpy")) is not None:
                        numpy.random.seed(call["seed"] % 2**32)
                    form = make()
                # With "?" for what UTF-8 lacks: no tokenizer reads half a surrogate pair.
                said = packed(getattr(form, name)(**call), errors="replace")
            except BaseException as error:  # the user's code: it must not end the answer
                said = packed({"error": reason(error)}, errors="replace")
            writer.write(said)
            awaited(writer.drain())
    finally:
        if form is not None:
            form.close()


def reason(error: BaseException) -> str:
    """A line: what was raised and where."""
    if isinstance(error, InvalidEnvironment | UserError):
        return str(error)
    said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    of_user = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.replace("\\", "/").endswith(OWN)
        and not frame.filename.startswith("<frozen")
    ]
    if of_user:
        last = of_user[-1]
        said = f"{said[:MOST_REASON]} ({os.path.basename(last.filename)} line {last.lineno})"
    return said[: 2 * MOST_REASON]


class Server:
    """`episodes`: the processes of those that are open, by their number."""

    def __init__(self, control: socket.socket, make: Make, memory_mb: int):
        self.control, self.make, self.memory_mb = control, make, memory_mb
        self.episodes: dict[int, int] = {}

    def serve(self) -> None:
        """Until the control socket ends."""
        try:
            while True:
                data, descriptors, _, _ = socket.recv_fds(self.control, COMMAND.size, 1)
                if len(data) < COMMAND.size:
                    return
                command, number = COMMAND.unpack(data)
                if command == b"o":
                    self.open(number, descriptors[0])
                else:
                    self.end(number)
        finally:
            for number in list(self.episodes):
                self.end(number)

    def open(self, number: int, descriptor: int) -> None:
        try:
            pid = os.fork()
        except OSError:  # its end says that the episode has none
            os.close(descriptor)
            return
        if pid == 0:
            try:
                os.setsid()
                ask_kernel(PR_SET_PDEATHSIG, signal.SIGKILL)
                self.control.close()
                limit(self.memory_mb)
                play(socket.socket(fileno=descriptor), self.make)
            finally:
                os._exit(0)
        os.close(descriptor)
        self.episodes[number] = pid

    def end(self, number: int) -> None:
        """Ends an episode's process and those that it has started."""
        left = {self.episodes.pop(number)} if number in self.episodes else set()
        while left:
            for pid in left:
                kill(pid)
                os.waitpid(pid, 0)
            left = children() - set(self.episodes.values())


def kill(pid: int) -> None:
    """A process and its group, if it leads one."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def children() -> set[int]:
    """The processes whose parent this is: the episodes', and those whose own parent has ended."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return set(map(int, file.read().split()))
    except OSError:
        return set()


def ask_kernel(option: int, value: int) -> None:
    if sys.platform == "linux":
        LIBC.prctl(option, value, 0, 0, 0)


def limit(memory_mb: int) -> None:
    """What this process may allocate from now on; 0: no limit."""
    if not memory_mb or sys.platform != "linux":
        return
    with open("/proc/self/statm", "rb") as file:
        used = int(file.read().split()[5]) * resource.getpagesize()  # data, and the stack
    most, hard = used + (memory_mb << 20), resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main(descriptor: int) -> None:
    control = socket.socket(fileno=descriptor)
    ask_kernel(PR_SET_PDEATHSIG, signal.SIGKILL)
    ask_kernel(PR_SET_CHILD_SUBREAPER, 1)
    setup: dict[str, Any] | None = receive(control)
    if setup is None:
        return
    try:
        make = load(setup)
    except BaseException as error:
        control.sendall(packed({"error": reason(error)}))
        return
    control.sendall(packed({"ready": True}))
    gc.collect()
    gc.freeze()  # else each episode's collections would copy what was imported here
    Server(control, make, int(setup["memory_mb"])).serve()

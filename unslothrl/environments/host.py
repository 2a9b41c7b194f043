"""The actor's side of environments that run in processes of their own: see `server`.

    host = Host(Setup(file="calculator.py", name="Calculator"))
    host.start()                                  # imports the file; UserError where that fails
    async with host.open() as session:
        await session.call("reset", task={...}, seed=7)

Every call has a deadline. Whatever an environment does costs its own episode: `Lost`.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unslothrl.environments import server
from unslothrl.environments.base import Lost
from unslothrl.errors import UserError
from unslothrl.system import variables

SERVER = Path(__file__).with_name("__main__.py")
START_S = 120.0  # to import the file and what it needs
INDEX_S = 600.0  # to build the index of a search
CLOSE_S = 5.0  # to close an environment
GRACE_S = 1.0  # beyond a deadline, for an answer that lies unread while the engine works


@dataclass(frozen=True)
class Setup:
    """What is run, and within which limits."""

    file: str = ""  # "": tools alone
    name: str = ""  # of the class or function in the file
    options: dict[str, Any] = field(default_factory=dict)  # it is made with
    tools: tuple[str, ...] = ()  # files whose functions the policy may call, and tools of ours
    python: str = sys.executable
    deadline_s: float = 60.0  # of a call
    memory_mb: int = 4096  # that an episode may allocate; 0: no limit
    max_calls: int = 0  # of tools in an episode; 0: any number
    most_open: int = 256  # episodes at once
    allow_unsandboxed: bool = False  # the model's code may run with limits only

    @property
    def label(self) -> str:
        return f"environment {self.file}:{self.name}" if self.file else f"tools {self.tools[0]}"


class Session:
    """An episode's environment, as its actor calls it: one call at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deadline_s: float
    ):
        self.reader, self.writer, self.deadline_s = reader, writer, deadline_s
        self.failure = ""  # why nothing more can be asked

    async def call(self, name: str, deadline_s: float | None = None, **arguments: Any) -> Any:
        """-> the answer. Raises Lost."""
        if self.failure:
            raise Lost(self.failure)
        seconds = deadline_s or self.deadline_s
        try:
            self.writer.write(server.packed({"call": name, **arguments}))
            async with asyncio.timeout(seconds + GRACE_S):
                answer = await server.read(self.reader)
            if not isinstance(answer, dict):
                self.failure = "its process has ended"
        except TimeoutError:
            self.failure = f"{name} took longer than {seconds:g} s"
        except (ValueError, TypeError, RecursionError) as error:  # too large, or JSON lacks it
            self.failure = f"{name} cannot be asked or answered ({error})"
        if self.failure or "error" in answer:
            raise Lost(self.failure or str(answer["error"]))
        return answer


class Host:
    """Starts episodes' processes; itself started at the first, and again if it has ended."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.process: subprocess.Popen | None = None
        self.control: socket.socket | None = None
        self.numbers = itertools.count()
        self.places = asyncio.Semaphore(setup.most_open)

    def start(self) -> None:
        """Raises UserError where the file cannot be imported."""
        if self.process is not None and self.process.poll() is None:
            return
        self.close()
        if shutil.which(self.setup.python) is None:
            raise UserError(
                f"environment_python {self.setup.python} is no program: set it to a Python"
            )
        control, theirs = socket.socketpair()
        unsandboxed = {variables.UNSANDBOXED: "1"} if self.setup.allow_unsandboxed else {}
        with theirs:
            self.process = subprocess.Popen(
                [self.setup.python, str(SERVER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **unsandboxed},
            )
        self.control = control
        searches = any(tool.startswith("search:") for tool in self.setup.tools)
        control.settimeout(START_S + INDEX_S * searches)
        try:
            control.sendall(server.packed(asdict(self.setup)))
            answer = server.receive(control)
        except OSError:
            answer = None
        if answer != {"ready": True}:
            self.close()
            why = answer["error"] if answer else "its process has ended, or took too long"
            raise UserError(f"{self.setup.label} cannot be loaded ({why}): fix it")
        control.setblocking(True)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Session]:
        """A new episode's session. It is closed and its process ended, whatever happens; waits
        while `most_open` others are open. Raises Lost."""
        async with self.places:
            number = next(self.numbers)
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    self.start()
                    self.command(b"o", number, theirs)
            except OSError as error:
                ours.close()
                raise Lost(f"no process could be started for it ({error})") from None
            reader, writer = await asyncio.open_connection(sock=ours, limit=2 * server.MOST)
            session = Session(reader, writer, self.setup.deadline_s)
            try:
                yield session
            finally:
                try:
                    with contextlib.suppress(Lost):
                        await session.call("close", CLOSE_S)
                finally:
                    writer.transport.abort()
                    if self.process is not None and self.process.poll() is None:
                        self.command(b"e", number)

    def command(self, name: bytes, number: int, *connections: socket.socket) -> None:
        assert self.control is not None
        message = server.COMMAND.pack(name, number)
        socket.send_fds(self.control, [message], [each.fileno() for each in connections])

    def close(self) -> None:
        control, process = self.control, self.process
        self.control = self.process = None
        if control is not None:
            control.close()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(CLOSE_S)
            process.kill()
            process.wait()

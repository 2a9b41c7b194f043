"""Runs a file of environments: imports it once, and forks a process for every episode.

What hangs, crashes, leaks or grows costs that episode alone. On the control socket come first
{"file", "name", "options", "tools", "memory_mb"}, answered by {"ready": true} or {"error"}; then
commands of a byte and eight: `o` and a number opens an episode on the socket that comes along, `e`
and a number ends its process, and whatever that has started. The end of the control socket ends
everything.
"""

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
from typing import Any

from unslothrl.environments.hosted import frames, loading, session

COMMAND = struct.Struct(">cQ")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LIBC = ctypes.CDLL(None)  # here: after each fork it takes a third of a millisecond


class Server:
    """`episodes`: the processes of those that are open, by their number."""

    def __init__(self, control: socket.socket, make: loading.Make, memory_mb: int):
        self.control, self.make, self.memory_mb = control, make, memory_mb
        self.episodes: dict[int, int] = {}

    def serve(self, wakeup: socket.socket) -> None:
        """Until the control socket ends. `wakeup` is written to when a process has ended."""
        try:
            while True:
                ready, _, _ = select.select([self.control, wakeup], [], [])
                if wakeup in ready:
                    wakeup.recv(4096)
                    self.reap()
                if self.control in ready and not self.obey():
                    return
        finally:
            for number in list(self.episodes):
                self.end(number)

    def obey(self) -> bool:
        """Does the next command; False at the end."""
        data, descriptors, _, _ = socket.recv_fds(self.control, COMMAND.size, 1)
        if data and len(data) < COMMAND.size:
            data += frames.receive(self.control, COMMAND.size - len(data))
        if len(data) < COMMAND.size:
            return False
        command, number = COMMAND.unpack(data)
        if command == b"o":
            self.open(number, descriptors[0])
        else:
            self.end(number)
        return True

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
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self.control.close()
                limit(self.memory_mb)
                session.run(socket.socket(fileno=descriptor), self.make)
            finally:
                os._exit(0)
        os.close(descriptor)
        self.episodes[number] = pid

    def end(self, number: int) -> None:
        pid = self.episodes.pop(number, None)
        if pid is not None:
            kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self.reap()

    def reap(self) -> None:
        """Takes note of what has ended, and ends what an ended episode has left."""
        numbers = {pid: number for number, pid in self.episodes.items()}
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                if pid in numbers:
                    kill(pid)  # the others of its group
                    del self.episodes[numbers[pid]]
        for pid in children() - set(self.episodes.values()):
            kill(pid)


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
    with contextlib.suppress(AttributeError):  # Linux alone
        LIBC.prctl(option, value, 0, 0, 0)


def limit(memory_mb: int) -> None:
    """What this process may allocate from now on; 0: no limit."""
    if not memory_mb:
        return
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[5]) * resource.getpagesize()  # data, and the stack
        most = used + (memory_mb << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main(descriptor: int) -> None:
    control = socket.socket(fileno=descriptor)
    ask_kernel(PR_SET_PDEATHSIG, signal.SIGKILL)
    ask_kernel(PR_SET_CHILD_SUBREAPER, 1)
    setup: dict[str, Any] | None = frames.receive_value(control)
    if setup is None:
        return
    try:
        make = loading.load(setup)
        answer: dict[str, Any] = {"ready": True}
    except BaseException as error:
        answer = {"error": session.reason(error)}
    control.sendall(frames.packed(answer))
    if "error" in answer:
        return
    gc.collect()
    gc.freeze()  # else each episode's collections would copy what was imported here
    listening, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    Server(control, make, int(setup["memory_mb"])).serve(listening)
    sys.stdout.flush()

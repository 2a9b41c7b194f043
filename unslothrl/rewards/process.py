"""A process that computes rewards and can be killed at any time."""

import collections
import contextlib
import os
import secrets
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field

from unslothrl import long_json
from unslothrl.rewards.calls import Call
from unslothrl.rewards.loading import START_S

CHUNK = 1 << 16  # bytes that are read or written at once
MAX_QUEUED_BYTES = 32 << 10  # of calls that a process holds, where it holds more than one
MOST_REPLIED = 64 << 20  # bytes of a line that is still taken for a reply


@dataclass
class SentCall:
    """A call that a process holds."""

    index: int  # of it among the calls of its round
    call: Call
    allowed_s: float  # for the call itself
    is_first: bool  # of its function in its process
    token: str = field(default_factory=lambda: secrets.token_hex(16))  # seals the reply
    line: bytes = field(init=False)

    def __post_init__(self) -> None:
        request = [self.token, self.call.function, self.call.arguments, self.call.named]
        self.line = long_json.dumps(request).encode() + b"\n"


class RewardProcess:
    """The parent's side of a process that runs `process_main` and answers each line with a line.

    It keeps what it has imported. Calls are queued here; the process works on the first.
    """

    def __init__(self, memory_mb: int | None, shows_prints: bool = False):
        """`shows_prints`: what functions print goes to this process's stderr."""
        arguments = [str(memory_mb or 0), *(["shows-prints"] if shows_prints else [])]
        self.child = subprocess.Popen(
            [sys.executable, "-m", "unslothrl.rewards.process_main", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if shows_prints else subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # so that what it starts is killed with it
        )
        self.queue: collections.deque[SentCall] = collections.deque()
        self.started = self.deadline = 0.0  # of the first call, on the monotonic clock
        self.imported: set[str] = set()  # functions
        self.answered: set[str] = set()  # functions that have answered at least once
        self.unsent = bytearray()  # what its pipe has no room for, which may hold a page or less
        self.partial_line = bytearray()
        assert self.child.stdin is not None and self.child.stdout is not None
        self.requests, self.replies = self.child.stdin.fileno(), self.child.stdout.fileno()
        os.set_blocking(self.requests, False)

    def has_stirred(self) -> bool:
        """Whether it has ended, or has written anything, while it held no call."""
        poller = select.poll()
        poller.register(self.replies, select.POLLIN)
        return bool(self.partial_line or poller.poll(0)) or self.child.poll() is not None

    def has_begun_one(self) -> bool:
        """Whether its first call has begun, and is the first that it has ever begun."""
        return self.queue[0].call.function in self.imported and not self.answered

    def hold(self, sent: SentCall) -> bool:
        """Takes a call, which `write` sends; False where it has no room for it."""
        waiting = sum(len(each.line) for each in self.queue)
        if self.queue and waiting + len(sent.line) > MAX_QUEUED_BYTES:
            return False
        self.queue.append(sent)
        self.unsent += sent.line
        if len(self.queue) == 1:
            self.start_clock()
        return True

    def write(self) -> None:
        """Writes what its pipe takes now, without waiting: while waiting for a stalled process, the
        deadlines of others would be missed. That it has ended is read from the other pipe."""
        try:
            while self.unsent:
                del self.unsent[: os.write(self.requests, self.unsent[:CHUNK])]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.unsent.clear()

    def start_clock(self) -> None:
        """Sets the deadline of the first call, which counts from the import of its function."""
        if self.queue:
            first = self.queue[0]
            self.started = time.monotonic()
            is_imported = first.call.function in self.imported
            self.deadline = self.started + (first.allowed_s if is_imported else START_S)

    def record_import(self) -> None:
        """The function of the first call has been imported: its deadline counts from now."""
        self.imported.add(self.queue[0].call.function)
        self.start_clock()

    def read(self) -> list[bytes] | None:
        """The lines that have arrived whole, or are too long; None when the process has ended."""
        data = os.read(self.replies, CHUNK)
        self.partial_line += data
        if b"\n" not in data and len(self.partial_line) <= MOST_REPLIED:
            return [] if data else None
        *lines, rest = bytes(self.partial_line).split(b"\n")
        self.partial_line = bytearray(rest)
        return lines or [rest]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, 9)
        self.child.wait()

    def close(self) -> None:
        """After `kill`, when nothing reads its pipes any more."""
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None
            pipe.close()

"""The levels of the sandbox, best first, and how a program is started at each."""

import functools
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unslothrl.sandbox.program import Limits

SECURE = ("bubblewrap", "namespaces")
LEVELS = (*SECURE, "none")
CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 6, 7, 21  # linux/capability.h
LAST_UIDS, UIDS = 2_000_000_000, 1 << 26  # users from there on, which belong to no account


@dataclass(frozen=True)
class LevelStart:
    """How to start a program at a level."""

    command: list[str]  # what stands before the interpreter
    inherited: list[int]  # file descriptors, to be closed afterwards
    prepare: Callable[[], None] | None  # runs in the forked child
    harness: str
    uid: int | None  # the user that the harness becomes
    count_files: Callable[[], int] | None = None  # in its folder, where that has no limit


def start(level: str, limits: Limits) -> LevelStart:
    """OSError where this machine lacks what the level needs."""
    # Imported here: the names of the levels are read on systems that have none of this.
    from unslothrl.sandbox import bubblewrap, namespaces, seccomp, view

    if sys.platform == "linux":
        namespaces.no_huge_pages()
    if level == "none":
        return LevelStart([], [], limits_only(), str(view.harness()), None)
    root = is_root()
    uid = LAST_UIDS + secrets.randbelow(UIDS) if root else None  # no other process has it
    threads = can_count_threads(uid)
    if level == "bubblewrap":
        path = shutil.which("bwrap")
        if path is None:
            raise OSError("there is no bwrap")
        command, inherited = bubblewrap.command(path, limits.folder_mb, root, threads)
        count = functools.partial(bubblewrap.count_files, inherited[-1])
        return LevelStart(command, inherited, None, view.HARNESS, uid, count)
    view.read_only()  # looked up now: in the child it is too late
    view.harness_text()
    seccomp.bpf_filter(threads)
    enter = functools.partial(namespaces.enter, limits, root, threads)
    return LevelStart([], [], functools.partial(or_report, enter), view.HARNESS, uid)


def or_report(prepare: Callable[[], None]) -> None:
    """In the forked child: where `prepare` fails, the reason is written to the program's stderr."""
    try:
        prepare()
    except OSError as error:
        os.write(2, str(error).encode())
        os._exit(1)


def limits_only() -> Callable[[], None] | None:
    """What level none has on Linux: the filter of system calls, and an end with this process."""
    from unslothrl.sandbox import namespaces, seccomp

    known = sys.platform == "linux" and platform.machine() in seccomp.COLUMN
    threads = can_count_threads(None)

    def prepare() -> None:
        namespaces.die_with_parent()
        namespaces.filter_calls(threads, own_pid=os.getpid())

    return functools.partial(or_report, prepare) if known else None


@functools.cache
def is_root() -> bool:
    """Whether we may make namespaces and change users without a user namespace."""
    needed = sum(1 << bit for bit in (CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN))
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        ids = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff")), 0)
    ranges = [tuple(map(int, line.split())) for line in ids]
    has_uids = any(first <= LAST_UIDS and first + n >= LAST_UIDS + UIDS for first, _, n in ranges)
    return os.geteuid() == 0 and held & needed == needed and has_uids


def can_count_threads(uid: int | None) -> bool:
    """Whether the kernel holds a program to its limit of threads, which it counts by user.

    With a user of its own, yes. User 0 has no limit, not even as another inside a user namespace;
    and before Linux 5.14 all that our own user runs is counted. There a program gets no threads.
    """
    if uid is not None or os.geteuid() == 0:
        return uid is not None
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    return release >= (5, 14)

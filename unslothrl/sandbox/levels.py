"""How well a program can be sandboxed here, best first; each is tried before it is trusted."""

import functools
import os
import platform
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unslothrl.errors import UserError
from unslothrl.sandbox.program import Limits, Overloaded, Program

SECURE = ("bubblewrap", "namespaces")
LEVELS = (*SECURE, "none")
CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 6, 7, 21  # linux/capability.h
LAST_UIDS, UIDS = 2_000_000_000, 1 << 26  # users from there on, which belong to no account


@dataclass(frozen=True)
class Start:
    """How to start a program at a level."""

    command: list[str]  # what stands before the interpreter
    inherited: list[int]  # file descriptors, to be closed afterwards
    prepare: Callable[[], None] | None  # runs in the forked child
    harness: str
    uid: int | None  # the user that the harness becomes
    count_files: Callable[[], int] | None = None  # in its folder, where that has no limit


def start(level: str, limits: Limits) -> Start:
    """OSError where this machine lacks what the level takes."""
    from unslothrl.sandbox import bubblewrap, namespaces, seccomp, view

    if sys.platform == "linux":
        namespaces.no_huge_pages()
    if level == "none":
        return Start([], [], limits_only(), str(view.harness()), None)
    root = is_root()
    uid = LAST_UIDS + secrets.randbelow(UIDS) if root else None  # nobody else's
    threads = can_count_threads(uid)
    if level == "bubblewrap":
        path = bubblewrap.find()
        if path is None:
            raise OSError("there is no bwrap 0.8 or newer")
        command, inherited = bubblewrap.command(path, limits.folder_mb, root, threads)
        count = functools.partial(bubblewrap.count_files, inherited[-1])
        return Start(command, inherited, None, view.HARNESS, uid, count)
    view.read_only()  # looked up now: in the child it is too late
    view.harness_text()
    seccomp.program(threads)
    enter = functools.partial(namespaces.enter, limits, root, threads)
    return Start([], [], functools.partial(or_say_why, enter), view.HARNESS, uid)


def or_say_why(prepare: Callable[[], None]) -> None:
    """In the forked child: where `prepare` fails, the reason goes where the program's errors go."""
    try:
        prepare()
    except OSError as error:
        os.write(2, str(error).encode())
        os._exit(1)


def limits_only() -> Callable[[], None] | None:
    """What level none has too, on Linux: the filter of system calls, and an end with ours."""
    from unslothrl.sandbox import namespaces, seccomp

    known = sys.platform == "linux" and platform.machine() in seccomp.COLUMN
    threads = can_count_threads(None)

    def prepare() -> None:
        namespaces.die_with_parent()
        namespaces.filter_calls(threads, own_pid=os.getpid())

    return functools.partial(or_say_why, prepare) if known else None


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


working: set[str] = set()  # levels at which a program has run in this process


def available(level: str) -> str | None:
    """None if a program runs at this level, else why it does not. Overloaded where nobody can say.

    Only a level that works is remembered.
    """
    from unslothrl.sandbox.run import run

    if level in working:
        return None
    try:
        outcome = run(Program("print(40 + 2)"), Limits(), level)
    except Overloaded:
        raise
    except OSError as error:
        return " ".join(str(error).split())
    if outcome.stdout != "42\n":
        return f"{outcome.stopped}: {outcome.stderr[-200:]}"
    working.add(level)
    return None


def choose(allow_unsandboxed: bool = False) -> str:
    """The best level here. UserError where there is none, unless programs may run without, and
    where the machine is too busy to try one: a better level is never given up for that."""
    why = []
    for level in SECURE:
        try:
            reason = available(level)
        except Overloaded as error:
            raise UserError(
                f"reward code: sandbox {level} could not be tried ({one_line(error)}): the machine "
                "is overloaded: start again when it is less busy"
            ) from None
        if reason is None:
            return level
        why.append(f"{level}: {one_line(reason)}")
    if allow_unsandboxed:
        return "none"
    raise UserError(
        f"reward code: programs cannot be sandboxed here ({'; '.join(why)}): install bubblewrap "
        "(apt install bubblewrap), or set --allow_unsandboxed_code where nothing can be lost"
    )


def require(level: str) -> None:
    """UserError where the level that a run has chosen elsewhere cannot be had here."""
    try:
        reason = available(level)
    except Overloaded as error:
        reason = str(error)
    if reason is not None:
        raise UserError(
            f"reward code: this run's programs are sandboxed by {level}, which does not work on "
            f"{platform.node()} ({one_line(reason)}): make it work there, or leave that machine out"
        )


def one_line(text: object) -> str:
    return " ".join(str(text).split())

"""A program, its limits and its result; the levels of the sandbox, best first, and how a program is
started at each."""

import contextlib
import functools
import json
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.sandbox import namespaces, seccomp, view

START_S = 60.0  # for a sandbox to start, which does not count as its program's time
SECURE = ("bubblewrap", "namespaces")
LEVELS = (*SECURE, "none")
CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 6, 7, 21  # linux/capability.h
LAST_UIDS, UIDS = 2_000_000_000, 1 << 26  # users from there on, which belong to no account


@dataclass(frozen=True)
class Limits:
    """Of one program, from its beginning; `wall_s` later all its processes have ended."""

    cpu_s: float = 5.0
    wall_s: float = 10.0
    memory_mb: int = 1024  # address space
    threads: int = 64  # it can start no process at all
    file_mb: int = 16  # the largest file
    folder_mb: int = 64  # its folder in all, held in memory
    files: int = 4096  # files, folders and links in there
    output_kb: int = 1024  # of stdout, and of a function's result


@dataclass(frozen=True)
class Program:
    """A program's text and what it is given: stdin, or a function to call with arguments.

    `function` may be one of the program's own or a method of its class `Solution`. Arguments and
    result are JSON values.
    """

    text: str
    stdin: str = ""
    function: str | None = None
    arguments: tuple = ()


@dataclass(frozen=True)
class ProgramResult:
    """`stopped` says what ended a program that did not end well: "exit 1", "signal 9", "took longer
    than 5 s", "wrote more than 1024 KB"; None: it ran to its end."""

    stdout: str = ""
    stderr: str = ""  # its last lines
    result: Any = None  # what the function returned
    has_result: bool = False
    stopped: str | None = None
    seconds: float = 0.0  # since it began


@dataclass(frozen=True)
class LevelStart:
    command: list[str]  # what stands before the interpreter
    inherited: list[int]  # file descriptors
    prepare: Callable[[], None] | None  # runs in the forked child
    harness: str
    uid: int | None  # the user that the harness becomes
    count_files: Callable[[], int] | None = None  # in its folder, where that has no limit


def start(stack: contextlib.ExitStack, level: str, limits: Limits) -> LevelStart:
    """OSError where this machine lacks what the level needs. `stack` closes what it opens."""
    if sys.platform != "linux":
        raise OSError(f"no level works on {sys.platform}")
    namespaces.no_huge_pages()
    if level == "none":
        return LevelStart([], [], limits_only(), str(view.SOURCE), None)
    root = is_root()
    uid = LAST_UIDS + secrets.randbelow(UIDS) if root else None  # no other process has it
    threads = can_count_threads(uid)
    if level == "bubblewrap":
        path = shutil.which("bwrap")
        if path is None:
            raise OSError("there is no bwrap")
        command, inherited = bubblewrap(stack, path, limits.folder_mb, root, threads)
        count = functools.partial(files_of_bubblewrap, inherited[-1])
        return LevelStart(command, inherited, None, view.HARNESS, uid, count)
    view.read_only()  # looked up now: in the child it is too late
    view.harness_text()
    seccomp.bpf_filter(threads)
    enter = functools.partial(namespaces.enter, limits.folder_mb, limits.files, root, threads)
    return LevelStart([], [], functools.partial(or_report, enter), view.HARNESS, uid)


def or_report(prepare: Callable[[], None]) -> None:
    """In the forked child: where `prepare` fails, the reason is written to the program's stderr."""
    try:
        prepare()
    except OSError as error:
        os.write(2, str(error).encode())
        os._exit(1)


def limits_only() -> Callable[[], None] | None:
    """What level none has: the filter of system calls, and an end with this process."""
    threads = can_count_threads(None)

    def prepare() -> None:
        namespaces.die_with_parent()
        namespaces.filter_calls(threads, own_pid=os.getpid())

    return functools.partial(or_report, prepare) if platform.machine() in seccomp.COLUMN else None


@functools.cache
def is_root() -> bool:
    """Whether we may make namespaces and change users without a user namespace."""
    needed = sum(1 << bit for bit in (CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN))
    lines = Path("/proc/self/status").read_text().splitlines()
    ids = Path("/proc/self/uid_map").read_text().splitlines()
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff")), 0)
    ranges = [tuple(map(int, line.split())) for line in ids]
    has_uids = any(first <= LAST_UIDS and first + n >= LAST_UIDS + UIDS for first, _, n in ranges)
    return os.geteuid() == 0 and held & needed == needed and has_uids


def can_count_threads(uid: int | None) -> bool:
    """Whether the kernel holds a program to its limit of threads, which it counts by user.

    Not as user 0, which has no limit, not even as another inside a user namespace: there a program
    gets no threads.
    """
    return uid is not None or os.geteuid() != 0


def files_of_bubblewrap(info_fd: int) -> int:
    """How many files and links a program's folder holds, which bwrap does not limit; 0 before it
    is there, and where this user may not see it."""
    try:
        pid = json.loads(os.pread(info_fd, 4096, 0))["child-pid"]
        folder = os.statvfs(f"/proc/{pid}/root{view.FOLDER}")
    except (OSError, ValueError):
        return 0
    return folder.f_files - folder.f_ffree


def bubblewrap(
    stack: contextlib.ExitStack, bwrap: str, folder_mb: int, is_root: bool, threads: bool
) -> tuple[list[str], list[int]]:
    """The command line of `bwrap` (0.8 or newer) that gives a program its view.

    -> (what stands before the program's own command, file descriptors it is to inherit: the last
    is where bwrap writes of the sandbox)."""
    contents = (seccomp.bpf_filter(threads), view.harness_text(), b"")
    filter_fd, harness_fd, info_fd = (view.memory_fd(stack, content) for content in contents)
    paths, links = view.read_only()
    words = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--hostname", "sandbox", "--cap-drop", "ALL"]
    if is_root:  # the harness becomes another user; without a user namespace it can
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--uid", str(view.USER), "--gid", str(view.USER)]
    words += ["--perms", "1777", "--size", str(folder_mb << 20), "--tmpfs", view.FOLDER]
    folders = {str(each) for path in (*paths, *view.DEVICES) for each in Path(path).parents}
    for folder in sorted(folders - {"/", view.FOLDER}):  # bwrap would make them for root alone
        words += ["--perms", "0755", "--dir", folder]
    for path in paths:
        words += ["--ro-bind", path, path]
    for path, target in links:
        words += ["--symlink", target, path]
    for path in view.DEVICES:
        words += ["--dev-bind", path, path]  # the filter refuses to change their modes and times
    words += ["--perms", "0444", "--ro-bind-data", str(harness_fd), view.HARNESS]
    words += ["--remount-ro", "/"]
    for name, value in view.ENVIRONMENT.items():
        words += ["--setenv", name, value]
    words += ["--chdir", view.FOLDER, "--info-fd", str(info_fd), "--seccomp", str(filter_fd), "--"]
    return words, [filter_fd, harness_fd, info_fd]

"""The same view as bubblewrap's, made by hand: for machines without it.

`enter` runs in a forked child before it becomes the program. Two more processes stay: one waits
outside; one is the first of the new pid namespace, which the program cannot signal, and with which
everything in there ends. Both die with the process that called `run`.

Source: namespaces(7), user_namespaces(7), pid_namespaces(7), pivot_root(2), mount_setattr(2).
"""

import ctypes
import functools
import os
import signal
import struct
from pathlib import Path
from typing import NoReturn

from unslothrl.sandbox import seccomp, view

# linux/sched.h
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
# linux/mount.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_CLOSE_RANGE, SYS_MOUNT_SETATTR = 436, 442  # on every architecture
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_THP_DISABLE = 1, 38, 22, 41
SECCOMP_MODE_FILTER = 2

OLD = "/old"  # where the machine's root stands while the view is made

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def enter(folder_mb: int, files: int, is_root: bool, threads: bool) -> None:
    """Makes this process the program's, with its limits. Only in a forked child. OSError."""
    die_with_parent()
    unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS, is_root)
    first = os.fork()
    if first:
        wait_for(first)
    die_with_parent()
    make_view(folder_mb, files)
    libc.sethostname(b"sandbox", 7)
    program = os.fork()
    if program:
        wait_for(program)
    os.setsid()  # away from the process group of those who wait: it may signal its own
    filter_calls(threads)


def unshare(spaces: int, is_root: bool) -> None:
    """Moves this process into new namespaces, where we are not root into a user namespace too."""
    uid, gid = os.getuid(), os.getgid()
    check(libc.unshare(spaces | (0 if is_root else CLONE_NEWUSER)), "unshare")
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{view.USER} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{view.USER} {gid} 1")


def die_with_parent() -> None:
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


@functools.cache
def no_huge_pages() -> None:
    """For this process and all that it starts: a mapped piece of a huge page keeps the whole of it
    in memory, which the limit of address space does not count."""
    check(libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "prctl")


def wait_for(child: int) -> NoReturn:
    """Ends as the child does, holding no file open meanwhile: readers wait for the last copy."""
    libc.syscall(SYS_CLOSE_RANGE, 0, 2**32 - 1, 0)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)  # which the first of a namespace does not get
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [word.encode() or None for word in (source, target, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def make_view(folder_mb: int, files: int) -> None:
    """Replaces the root of this mount namespace by `view`, read-only but for the folder."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    os.mkdir("/tmp" + OLD)
    pivot_root("/tmp", "/tmp" + OLD)
    os.mkdir("/new")
    mount("tmpfs", "/new", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    os.mkdir("/new" + view.FOLDER)
    size = f"mode=1777,size={folder_mb}m,nr_inodes={files}"
    mount("tmpfs", "/new" + view.FOLDER, "tmpfs", MS_NOSUID | MS_NODEV, size)
    paths, links = view.read_only()  # known since before the root moved
    for path in paths:
        bind(OLD + path, "/new" + path)
    for path, target in links:
        os.symlink(target, "/new" + path)
    for path in view.DEVICES:
        bind(OLD + path, "/new" + path, is_device=True)
    Path("/new" + view.HARNESS).write_bytes(view.harness_text())  # known since before, too
    os.chdir("/new")
    pivot_root(".", ".")  # the old root now lies over the new one
    check(libc.umount2(b".", MNT_DETACH), "umount the old root")
    mount("none", "/", flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(view.FOLDER)


def bind(source: str, target: str, is_device: bool = False) -> None:
    """`source` at `target`, read-only with all that is mounted below it."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    mount(source, target, flags=MS_BIND | MS_REC)
    attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | (0 if is_device else MOUNT_ATTR_NODEV)
    request = struct.pack("=QQQQ", attributes, 0, 0, 0)
    result = libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, request, len(request)
    )
    check(result, f"mount_setattr {target}")


def pivot_root(new: str, old: str) -> None:
    number = SYS_PIVOT_ROOT[os.uname().machine]
    check(libc.syscall(number, new.encode(), old.encode()), "pivot_root")


def filter_calls(threads: bool, own_pid: int | None = None) -> None:
    """Puts the filter of system calls on this process and on all that it becomes."""
    code = seccomp.bpf_filter(threads, own_pid=own_pid)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Filter(ctypes.Structure):  # struct sock_fprog
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    whole = Filter(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0), "seccomp")

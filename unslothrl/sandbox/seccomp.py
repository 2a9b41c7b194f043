"""A filter of system calls, as the kernel takes it: a classic BPF program.

What Python, its standard library and numpy need is allowed. Refused are other processes, sockets
but for pairs, mounts and namespaces, keys, landlock, io_uring, memory that is shared or belongs to
no process, modes, times, owners and attributes of files, locks and leases, disks, clocks,
priorities and further filters: with EPERM, or with ENOSYS where a library is to believe that the
kernel is older. Another architecture's calls end the process.

Source: seccomp(2), linux/filter.h, seccomp.h, audit.h, linux/include/uapi (asm/unistd_64.h,
asm-generic/unistd.h, and what each constant names).
"""

import errno
import functools
import platform
import struct
from typing import NamedTuple

# Numbers on (x86_64, aarch64); None: not there.
Numbers = tuple[int | None, int | None]

ALLOWED: dict[str, Numbers] = {
    # files
    "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "lseek": (8, 62),
    "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "openat": (257, 56), "creat": (85, None), "close_range": (436, 436), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59),
    "sendfile": (40, 71), "copy_file_range": (326, 285), "truncate": (76, 45),
    "ftruncate": (77, 46), "fallocate": (285, 47), "umask": (95, 166),
    # folders and names
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79),
    "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "getdents": (78, None),
    "getdents64": (217, 61), "readlink": (89, None), "readlinkat": (267, 78), "getcwd": (79, 17),
    "chdir": (80, 49), "fchdir": (81, 50), "mkdir": (83, None), "mkdirat": (258, 34),
    "rmdir": (84, None), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, None), "linkat": (265, 37), "unlink": (87, None), "unlinkat": (263, 35),
    "symlink": (88, None), "symlinkat": (266, 36),
    # memory
    "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "brk": (12, 214),
    # waiting
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "eventfd": (284, None), "eventfd2": (290, 19), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "pause": (34, None), "sched_yield": (24, 124),
    "restart_syscall": (219, 128),
    # time
    "time": (201, None), "gettimeofday": (96, 169), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "times": (100, 153), "getitimer": (36, 102), "setitimer": (38, 103),
    "alarm": (37, None),
    # signals
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    # threads, the process's end, another program in its place
    "futex": (202, 98), "set_robust_list": (273, 99), "set_tid_address": (218, 96),
    "rseq": (334, 293), "gettid": (186, 178), "arch_prctl": (158, None), "exit": (60, 93),
    "exit_group": (231, 94), "execve": (59, 221), "wait4": (61, 260), "waitid": (247, 95),
    # the process itself; `set...id`: the harness gives up root
    "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getgroups": (115, 158), "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159),
    "getrlimit": (97, 163), "setrlimit": (160, 164), "getrusage": (98, 165),
    "getpriority": (140, 141), "capget": (125, 90), "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "sched_rr_get_interval": (148, 127), "sysinfo": (99, 179), "uname": (63, 160),
    "getcpu": (309, 168), "getrandom": (318, 278),
    # a pair of sockets
    "sendto": (44, 206), "recvfrom": (45, 207), "shutdown": (48, 210), "getsockname": (51, 204),
    "getpeername": (52, 205), "getsockopt": (55, 209),
    # newer: shadow stacks, mseal
    "map_shadow_stack": (453, 453), "mseal": (462, 462),
}  # fmt: skip

# From 424 on, calls have the same number everywhere, and libraries do without those that they do
# not find: ENOSYS. clone3, which hides its flags from a filter, is one of them.
NEW = 424


class Condition(NamedTuple):
    """`argument & mask` is one of `values`. The kernel reads 32 bits of each of these arguments."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


class Conditional(NamedTuple):
    """A call that is allowed where all conditions hold."""

    numbers: tuple[int, int]
    conditions: tuple[Condition, ...]


# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: no locks, no leases,
# no signals about files, no larger pipes
FCNTL = (0, 1, 2, 3, 4, 1030, 1032)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ, PR_GET_SECCOMP,
# PR_GET_TIMERSLACK, PR_GET_NO_NEW_PRIVS, PR_GET_THP_DISABLE
PRCTL = (2, 3, 15, 16, 23, 21, 30, 39, 42)
# MADV_NORMAL to MADV_DONTNEED, FREE, DONTFORK, DOFORK, DONTDUMP, DODUMP, GUARD_INSTALL and _REMOVE
MADVISE = (0, 1, 2, 3, 4, 8, 10, 11, 16, 17, 102, 103)
# MAP_PRIVATE | MAP_ANONYMOUS; MAP_SHARED, MAP_PRIVATE and MAP_SHARED_VALIDATE of a file. Anonymous
# memory that is shared stays whole while one page of it is mapped: RLIMIT_AS would not see it.
# The mask: MAP_HUGETLB | MAP_LOCKED | MAP_ANONYMOUS | MAP_TYPE.
MMAP, MMAP_MASK = (0x22, 0x01, 0x02, 0x03), 0x4202F
CLONE_THREAD = 0x10000
AF_UNIX, SOCK_STREAM, SOCK_TYPE_MASK = 1, 1, 0xF

CONDITIONAL = (
    Conditional((9, 222), (Condition(3, MMAP, MMAP_MASK),)),  # mmap
    Conditional((28, 233), (Condition(2, MADVISE),)),  # madvise
    Conditional((72, 25), (Condition(1, FCNTL),)),  # fcntl
    Conditional((16, 29), (Condition(1, IOCTL),)),  # ioctl
    Conditional((157, 167), (Condition(0, PRCTL),)),  # prctl
    Conditional((302, 261), (Condition(0, (0,)),)),  # prlimit64; 0: of the program itself
    Conditional((203, 122), (Condition(0, (0,)),)),  # sched_setaffinity
    Conditional(  # socketpair
        (53, 199), (Condition(0, (AF_UNIX,)), Condition(1, (SOCK_STREAM,), SOCK_TYPE_MASK))
    ),
)
CLONE = Conditional((56, 220), (Condition(0, (CLONE_THREAD,), CLONE_THREAD),))
SIGNALS = ((62, 129), (234, 131))  # kill, tgkill
MSYNC = (26, 227)  # does nothing, as with any file in memory


def conditional(threads: bool, own_pid: int | None) -> list[Conditional]:
    """`threads`: it may start some. `own_pid`: all that it may signal; None: what it sees."""
    own = () if own_pid is None else (Condition(0, (own_pid,)),)
    signals = [Conditional(numbers, own) for numbers in SIGNALS]
    return [*CONDITIONAL, *([CLONE] if threads else []), *signals]


AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}

# linux/bpf_common.h and linux/seccomp.h
LOAD, JUMP_EQUAL, JUMP_AT_LEAST = 0x20, 0x15, 0x35
RETURN, AND = 0x06, 0x54
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCH, ARGUMENTS = 0, 4, 16  # offsets in seccomp_data; an argument has 8 bytes

Line = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


@functools.cache
def bpf_filter(
    threads: bool = True, machine: str | None = None, own_pid: int | None = None
) -> bytes:
    """The filter for this machine: with threads or without, and signals to `own_pid` alone where
    that is given. OSError where the machine's calls are unknown."""
    machine = machine or platform.machine()
    if machine not in COLUMN:
        raise OSError(errno.ENOSYS, f"no filter of system calls for {machine}")
    column = COLUMN[machine]
    lines: list[Line] = [
        (LOAD, 0, 0, ARCH),
        (JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    for call in conditional(threads, own_pid):
        lines += rule(call, column)
    lines += [(JUMP_EQUAL, 0, 1, MSYNC[column]), refuse(0)]
    for numbers in ALLOWED.values():
        if (number := numbers[column]) is not None:
            lines += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    lines += [(JUMP_AT_LEAST, 0, 1, NEW), refuse(errno.ENOSYS), refuse(errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def rule(call: Conditional, column: int) -> list[Line]:
    """The whole verdict on a call that depends on its arguments; others pass by."""
    tests: list[Line] = []
    for condition in reversed(call.conditions):
        test: list[Line] = [(LOAD, 0, 0, ARGUMENTS + 8 * condition.argument)]
        if condition.mask != 0xFFFFFFFF:
            test.append((AND, 0, 0, condition.mask))
        # each value jumps over the others and the refusal after them
        count = len(condition.values)
        test += [(JUMP_EQUAL, count - i, 0, value) for i, value in enumerate(condition.values)]
        tests = [*test, refuse(errno.EPERM), *tests]
    tests.append((RETURN, 0, 0, ALLOW))
    return [(JUMP_EQUAL, 0, len(tests), call.numbers[column]), *tests]


def refuse(error: int) -> Line:
    """Fails a call with this error; 0: it does nothing and succeeds."""
    return (RETURN, 0, 0, ERROR | error)

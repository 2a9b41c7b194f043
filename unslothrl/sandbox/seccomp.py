"""A filter of system calls, as the kernel takes it: a classic BPF program.

Refused with EPERM: starting a process (threads where they can be counted), sockets but for stream
pairs, looking into or limiting other processes, namespaces and mounts, keys, kernel modules, BPF,
io_uring and AIO, System V memory, memory files, modes, times and attributes of files, locks,
flushing disks, clocks, huge pages. `clone3` hides its flags from a filter, so it does not exist
(ENOSYS) and libraries fall back to `clone`; calls newer than this table do not exist either.
Another architecture's calls end the process.

Source: seccomp(2), linux/filter.h, linux/seccomp.h; numbers from asm/unistd_64.h and
asm-generic/unistd.h.
"""

import errno
import functools
import platform
import struct

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}

# Numbers on (x86_64, aarch64); None: not there.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None),
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "syslog": (103, 116), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "personality": (135, 92),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "vhangup": (153, 58),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "vmsplice": (278, 75), "io_setup": (206, 0), "sync": (162, 81), "syncfs": (306, 267),
    "flock": (73, 32), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
}  # fmt: skip
CLONE = (56, 220)
CLONE3 = (435, 435)
CLONE_THREAD = 0x10000
SOCKETPAIR, AF_UNIX, SOCK_STREAM, SOCK_KIND = (53, 199), 1, 1, 0xF
PRCTL, PR_SET_THP_DISABLE = (157, 167), 41
PRLIMIT = (302, 261)
NEW = 450  # calls from here on have the same numbers everywhere; those that libraries need:
NEW_ALLOWED = (453, 454, 455, 456, 462)  # shadow stacks, futexes, mseal
X32 = 0x40000000  # the bit of x86-64's other calling convention

# linux/bpf_common.h and linux/seccomp.h
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_SET, RETURN, AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
ALLOW, KILL = 0x7FFF0000, 0x80000000
NUMBER, ARCH, ARGUMENT_0, ARGUMENT_1 = 0, 4, 16, 24  # offsets in seccomp_data


@functools.cache
def program(threads: bool = True, machine: str | None = None) -> bytes:
    """The filter for this machine, with threads or without. OSError where its calls are unknown."""
    machine = machine or platform.machine()
    if machine not in COLUMN:
        raise OSError(errno.ENOSYS, f"no filter of system calls for {machine}")
    column = COLUMN[machine]
    lines = [
        (LOAD, 0, 0, ARCH),
        (JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    if machine == "x86_64":
        lines += [(JUMP_AT_LEAST, 0, 1, X32), refuse(errno.EPERM)]
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            lines += [(JUMP_EQUAL, 0, 1, number), refuse(errno.EPERM)]
    lines += [(JUMP_EQUAL, 0, 1, CLONE3[column]), refuse(errno.ENOSYS)]
    eperm = refuse(errno.EPERM)
    allow = (RETURN, 0, 0, ALLOW)
    lines += [(JUMP_EQUAL, 0, 6, SOCKETPAIR[column])]
    lines += [(LOAD, 0, 0, ARGUMENT_0), (JUMP_EQUAL, 0, 3, AF_UNIX), (LOAD, 0, 0, ARGUMENT_1)]
    lines += [(AND, 0, 0, SOCK_KIND), (JUMP_EQUAL, 1, 0, SOCK_STREAM), eperm]
    lines += [(LOAD, 0, 0, NUMBER)]
    lines += [(JUMP_EQUAL, 0, 3, PRCTL[column]), (LOAD, 0, 0, ARGUMENT_0)]
    lines += [(JUMP_EQUAL, 0, 1, PR_SET_THP_DISABLE), eperm, (LOAD, 0, 0, NUMBER)]
    lines += [(JUMP_EQUAL, 0, 3, PRLIMIT[column]), (LOAD, 0, 0, ARGUMENT_0)]
    lines += [(JUMP_EQUAL, 1, 0, 0), eperm, (LOAD, 0, 0, NUMBER)]  # 0: of the program itself
    for number in NEW_ALLOWED:
        lines += [(JUMP_EQUAL, 0, 1, number), allow]
    lines += [(JUMP_AT_LEAST, 0, 1, NEW), refuse(errno.ENOSYS)]
    lines += [(JUMP_EQUAL, 0, 3, CLONE[column]), (LOAD, 0, 0, ARGUMENT_0)]
    lines += [(JUMP_SET, 1, 0, CLONE_THREAD if threads else 0), eperm, allow]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def refuse(error: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, 0x00050000 | error)

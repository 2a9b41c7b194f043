"""Programs that try to do harm, and what each may come to: shared by the sandbox's tests.

A program prints "ESCAPED" where it reaches what it must not. {secret} is a file of ours, {folder} a
folder of ours, {pid} our process, {port} a port that we listen on, {new} a path where nothing is.
"""

import re
from dataclasses import dataclass

TIME = r"took longer than .* s"
OUTPUT = r"wrote more than \d+ KB"
EXIT = r"exit \d+"
SIGNAL = r"signal \d+"


@dataclass(frozen=True)
class Hostile:
    text: str
    ends: str = ""  # a pattern for `stopped`; "": it ends well
    prints: str = ""  # a pattern for stdout
    everywhere: bool = False  # contained without a sandbox too, by the limits and the filter

    def fits(self, stopped: str | None, stdout: str) -> bool:
        ended = re.fullmatch(self.ends, stopped or "") is not None
        return ended and re.fullmatch(self.prints, stdout, re.DOTALL) is not None


# what follows stands before the programs that count refusals
TRY = """
def attempt(call, *arguments):
    try:
        call(*arguments)
        print("ESCAPED", arguments)
    except OSError as error:
        print("refused" if error.errno in (1, 38) else error)
"""

PROGRAMS = {
    "fork_bomb": Hostile("import os\nwhile True: os.fork()", EXIT, everywhere=True),
    "fork_and_stay": Hostile(
        """
import os
try:
    if os.fork() == 0:
        os.setsid()
        while True: pass
except OSError as error:
    print("refused", error.errno)
""",
        prints="refused 1\n",
        everywhere=True,
    ),
    "vfork_and_spawn": Hostile(
        """
import os, subprocess
for start in (lambda: subprocess.Popen(["/bin/sleep", "100"]),
              lambda: os.posix_spawn("/bin/sleep", ["sleep", "100"], {}),
              lambda: os.system("sleep 100") and 1 / 0):
    try:
        start()
        print("ESCAPED")
    except (OSError, ZeroDivisionError):
        print("refused")
""",
        prints="(refused\n){3}",
        everywhere=True,
    ),
    "clone_by_hand": Hostile(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(56, 17, 0, 0, 0, 0), libc.syscall(435, 0, 0), libc.syscall(0x40000000 + 57))
""",
        prints="-1 -1 -1\n",
        everywhere=True,
    ),
    "thread_bomb": Hostile(
        """
import threading, time
threading.stack_size(32768)
started = 0
try:
    while started < 5000:
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        started += 1
    print("ESCAPED")
except RuntimeError:
    print("refused")
""",
        prints="refused\n",
        everywhere=True,
    ),
    "ten_gigabytes": Hostile(
        "try:\n    bytearray(10 << 30)\n    print('ESCAPED')\nexcept MemoryError: print('refused')",
        prints="refused\n",
        everywhere=True,
    ),
    "gigabytes_in_steps": Hostile(
        "held = []\nwhile True: held.append(bytearray(1 << 24))", f"{EXIT}|{SIGNAL}|{TIME}"
    ),
    "endless_loop_ignoring_signals": Hostile(
        """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
        f"{TIME}|{SIGNAL}",
        everywhere=True,
    ),
    "sleeps_for_ever": Hostile("import time\ntime.sleep(1e6)", TIME, everywhere=True),
    "stops_itself": Hostile("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", TIME),
    "closes_everything_and_stays": Hostile(
        "import os, time\nos.closerange(0, 1000)\ntime.sleep(1e6)", TIME
    ),
    "endless_output": Hostile("while True: print('x' * 10000)", OUTPUT, r"[x\n]*", everywhere=True),
    "endless_errors": Hostile(
        "import sys\nwhile True: sys.stderr.write('x' * 10000)", f"{TIME}|{SIGNAL}"
    ),
    "sparse_file": Hostile(
        """
try:
    with open("big", "wb") as file: file.truncate(100 << 30)
    print("ESCAPED")
except OSError: print("refused")
""",
        prints="refused\n",
        everywhere=True,
    ),
    "full_folder": Hostile(
        """
try:
    for i in range(1000):
        with open(str(i), "wb") as file: file.write(bytes(10 << 20))
    print("ESCAPED")
except OSError: print("refused")
""",
        prints="refused\n",
    ),
    "growing_stdin": Hostile(
        """
import os
try:
    os.truncate(0, 100 << 30)
    print("ESCAPED")
except OSError: print("refused")
""",
        prints="refused\n",
        everywhere=True,
    ),
    "memory_files": Hostile(
        """
import os
try:
    os.memfd_create("x")
    print("ESCAPED")
except OSError: print("refused")
""",
        prints="refused\n",
        everywhere=True,
    ),
    "reads_a_secret": Hostile(
        """
import os, sys
def seen(path):  # more of it than the way to Python's own packages
    if not os.path.isdir(path):
        return os.path.exists(path)
    within = [os.path.join(path, name) + "/" for name in os.listdir(path)]
    return not within or any(not any(f"{own}/".startswith(each) for own in sys.path)
                             for each in within)
for path in ("{secret}", "{folder}", "/etc/passwd", "/etc/shadow", "/proc/1/environ",
             "/proc/{pid}/environ", "/sys/kernel", "/etc/hosts", "/home", "/var", "/run",
             "/dev/shm", "/dev/sda"):
    print("ESCAPED " + path if seen(path) else "not there")
""",
        prints="(not there\n){13}",
    ),
    "reads_the_environment": Hostile(
        "import os\nprint('ESCAPED' if 'SECRET_KEY' in os.environ else sorted(os.environ))",
        prints=r"\[.*'HOME'.*\]\n",
        everywhere=True,
    ),
    "writes_outside": Hostile(
        """
import os
for path in ("/usr/x", "/x", "/harness.py", "/dev/null/x", "/lib/x", "/tmp/../x", os.__file__):
    try:
        open(path, "a").write("x")
        print("ESCAPED " + path)
    except OSError: print("refused")
open("{new}", "w").close()  # in a folder of its own
""",
        prints="(refused\n){7}",
    ),
    "opens_a_socket": Hostile(
        """
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
    try:
        socket.socket(family, socket.SOCK_STREAM).connect(("127.0.0.1", {port}))
        print("ESCAPED")
    except OSError: print("refused")
""",
        prints="(refused\n){4}",
        everywhere=True,
    ),
    "kills_its_parent": Hostile(
        """
import os, signal
for pid in (os.getppid(), {pid}, 1):
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
        try: os.kill(pid, number)
        except OSError: pass
print("still here")
""",
        prints="still here\n",
        everywhere=True,
    ),
    "kills_everyone": Hostile(
        "import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\nprint('still here')",
        prints="still here\n",
    ),
    "traces": Hostile(
        """
import ctypes, os
libc = ctypes.CDLL(None)
print(libc.ptrace(16, os.getppid(), 0, 0), libc.ptrace(0, 0, 0, 0), libc.ptrace(16, {pid}, 0, 0))
""",
        prints="-1 -1 -1\n",
        everywhere=True,
    ),
    "makes_namespaces_and_mounts": Hostile(
        """
import ctypes
libc = ctypes.CDLL(None)
print(libc.unshare(0x10000000), libc.unshare(0x20000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, 0),
      libc.umount2(b"/usr", 2), libc.chroot(b"/tmp"))
""",
        prints="-1 -1 -1 -1 -1\n",
    ),
    "becomes_root": Hostile(
        """
import os
print(os.getuid() == 0, os.geteuid() == 0)
for change in (os.setuid, os.setgid, lambda i: os.setgroups([i])):
    try:
        change(0)
        print("ESCAPED")
    except OSError: print("refused")
""",
        prints="False False\n(refused\n){3}",
    ),
    "raises_its_limits": Hostile(
        """
import resource
for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    try:
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("ESCAPED")
    except (OSError, ValueError): print("refused")
""",
        prints="(refused\n){4}",
        everywhere=True,
    ),
    "deletes_everything": Hostile(
        """
import os, shutil
for path in ("/tmp", "/usr/bin", "/harness.py"):
    shutil.rmtree(path, ignore_errors=True)
print(os.path.exists("/usr/bin"))
""",
        prints="True\n",
    ),
    "becomes_another_program": Hostile(
        "import os\nos.execv('/bin/sh', ['sh', '-c', 'while :; do :; done'])", f"{TIME}|{SIGNAL}"
    ),
    "asks_for_huge_pages": Hostile(
        """
import ctypes
libc = ctypes.CDLL(None)
print(libc.prctl(42, 0, 0, 0, 0), libc.prctl(41, 0, 0, 0, 0), libc.prctl(42, 0, 0, 0, 0))
""",
        prints="1 -1 1\n",  # they are off, cannot be turned on, and are off,
        everywhere=True,
    ),
    "changes_devices": Hostile(
        """
import os
for path in ("/dev/null", "/dev/random", "/dev/urandom"):
    for change in (lambda p: os.chmod(p, 0o666), os.utime, os.unlink):
        try:
            change(path)
            print("ESCAPED")
        except OSError: print("refused")
""",
        prints="(refused\n){9}",
    ),
    "hides_memory_in_attributes": Hostile(
        """
import os
open("x", "w").close()
try:
    os.setxattr("x", "user.x", bytes(60000))
    print("ESCAPED")
except OSError: print("refused")
""",
        prints="refused\n",
        everywhere=True,
    ),
    "sends_to_other_sockets": Hostile(
        """
import socket
for family, kind in ((socket.AF_UNIX, socket.SOCK_DGRAM), (socket.AF_UNIX, socket.SOCK_SEQPACKET),
                     (socket.AF_INET, socket.SOCK_STREAM), (30, socket.SOCK_STREAM)):
    try:
        socket.socketpair(family, kind)
        print("ESCAPED")
    except OSError as error: print("refused", error.errno)
""",
        prints="(refused 1\n){4}",
        everywhere=True,
    ),
    "takes_what_all_share": Hostile(
        """
import ctypes, fcntl, os
libc = ctypes.CDLL(None)
print(libc.syscall(206, 60000, ctypes.byref(ctypes.c_long(0))), libc.syscall(162),
      libc.syscall(278, 1, 0, 0, 0), libc.flock(os.open("/usr/bin/env", os.O_RDONLY), 2))
""",
        prints="-1 -1 -1 -1\n",
        everywhere=True,
    ),
    "limits_the_first_process": Hostile(
        """
import os, resource, signal
try:
    resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))
    print("ESCAPED")
except OSError: print("refused")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    try: os.kill(1, number)
    except OSError: pass
print("still here")
""",
        prints="refused\nstill here\n",
        everywhere=True,
    ),
    "new_calls": Hostile(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (457, 458, 467, 500):
    print(libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())
""",
        prints="(-1 38\n){4}",
        everywhere=True,
    ),
    "makes_devices": Hostile(
        """
import os, stat
try:
    os.mknod("disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    open("disk", "rb").read(1)
    print("ESCAPED")
except OSError: print("refused")
""",
        prints="refused\n",
        everywhere=True,
    ),
    "recurses_for_ever": Hostile(
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f() + 1\nf()",
        f"{EXIT}|{SIGNAL}|{TIME}",
    ),
    "computes_for_ever": Hostile("print(9**9**9**9)", f"{TIME}|{SIGNAL}|{EXIT}"),
    "crashes": Hostile("import ctypes\nctypes.string_at(0)", SIGNAL),
    "exits_early": Hostile("import os\nos._exit(0)", everywhere=True),
    "looks_like_a_broken_sandbox": Hostile(
        "import sys\nsys.stderr.write('bwrap: no\\n')\nsys.exit(1)", "exit 1"
    ),
    "no_python": Hostile("def", "exit 1"),
    "null_bytes": Hostile("print(1)\0", "exit 1"),
    "half_a_surrogate": Hostile("print('\ud800')", "exit 1"),
    "nested_too_deep": Hostile("(" * 100_000, f"{EXIT}|{SIGNAL}"),
    "leases_and_locks": Hostile(
        TRY
        + """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fds = [os.open(path, os.O_RDONLY) for path in (sys.orig_argv[-3], os.__file__, ".")]
for fd in fds:
    for command, value in ((1024, 0), (1024, 1), (1024, 2), (1026, 1), (8, os.getpid()), (10, 9),
                           (6, bytes(32)), (7, bytes(32)), (37, bytes(32)), (1036, bytes(8)),
                           (1033, 0)):
        attempt(fcntl.fcntl, fd, command, value)
    attempt(fcntl.flock, fd, fcntl.LOCK_SH)
    attempt(fcntl.ioctl, fd, 0x40086602, bytes(8))  # FS_IOC_SETFLAGS
""",
        prints="(refused\n){39}",
        everywhere=True,
    ),
    "flushes_disks": Hostile(
        TRY
        + """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for path in ("/usr/bin/env", os.__file__, "."):
    fd = os.open(path, os.O_RDONLY)
    attempt(os.fsync, fd)
    attempt(os.fdatasync, fd)
    print(libc.sync_file_range(fd, 0, 0, 7), libc.posix_fadvise(fd, 0, 0, 4))
""",
        prints="(refused\nrefused\n-1 1\n){3}",
        everywhere=True,
    ),
    "larger_pipes": Hostile(
        TRY
        + """
import fcntl, os, sys
for fd in (1, 2, int(sys.orig_argv[-1]), *os.pipe()):
    attempt(fcntl.fcntl, fd, 1031, 1 << 20)
""",
        prints="(refused\n){5}",
        everywhere=True,
    ),
    "many_descriptors": Hostile(
        """
import os, select, socket
for make in (os.pipe, lambda: os.eventfd(0), select.epoll, socket.socketpair):
    held = []
    try:
        while len(held) < 1000: held.append(make())
        print("ESCAPED")
    except OSError as error: print("refused", error.errno)
    if make is os.pipe:
        for pair in held: os.close(pair[0]), os.close(pair[1])
    elif held and isinstance(held[0], int):
        for fd in held: os.close(fd)
""",
        prints="(refused 24\n){4}",
        everywhere=True,
    ),
    "rules_of_landlock_and_filters": Hostile(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
rule = ctypes.c_uint64(1)
for call in ((444, ctypes.byref(rule), 8, 0), (444, 0, 0, 1), (445, 3, 1, 0, 0), (446, 3, 0),
             (317, 0, 0, 0), (317, 1, 0, ctypes.byref(rule)), (157, 22, 2, ctypes.byref(rule))):
    print(libc.syscall(*call), ctypes.get_errno())
""",
        prints="(-1 38\n){4}(-1 1\n){3}",
        everywhere=True,
    ),
    "endless_links": Hostile(
        """
import os
for make in (lambda i: os.symlink("x" * 4000, "y" * 240 + str(i)), lambda i: os.mkdir("d" + str(i)),
             lambda i: open("f" + str(i), "x").close(), lambda i: os.link("f0", "l" + str(i))):
    os.path.lexists("f0") or open("f0", "x").close()
    try:
        for i in range(1, 60_000): make(i)
        print("ESCAPED", flush=True)
    except OSError as error: print("refused", error.errno)
""",
        r"(made more than 4096 files)?",
        r"(refused 28\n){4}|",
    ),
    "endless_files_unseen": Hostile(
        """
import os
os.closerange(0, 64)
for i in range(10**9):
    try: os.mkdir("y" * 240 + str(i))
    except OSError: os._exit(3)
""",
        "made more than 4096 files|exit 3",
    ),
    "signals_its_group": Hostile(
        """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for pid in (0, -os.getpgrp(), -1, 1, os.getppid()):
    for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGHUP * (pid == -1)):
        try: os.kill(pid, number)
        except OSError: pass
try: os.setsid()
except OSError: pass
print("still here")
""",
        prints="still here\n",
        everywhere=True,
    ),
    "signals_itself": Hostile(
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", SIGNAL, everywhere=True
    ),
    "aborts": Hostile("import os\nos.abort()", SIGNAL, everywhere=True),
    "memory_that_outlives_its_mapping": Hostile(
        """
import mmap
held = []
try:
    while len(held) < 40:
        held.append(mmap.mmap(-1, 1 << 26))
        held[-1].write(bytes(1 << 26))
        held[-1].resize(4096)
    print("ESCAPED")
except OSError: print("refused")
for path in ("/dev/zero", "/dev/shm/x"):
    try:
        mmap.mmap(open(path, "r+b").fileno(), 1 << 26)
        print("ESCAPED")
    except OSError: print("refused")
""",
        prints="(refused\n){3}",
    ),
    "odd_memory": Hostile(
        """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
private = libc.mmap(None, ctypes.c_size_t(1 << 22), 3, 0x22, -1, ctypes.c_long(0))
for flags in (0x21, 0x23, 0x40022, 0x40021, 0x2022):  # shared, of huge pages, locked
    print(libc.mmap(None, ctypes.c_size_t(1 << 22), 3, flags, -1, ctypes.c_long(0)) == 2**64 - 1)
for advice in (9, 12, 14, 20, 21, 25, 100, 101):
    print(libc.madvise(ctypes.c_void_p(private), ctypes.c_size_t(1 << 22), advice) == -1)
print(libc.mlock(ctypes.c_void_p(private), ctypes.c_size_t(1 << 22)) == -1, libc.mlockall(1) == -1)
""",
        prints="(True\n){13}True True\n",
        everywhere=True,
    ),
    "sets_what_a_process_is": Hostile(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for option in (1, 4, 8, 22, 29, 35, 36, 41, 47, 0x53564D41, 0x59616D61):
    print(libc.prctl(option, 0, 0, 0, 0), ctypes.get_errno())
""",
        prints="(-1 1\n){11}",
        everywhere=True,
    ),
    "calls_that_no_program_needs": Hostile(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
known = (27, 29, 30, 31, 46, 54, 64, 68, 74, 75, 92, 93, 94, 101, 105, 106, 109, 112, 133,
         135, 141, 142, 144, 149, 151, 155, 161, 162, 165, 166, 179, 187, 188, 191, 194, 197, 206,
         216, 221, 222, 237, 238, 240, 246, 248, 249, 250, 251, 253, 254, 255, 256, 272, 275, 276,
         277, 278, 279, 282, 283, 289, 294, 298, 300, 301, 303, 304, 306, 307, 308, 310, 311, 312,
         314, 315, 317, 319, 321, 322, 323, 324, 325, 329, 330, 424, 425, 426, 427, 428, 429, 430,
         431, 432, 433, 434, 435, 437, 438, 440, 442, 443, 444, 447, 448, 449, 450, 451, 452, 463)
print([number for number in known
       if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38)])
""",
        prints=r"\[\]\n",
        everywhere=True,
    ),
    "changes_the_names_of_files": Hostile(
        """
import os
here = os.getcwd()
os.mkdir("x")
os.chdir("/")
os.rmdir(here + "/x")
try:
    os.rmdir(here)
    os.symlink("{folder}", here)
except OSError: pass
print("done")
""",
        prints="done\n",
        everywhere=True,
    ),
    "well_behaved": Hostile(
        """
import asyncio, tempfile
with tempfile.TemporaryFile() as file: file.write(b"x")
with open("/dev/null", "w") as null, open("/dev/urandom", "rb") as random:
    null.write(str(len(random.read(8))))
asyncio.run(asyncio.sleep(0))
print(int(input()) + 1)
""",
        prints="42\n",
        everywhere=True,
    ),
}

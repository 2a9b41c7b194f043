"""Programs that try to do harm, and what each may come to: shared by the sandbox's tests.

A program prints "ESCAPED" where it reaches what it must not, "refused" where it is kept from it.
{secret} is a file of ours, {folder} a folder of ours, {pid} our process, {port} a port that we
listen on, {new} a path where nothing is.
"""

import re
from dataclasses import dataclass

TIME = r"took longer than .* s"
OUTPUT = r"wrote more than \d+ KB"
EXIT = r"exit \d+"
SIGNAL = r"signal \d+"


# Stands before every program that calls it.
TRY = """
def attempt(call, *arguments, denied=()):
    try:
        call(*arguments)
        print("ESCAPED", call, arguments, flush=True)
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        is_so = not denied or getattr(error, "errno", None) in denied
        print("refused" if is_so else f"refused otherwise: {error}")
def forbidden(call, *arguments):
    attempt(call, *arguments, denied=(1, 38))
"""

EVERYWHERE = {  # contained without a sandbox too, by the limits and the filter
    "fork_bomb": "import os\nwhile True: os.fork()",
    "clone_by_hand": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(56, 17, 0, 0, 0, 0), libc.syscall(435, 0, 0), libc.syscall(0x40000000 + 57))
""",
    "thread_bomb": """
import threading, time
threading.stack_size(32768)
def bomb():
    for _ in range(5000): threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
attempt(bomb)
""",
    "ten_gigabytes": "attempt(bytearray, 10 << 30)",
    "endless_loop_ignoring_signals": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
    "sleeps_for_ever": "import time\ntime.sleep(1e6)",
    "endless_output": "while True: print('x' * 10000)",
    "sparse_file": "attempt(open('big', 'wb').truncate, 100 << 30)",
    "growing_stdin": "import os\nattempt(os.truncate, 0, 100 << 30)",
    "reads_the_environment": """
import os
print('ESCAPED' if 'SECRET_KEY' in os.environ else sorted(os.environ))
""",
    "opens_a_socket": """
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
    attempt(lambda: socket.socket(family, socket.SOCK_STREAM).connect(("127.0.0.1", {port})))
""",
    "kills_its_parent": """
import os, signal
for pid in (os.getppid(), {pid}, 1):
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
        try: os.kill(pid, number)
        except OSError: pass
print("still here")
""",
    "traces": """
import ctypes, os
libc = ctypes.CDLL(None)
print(libc.ptrace(16, os.getppid(), 0, 0), libc.ptrace(0, 0, 0, 0), libc.ptrace(16, {pid}, 0, 0))
""",
    "raises_its_limits": """
import resource
for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    attempt(resource.setrlimit, kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
""",
    "asks_for_huge_pages": """
import ctypes
libc = ctypes.CDLL(None)
print(libc.prctl(42, 0, 0, 0, 0), libc.prctl(41, 0, 0, 0, 0), libc.prctl(42, 0, 0, 0, 0))
""",
    "hides_memory_in_attributes": """
import os
open('x', 'w').close()
attempt(os.setxattr, 'x', 'user.x', bytes(60000))
""",
    "takes_what_all_share": """
import ctypes, fcntl, os
libc = ctypes.CDLL(None)
print(libc.syscall(206, 60000, ctypes.byref(ctypes.c_long(0))), libc.syscall(162),
      libc.syscall(278, 1, 0, 0, 0), libc.flock(os.open("/usr/bin/env", os.O_RDONLY), 2))
""",
    "limits_the_first_process": """
import os, resource, signal
attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (3, 3))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    try: os.kill(1, number)
    except OSError: pass
print("still here")
""",
    "makes_devices": """
import os, stat
def disk():
    os.mknod("disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    open("disk", "rb").read(1)
attempt(disk)
""",
    "exits_early": "import os\nos._exit(0)",
    "leases_and_locks": """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fds = [os.open(path, os.O_RDONLY) for path in (sys.orig_argv[-3], os.__file__, ".")]
for fd in fds:
    for command, value in ((1024, 0), (1024, 1), (1024, 2), (1026, 1), (8, os.getpid()), (10, 9),
                           (6, bytes(32)), (7, bytes(32)), (37, bytes(32)), (1036, bytes(8)),
                           (1033, 0)):
        forbidden(fcntl.fcntl, fd, command, value)
    forbidden(fcntl.flock, fd, fcntl.LOCK_SH)
    forbidden(fcntl.ioctl, fd, 0x40086602, bytes(8))  # FS_IOC_SETFLAGS
""",
    "many_descriptors": """
import os, select, socket
for make in (os.pipe, lambda: os.eventfd(0), select.epoll, socket.socketpair):
    held = []
    attempt(lambda: [held.append(make()) for _ in range(1000)], denied=(24,))
    for fd in (each for made in held for each in (made if type(made) is tuple else (made,))):
        os.close(fd) if type(fd) is int else fd.close()
""",
    "signals_its_group": """
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
    "signals_itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "odd_memory": """
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
    "changes_the_names_of_files": """
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
    "well_behaved": """
import asyncio, tempfile
with tempfile.TemporaryFile() as file: file.write(b"x")
with open("/dev/null", "w") as null, open("/dev/urandom", "rb") as random:
    null.write(str(len(random.read(8))))
asyncio.run(asyncio.sleep(0))
print(int(input()) + 1)
""",
}
SANDBOXED = {  # where there is a sandbox
    "gigabytes_in_steps": "held = []\nwhile True: held.append(bytearray(1 << 24))",
    "stops_itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "closes_everything_and_stays": "import os, time\nos.closerange(0, 1000)\ntime.sleep(1e6)",
    "endless_errors": "import sys\nwhile True: sys.stderr.write('x' * 10000)",
    "full_folder": """
def fill():
    for i in range(1000):
        with open(str(i), "wb") as file: file.write(bytes(10 << 20))
attempt(fill)
""",
    "reads_a_secret": """
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
    "writes_outside": """
import os
for path in ("/usr/x", "/x", "/harness.py", "/dev/null/x", "/lib/x", "/tmp/../x", os.__file__):
    attempt(open, path, "a")
open("{new}", "w").close()  # in a folder of its own
""",
    "kills_everyone": """
import os
try: os.kill(-1, 9)
except OSError: pass
print('still here')
""",
    "makes_namespaces_and_mounts": """
import ctypes
libc = ctypes.CDLL(None)
print(libc.unshare(0x10000000), libc.unshare(0x20000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, 0),
      libc.umount2(b"/usr", 2), libc.chroot(b"/tmp"))
""",
    "becomes_root": """
import os
print(os.getuid() == 0, os.geteuid() == 0)
attempt(os.setuid, 0)
attempt(os.setgid, 0)
attempt(os.setgroups, [0])
""",
    "deletes_everything": """
import os, shutil
for path in ("/tmp", "/usr/bin", "/harness.py"):
    shutil.rmtree(path, ignore_errors=True)
print(os.path.exists("/usr/bin"))
""",
    "becomes_another_program": """
import os
os.execv("/bin/sh", ["sh", "-c", "while :; do :; done"])
""",
    "changes_devices": """
import os
for path in ("/dev/null", "/dev/random", "/dev/urandom"):
    attempt(os.chmod, path, 0o666)
    attempt(os.utime, path)
    attempt(os.unlink, path)
""",
    "recurses_for_ever": """
import sys
sys.setrecursionlimit(10**9)
def f(): return f() + 1
f()
""",
    "computes_for_ever": "print(9**9**9**9)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "looks_like_a_broken_sandbox": "import sys\nsys.stderr.write('bwrap: no\\n')\nsys.exit(1)",
    "half_a_surrogate": "print('\ud800')",
    "nested_too_deep": "(" * 100_000,
    "endless_links": """
import os
def without_end(make):
    os.path.lexists("f0") or open("f0", "x").close()
    for i in range(1, 60_000): make(str(i))
for make in (lambda i: os.symlink("x" * 4000, "y" * 240 + i), lambda i: os.mkdir("d" + i),
             lambda i: open("f" + i, "x").close(), lambda i: os.link("f0", "l" + i)):
    attempt(without_end, make, denied=(28,))
""",
    "endless_files_unseen": """
import os
os.closerange(0, 64)
for i in range(10**9):
    try: os.mkdir("y" * 240 + str(i))
    except OSError: os._exit(3)
""",
    "memory_that_outlives_its_mapping": """
import mmap
held = []
def outlive():
    while len(held) < 40:
        held.append(mmap.mmap(-1, 1 << 26))
        held[-1].write(bytes(1 << 26))
        held[-1].resize(4096)
attempt(outlive)
for path in ("/dev/zero", "/dev/shm/x"):
    attempt(lambda: mmap.mmap(open(path, "r+b").fileno(), 1 << 26))
""",
}
ENDS = {  # a pattern for `stopped`; the others end well
    "fork_bomb": EXIT,
    "gigabytes_in_steps": f"{EXIT}|{SIGNAL}|{TIME}",
    "endless_loop_ignoring_signals": f"{TIME}|{SIGNAL}",
    "sleeps_for_ever": TIME,
    "stops_itself": TIME,
    "closes_everything_and_stays": TIME,
    "endless_output": OUTPUT,
    "endless_errors": f"{TIME}|{SIGNAL}",
    "becomes_another_program": f"{TIME}|{SIGNAL}",
    "recurses_for_ever": f"{EXIT}|{SIGNAL}|{TIME}",
    "computes_for_ever": f"{TIME}|{SIGNAL}|{EXIT}",
    "crashes": SIGNAL,
    "looks_like_a_broken_sandbox": r"exit 1",
    "half_a_surrogate": r"exit 1",
    "nested_too_deep": f"{EXIT}|{SIGNAL}",
    "endless_links": r"(made more than 4096 files)?",
    "endless_files_unseen": r"made more than 4096 files|exit 3",
    "signals_itself": SIGNAL,
}
PRINTS = {  # a pattern for stdout; of the others some lines "refused"
    "clone_by_hand": r"-1 -1 -1\n",
    "endless_output": r"[x\n]*",
    "reads_a_secret": r"(not there\n){13}",
    "reads_the_environment": r"\[.*'HOME'.*\]\n",
    "kills_its_parent": r"still here\n",
    "kills_everyone": r"still here\n",
    "traces": r"-1 -1 -1\n",
    "makes_namespaces_and_mounts": r"-1 -1 -1 -1 -1\n",
    "becomes_root": r"False False\n(refused\n){3}",
    "deletes_everything": r"True\n",
    "asks_for_huge_pages": r"1 -1 1\n",
    "takes_what_all_share": r"-1 -1 -1 -1\n",
    "limits_the_first_process": r"refused\nstill here\n",
    "endless_links": r"(refused\n){4}|",
    "signals_its_group": r"still here\n",
    "odd_memory": r"(True\n){13}True True\n",
    "changes_the_names_of_files": r"done\n",
    "well_behaved": r"42\n",
}


@dataclass(frozen=True)
class Hostile:
    text: str
    ends: str
    prints: str
    everywhere: bool

    def fits(self, stopped: str | None, stdout: str) -> bool:
        ended = re.fullmatch(self.ends, stopped or "") is not None
        return ended and re.fullmatch(self.prints, stdout, re.DOTALL) is not None


def hostile(name: str) -> Hostile:
    text = (EVERYWHERE | SANDBOXED)[name]
    is_trying = "attempt(" in text or "forbidden(" in text
    prints = PRINTS.get(name, r"(refused\n)+" if is_trying else "")
    return Hostile(TRY * is_trying + text, ENDS.get(name, ""), prints, name in EVERYWHERE)


PROGRAMS = {name: hostile(name) for name in (*EVERYWHERE, *SANDBOXED)}

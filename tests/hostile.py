"""Programs that try to do harm, and what each may come to: shared by the sandbox's tests.

A program prints "ESCAPED" where it reaches what it must not. {secret} is a file of ours, {folder} a
folder of ours, {pid} our process, {port} a port that we listen on.
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

    def fits(self, stopped: str | None, stdout: str) -> bool:
        ended = re.fullmatch(self.ends, stopped or "") is not None
        return ended and re.fullmatch(self.prints, stdout, re.DOTALL) is not None


PROGRAMS = {
    "fork_bomb": Hostile("import os\nwhile True: os.fork()", EXIT),
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
    ),
    "clone_by_hand": Hostile(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(56, 17, 0, 0, 0, 0), libc.syscall(435, 0, 0), libc.syscall(0x40000000 + 57))
""",
        prints="-1 -1 -1\n",
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
    ),
    "ten_gigabytes": Hostile(
        "try:\n    bytearray(10 << 30)\n    print('ESCAPED')\nexcept MemoryError: print('refused')",
        prints="refused\n",
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
    ),
    "sleeps_for_ever": Hostile("import time\ntime.sleep(1e6)", TIME),
    "stops_itself": Hostile("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", TIME),
    "closes_everything_and_stays": Hostile(
        "import os, time\nos.closerange(0, 1000)\ntime.sleep(1e6)", TIME
    ),
    "endless_output": Hostile("while True: print('x' * 10000)", OUTPUT, r"[x\n]*"),
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
    ),
    "reads_a_secret": Hostile(
        """
import os
for path in ("{secret}", "{folder}", "/etc/passwd", "/etc/shadow", "/proc/1/environ",
             "/proc/{pid}/environ", "/sys/kernel", "/etc/hosts", "/home", "/var", "/run",
             "/dev/shm", "/dev/sda"):
    print("ESCAPED " + path if os.path.exists(path) else "not there")
""",
        prints="(not there\n){13}",
    ),
    "reads_the_environment": Hostile(
        "import os\nprint('ESCAPED' if 'SECRET_KEY' in os.environ else sorted(os.environ))",
        prints=r"\[.*'HOME'.*\]\n",
    ),
    "writes_outside": Hostile(
        """
import os
for path in ("/usr/x", "/x", "/harness.py", "/dev/null/x", "/lib/x", "/tmp/../x", os.__file__):
    try:
        open(path, "a").write("x")
        print("ESCAPED " + path)
    except OSError: print("refused")
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
        prints="1 -1 1\n",  # they are off, cannot be turned on, and are off
    ),
    "changes_devices": Hostile(
        """
import os
for path in ("/dev/null", "/dev/zero", "/dev/urandom"):
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
    ),
    "takes_what_all_share": Hostile(
        """
import ctypes, fcntl, os
libc = ctypes.CDLL(None)
print(libc.syscall(206, 60000, ctypes.byref(ctypes.c_long(0))), libc.syscall(162),
      libc.syscall(278, 1, 0, 0, 0), libc.flock(os.open("/usr/bin/env", os.O_RDONLY), 2))
""",
        prints="-1 -1 -1 -1\n",
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
    ),
    "new_calls": Hostile(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (457, 458, 467, 500):
    print(libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())
""",
        prints="(-1 38\n){4}",
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
    ),
    "recurses_for_ever": Hostile(
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f() + 1\nf()",
        f"{EXIT}|{SIGNAL}|{TIME}",
    ),
    "computes_for_ever": Hostile("print(9**9**9**9)", f"{TIME}|{SIGNAL}|{EXIT}"),
    "crashes": Hostile("import ctypes\nctypes.string_at(0)", SIGNAL),
    "exits_early": Hostile("import os\nos._exit(0)"),
    "looks_like_a_broken_sandbox": Hostile(
        "import sys\nsys.stderr.write('bwrap: no\\n')\nsys.exit(1)", "exit 1"
    ),
    "no_python": Hostile("def", "exit 1"),
    "null_bytes": Hostile("print(1)\0", "exit 1"),
    "half_a_surrogate": Hostile("print('\ud800')", "exit 1"),
    "nested_too_deep": Hostile("(" * 100_000, f"{EXIT}|{SIGNAL}"),
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
    ),
}

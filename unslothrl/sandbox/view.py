"""What a program sees of this machine: Python, the system's libraries, three devices.

Homes, the project, /etc, /proc, /sys and every other folder are not there.
"""

import contextlib
import functools
import os
import sys
import sysconfig
from pathlib import Path

from unslothrl import files

FOLDER = "/tmp"  # the program's, writable
HARNESS = "/harness.py"
SOURCE = Path(__file__).with_name("harness.py")  # of the harness
USER = 1000  # this process's user and group as the program sees them, where it runs as them
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")  # /dev/zero can be mapped as shared memory
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
ENVIRONMENT = {
    "HOME": FOLDER,
    "TMPDIR": FOLDER,
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@functools.cache
def harness_text() -> bytes:
    """Each sandbox gets a copy: what a program's user may do to its files, it does to its own."""
    return SOURCE.read_bytes()


def memory_fd(stack: contextlib.ExitStack, content: bytes) -> int:
    """A file to read `content` from: on no disk, and no pipe that could fill. Closed by `stack`."""
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    while content:
        content = content[os.write(fd, content) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def interpreter() -> str:
    """The Python itself, not a link to it in an environment."""
    return os.path.realpath(sys.executable)


@functools.cache
def packages() -> str:
    """Where installed packages lie; a program may import them."""
    return os.path.realpath(sysconfig.get_paths()["purelib"])


def homes() -> list[str]:
    """Folders that no program may see, nor what is above them."""
    own = files.home()
    return [*([os.path.realpath(own)] if own is not None else []), "/root", "/home"]


@functools.cache
def read_only() -> tuple[list[str], list[tuple[str, str]]]:
    """-> (paths, [(where a link stands, where it points)]), parents before what lies in them.

    OSError where Python's own folder is no place to be seen.
    """
    python = (str(Path(interpreter()).parent.parent), sys.base_prefix, packages())
    links = [(path, os.readlink(path)) for path in SYSTEM if os.path.islink(path)]
    paths = [path for path in SYSTEM if os.path.exists(path) and not os.path.islink(path)]
    for path in sorted(os.path.realpath(path) for path in python):
        if any(Path(home).is_relative_to(path) for home in homes()):
            raise OSError(f"Python lies in {path}, and with it a home folder would be seen")
        if not any(Path(path).is_relative_to(known) for known in paths):
            paths.append(path)
    return paths, links

"""One engine at a time sleeps or wakes on a card.

vLLM reads the card's free memory before and after it goes to sleep and ends its process where less
is free afterwards ("Memory usage increased after sleeping", v1/worker/gpu_worker.py:220). Another
engine that wakes in between takes about as much as has been freed. `planning/place.py` says who
needs the lock. What generates meanwhile takes far less than a whole engine frees.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(name: str | None, folder: str | None) -> Iterator[None]:
    """Waits until no process of this user and host holds the lock, then holds it; nothing without
    a name.

    A file lock: the kernel releases it when its process ends, however it ends. The folder is one
    that everybody writes to: another user's file of that name could not be opened, and what a link
    leads to is left alone.
    """
    if name is None:
        yield
        return
    path = Path(folder or tempfile.gettempdir()) / f"unslothrl-{os.getuid()}-{name}.lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

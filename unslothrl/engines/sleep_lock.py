"""One engine at a time sleeps or wakes on a card.

vLLM reads the card's free memory before and after it goes to sleep and ends its process where less
is free afterwards ("Memory usage increased after sleeping", v1/worker/gpu_worker.py:220). Another
engine that wakes in between takes about as much as has been freed. `planning/place.py` says who
needs the lock. What generates meanwhile takes far less than a whole engine frees.
"""

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(name: str | None, folder: str | None) -> Iterator[None]:
    """Waits until no process of this host holds the lock, then holds it; nothing without a name.

    A file lock: the kernel releases it when its process ends, however it ends.
    """
    if name is None:
        yield
        return
    with (Path(folder or tempfile.gettempdir()) / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

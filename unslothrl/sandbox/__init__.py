"""Runs untrusted programs where they can do no harm.

    result = run(Program("print(int(input()) + 1)", stdin="1"), Limits(), choose())
    result.stdout, result.stopped     "2\\n", None

Each program is a fresh process without network, without this process's environment, with a
temporary folder of its own, a read-only view of Python and the system's libraries and of nothing
else, and limits on CPU time, wall time, memory, threads, file size and output. It can start no
process. When it ends, nothing of it is left. Three levels:

bubblewrap   `bwrap` makes the namespaces
namespaces   this package makes them: mount, pid, network, ipc and uts, and a user namespace where
             this process is not root (Linux 5.12 or newer)
none         limits and the filter of system calls only; where the user allows it

The first two have the same view and limits; the filter of system calls is the same for all.
"""

from unslothrl.sandbox.choice import available, choose, require
from unslothrl.sandbox.levels import LEVELS, SECURE
from unslothrl.sandbox.pair import run_tests
from unslothrl.sandbox.program import (
    START_S,
    Limits,
    LongInteger,
    Overloaded,
    Program,
    ProgramResult,
)
from unslothrl.sandbox.runner import run

__all__ = [
    "LEVELS",
    "SECURE",
    "START_S",
    "Limits",
    "LongInteger",
    "Overloaded",
    "Program",
    "ProgramResult",
    "available",
    "choose",
    "require",
    "run",
    "run_tests",
]

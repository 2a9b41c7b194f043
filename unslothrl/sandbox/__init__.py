"""Runs programs that nobody has read, and lets them do no harm.

    outcome = run(Program("print(int(input()) + 1)", stdin="1"), Limits())
    outcome.stdout, outcome.stopped     "2\\n", None

Each program is a fresh process without network, without our environment, with a temporary folder
of its own, a read-only view of Python and the system's libraries and of nothing else, and limits on
CPU time, wall time, memory, threads, file size and output. It can start no process. When it ends,
nothing of it is left. Three levels:

bubblewrap   `bwrap` makes the namespaces
namespaces   this package makes them: mount, pid, network, ipc and uts, and a user namespace where
             we are not root (Linux 5.12 or newer)
none         limits only; for those who allow it

The first two keep the same view and the same limits; the filter of system calls is that of all.
"""

from unslothrl.sandbox.levels import LEVELS, SECURE, available, choose, require
from unslothrl.sandbox.program import START_S, Limits, LongInteger, Outcome, Overloaded, Program
from unslothrl.sandbox.run import run

__all__ = [
    "LEVELS",
    "SECURE",
    "START_S",
    "Limits",
    "LongInteger",
    "Outcome",
    "Overloaded",
    "Program",
    "available",
    "choose",
    "require",
    "run",
]

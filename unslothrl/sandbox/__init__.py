"""Runs untrusted programs where they can do no harm.

    result = run(Program("print(int(input()) + 1)", stdin="1"), Limits(), choose())
    result.stdout, result.stopped     "2\\n", None

Each program is a fresh process without network or this process's environment, with a temporary
folder of its own, a read-only view of Python and the system's libraries, and limits (`Limits`). It
can start no process. When it ends, nothing of it is left. docs/rewards.md has the three levels.
"""

import errno
import os
import platform

from unslothrl.errors import UserError
from unslothrl.sandbox.levels import SECURE, Limits, Program
from unslothrl.sandbox.runner import run

BUSY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_working: set[str] = set()  # levels at which a program has run in this process


def available(level: str) -> str | None:
    """None if a program runs at this level, else why it does not. UserError where the machine is
    too busy to try."""
    if level in _working:
        return None
    try:
        outcome = run(Program("print(40 + 2)"), Limits(), level)
    except OSError as error:
        reason = " ".join(str(error).split())
        is_busy = isinstance(error, TimeoutError) or error.errno in BUSY
        if is_busy or any(os.strerror(number) in reason for number in BUSY):
            raise UserError(
                f"reward code: sandbox {level} could not be tried ({reason}): the machine is "
                "overloaded: start again when it is less busy"
            ) from None
        return reason
    if outcome.stdout != "42\n":
        return f"{outcome.stopped}: {outcome.stderr[-200:]}"
    _working.add(level)
    return None


def choose(allow_unsandboxed: bool = False) -> str:
    """The best level here. UserError where there is none, unless programs may run without, and
    where the machine is too busy to try one: no lower level is taken for that."""
    why = []
    for level in SECURE:
        if (reason := available(level)) is None:
            return level
        why.append(f"{level}: {' '.join(reason.split())}")
    if allow_unsandboxed:
        return "none"
    raise UserError(
        f"reward code: programs cannot be sandboxed here ({'; '.join(why)}): install bubblewrap "
        "(apt install bubblewrap), or set --allow_unsandboxed_code where nothing can be lost"
    )


def require(level: str) -> None:
    """UserError where the level that a run has chosen elsewhere cannot be had here."""
    if (reason := available(level)) is not None:
        raise UserError(
            f"reward code: this run's programs are sandboxed by {level}, which does not work on "
            f"{platform.node()} ({' '.join(reason.split())}): make it work there, or leave that "
            "machine out"
        )

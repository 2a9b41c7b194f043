"""The program as a process: `unslothrl`, and `python -m unslothrl`."""

import atexit
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from unslothrl.commands.cli import main
from unslothrl.system import variables

STOPPED = 128  # exit codes above it are of signals


def program(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the program, and ends the process. One that a signal has stopped does not destroy what
    libraries hold: Ray's C++ part may crash in that, and the exit code be lost."""
    variables.use_cuda_compat()
    code = main(arguments)
    if code > STOPPED:
        atexit._run_exitfuncs()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    program()

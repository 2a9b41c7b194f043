"""Where a run prints, which may go away before the run ends: a pipe is closed, a terminal lost."""

import errno
import sys
from typing import Any, TextIO

from unslothrl import stopping

GONE = (errno.EPIPE, errno.EIO)  # a pipe that nobody reads, a terminal that has been closed


class Output:
    """Standard output. When nobody is there to read it, the run is asked to stop, and whatever is
    written afterwards goes nowhere.

    OSError where it cannot be written from the beginning. What it cannot take later, such as a log
    on a disk that is full by then, is lost, and no reason to end a run.
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stdout
        self.is_gone = False
        self.has_worked = False

    def write(self, text: str) -> int:
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self.has_worked |= self._try(self.stream.flush)

    def _try(self, function: Any, *arguments: Any) -> bool:
        if self.is_gone:
            return False
        try:
            function(*arguments)
            return True
        except OSError as error:
            if error.errno in GONE:
                self.is_gone = True
                stopping.output_closed()
            elif not self.has_worked:
                raise
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

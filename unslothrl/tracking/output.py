"""Where a run prints, which may go away before the run ends: a pipe is closed, a terminal lost."""

import errno
import sys
from typing import Any, TextIO

from unslothrl import stopping

GONE = (errno.EPIPE, errno.EIO)  # a pipe that nobody reads, a terminal that has been closed


class Output:
    """Standard output. When nobody is there to read it, the run is asked to stop, and whatever is
    written afterwards goes nowhere."""

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stdout
        self.is_gone = False

    def write(self, text: str) -> int:
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, function: Any, *arguments: Any) -> None:
        if self.is_gone:
            return
        try:
            function(*arguments)
        except OSError as error:
            if error.errno not in GONE:
                raise
            self.is_gone = True
            stopping.output_closed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

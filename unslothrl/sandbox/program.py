"""A program, its limits and its result."""

from dataclasses import dataclass
from typing import Any

START_S = 60.0  # for a sandbox to start, which does not count as its program's time


@dataclass(frozen=True)
class Limits:
    """Of one program, from its beginning; `wall_s` later all its processes have ended."""

    cpu_s: float = 5.0
    wall_s: float = 10.0
    memory_mb: int = 1024  # address space
    threads: int = 64  # it can start no process at all
    file_mb: int = 16  # the largest file
    folder_mb: int = 64  # its folder in all, held in memory
    files: int = 4096  # files, folders and links in there
    output_kb: int = 1024  # of stdout, and of a function's result


@dataclass(frozen=True)
class Program:
    """A program's text and what it is given: stdin, or a function to call with arguments.

    `function` may be one of the program's own or a method of its class `Solution`. Arguments and
    result are JSON values.
    """

    text: str
    stdin: str = ""
    function: str | None = None
    arguments: tuple = ()


@dataclass(frozen=True)
class ProgramResult:
    """`stopped` says what ended a program that did not end well: "exit 1", "signal 9", "took longer
    than 5 s", "wrote more than 1024 KB"; None: it ran to its end."""

    stdout: str = ""
    stderr: str = ""  # its last lines
    result: Any = None  # what the function returned
    has_result: bool = False
    stopped: str | None = None
    seconds: float = 0.0  # since it began

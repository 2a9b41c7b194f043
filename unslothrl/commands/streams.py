"""stdin, stdout and stderr, whatever the program is started with."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO


def prepare() -> None:
    """A stream that is closed, as by `>&-`, becomes /dev/null; any text can be written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # stays
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of an ASCII or half-read terminal


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Writes what is left of stdout at the end of the block. OSError where it is not taken, as on a
    full disk; Python then says nothing more of it."""
    try:
        yield
        sys.stdout.flush()
    except OSError:
        for stream in (sys.stdout, sys.stderr):
            drop_unwritten(stream)
        raise


def drop_unwritten(stream: TextIO) -> None:
    """What a stream holds and cannot write goes to /dev/null, as does what follows."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def reason(error: OSError) -> str:
    """What the system refused, and of what."""
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd
        return "the current folder is not there any more: change to one that is"
    said = error.strerror or str(error)
    return f"{error.filename}: {said}" if error.filename is not None else said

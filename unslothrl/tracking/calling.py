"""How programs are called in the user's shell, for every command that is printed to be copied."""

import shlex
import shutil
import sys
from pathlib import Path

NAME = "unslothrl"


def command(*words: object) -> str:
    """A line that runs this program with `words`, quoted for a POSIX shell."""
    return f"{program()} {shlex.join(map(str, words))}"


def program() -> str:
    """This program, quoted: `make train` does not activate the environment it is installed in."""
    if Path(sys.executable).with_name(NAME).is_file():
        return shlex.quote(located(NAME))
    return f"{shlex.quote(sys.executable)} -m {NAME}"


def located(name: str) -> str:
    """A program of this environment by its name where the shell finds it, else by its path; one
    that the environment lacks by its name."""
    own = Path(sys.executable).with_name(name)
    if not own.is_file() or shutil.which(name) == str(own):
        return name
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)

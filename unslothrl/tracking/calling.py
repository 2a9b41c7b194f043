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
    """This program by its name where the shell finds this very one, else from the environment that
    it is installed in, which `make train` does not activate. Quoted."""
    found, called = shutil.which(NAME), Path(sys.argv[0])
    if beside(NAME).is_file():
        return shlex.quote(located(NAME))
    if found and called.is_file() and Path(found).resolve() == called.resolve():
        return NAME
    return f"{shlex.quote(sys.executable)} -m {NAME}"


def located(name: str) -> str:
    """A program of this environment by its name where the shell finds that one, else by its path;
    one that the environment lacks by its name."""
    own, found = beside(name), shutil.which(name)
    if not own.is_file() or (found and is_same(Path(found), own)):
        return name
    here = Path.cwd()
    if own.parent == here:
        return f"./{name}"
    return str(own.relative_to(here) if own.is_relative_to(here) else own)


def is_same(found: Path, own: Path) -> bool:
    """Whether two paths start the same program: an environment's Python, a link to another one, is
    what it is by its place."""
    if found.parent.resolve() == own.parent.resolve():
        return True
    return not own.is_symlink() and found.resolve() == own.resolve()


def beside(name: str) -> Path:
    """A program in this environment's folder of programs."""
    return Path(sys.executable).with_name(name)

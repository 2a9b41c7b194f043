"""The folder of a program that runs without a sandbox, and how it is removed."""

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A new folder; afterwards all that is in it is deleted, but nothing else, whatever the program
    has put in its place."""
    path = tempfile.mkdtemp(prefix="unslothrl-program-")
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield path
    finally:
        for remove in (lambda: empty(folder), lambda: os.rmdir(path), lambda: os.unlink(path)):
            with contextlib.suppress(OSError):  # the last is for a link, and fails for a folder
                remove()
        os.close(folder)


def empty(folder: int) -> None:
    """Deletes what is in a folder, following no link, however deep it is: what is in the folders in
    there moves up first. Modes are changed of folders alone: a file may have other names."""
    os.fchmod(folder, stat.S_IRWXU)
    while names := delete_files(folder):
        for name in names:
            os.chmod(name, stat.S_IRWXU, dir_fd=folder)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            try:
                for deeper in delete_files(inner):
                    os.chmod(deeper, stat.S_IRWXU, dir_fd=inner)  # its entry ".." will change
                    unique = f".{secrets.token_hex(16)}"
                    os.rename(deeper, unique, src_dir_fd=inner, dst_dir_fd=folder)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)


def delete_files(folder: int) -> list[str]:
    """Deletes a folder's files and links. -> the names of its folders."""
    with os.scandir(folder) as entries:
        children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in children:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in children if is_folder]

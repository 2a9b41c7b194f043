"""The command line of `bwrap` (bubblewrap 0.8 or newer) that gives a program its view."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from unslothrl.sandbox import seccomp, view

OLDEST = (0, 8)  # has --size and --perms


@functools.cache
def find() -> str | None:
    """Where bwrap is; None if there is none that can limit a folder's size."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
        version = tuple(int(part) for part in said.stdout.split()[-1].split(".")[:2])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
    return path if version >= OLDEST else None


def command(
    bwrap: str, folder_mb: int, is_root: bool, threads: bool
) -> tuple[list[str], list[int]]:
    """-> (what stands before the program's own command, file descriptors it is to inherit)."""
    filter_fd = os.memfd_create("seccomp", 0)
    os.write(filter_fd, seccomp.program(threads))
    os.lseek(filter_fd, 0, os.SEEK_SET)
    paths, links = view.read_only()
    words = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--hostname", "sandbox", "--cap-drop", "ALL"]
    if is_root:  # the harness becomes another user; without a user namespace it can
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--uid", str(view.USER), "--gid", str(view.USER)]
    words += ["--perms", "1777", "--size", str(folder_mb << 20), "--tmpfs", view.FOLDER]
    for folder in parents([*paths, *view.DEVICES]):
        words += ["--perms", "0755", "--dir", folder]
    for path in paths:
        words += ["--ro-bind", path, path]
    for path, target in links:
        words += ["--symlink", target, path]
    for path in view.DEVICES:
        words += ["--dev-bind", path, path]  # the filter refuses to change their modes and times
    words += ["--ro-bind", str(view.harness()), view.HARNESS, "--remount-ro", "/"]
    for name, value in view.ENVIRONMENT.items():
        words += ["--setenv", name, value]
    words += ["--chdir", view.FOLDER, "--seccomp", str(filter_fd), "--"]
    return words, [filter_fd]


def parents(paths: list[str]) -> list[str]:
    """The folders that the paths lie in, outermost first: bwrap would make them for root alone."""
    found = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(found - {"/", view.FOLDER})

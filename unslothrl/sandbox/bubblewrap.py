"""The command line of `bwrap` (bubblewrap 0.8 or newer) that gives a program its view."""

import json
import os
from pathlib import Path

from unslothrl.sandbox import seccomp, view


def count_files(info_fd: int) -> int:
    """How many files and links a program's folder holds, which bwrap does not limit; 0 before it
    is there, and where this user may not see it."""
    try:
        pid = json.loads(os.pread(info_fd, 4096, 0))["child-pid"]
        folder = os.statvfs(f"/proc/{pid}/root{view.FOLDER}")
    except (OSError, ValueError):
        return 0
    return folder.f_files - folder.f_ffree


def command(
    bwrap: str, folder_mb: int, is_root: bool, threads: bool
) -> tuple[list[str], list[int]]:
    """-> (what stands before the program's own command, file descriptors it is to inherit: the last
    is where bwrap writes of the sandbox)."""
    filter_fd, harness_fd = map(view.memory_fd, (seccomp.bpf_filter(threads), view.harness_text()))
    info_fd = view.memory_fd(b"")
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
    words += ["--perms", "0444", "--ro-bind-data", str(harness_fd), view.HARNESS]
    words += ["--remount-ro", "/"]
    for name, value in view.ENVIRONMENT.items():
        words += ["--setenv", name, value]
    words += ["--chdir", view.FOLDER, "--info-fd", str(info_fd), "--seccomp", str(filter_fd), "--"]
    return words, [filter_fd, harness_fd, info_fd]


def parents(paths: list[str]) -> list[str]:
    """The folders that the paths lie in, outermost first: bwrap would make them for root alone."""
    folders = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(folders - {"/", view.FOLDER})

"""The system below: the compiler, memory, disks, limits, the sandbox, the hub, processes that an
earlier run has left."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from unslothrl import sandbox as sandboxes
from unslothrl.cluster.starting import object_store
from unslothrl.data.hub import hub_answers
from unslothrl.doctor.check import OK, PROBLEM, WARNING, Check
from unslothrl.planning.machine import Machine, available_ram_mb, free_mb, usable_ram_mb
from unslothrl.weights.base_model import cache_folder

LEAST_RAM_MB, FEW_RAM_MB = 2_048, 8_192  # torch and two processes of the embedded base; a 4B one
LEAST_DISK_MB = 512
CACHE_MB, RUNS_MB = 20_480, 2_048  # a 7B base in 16 bit and its 4-bit copy; adapters, checkpoints
OPEN_FILES = 4_096  # that Ray takes for a few processes
RAY, OF_RAY = ("raylet", "gcs_server"), "ray::"
PROC = Path("/proc")


def compiler() -> Iterator[Check]:
    """Triton compiles a C file against Python.h for each kernel that it starts, with the compiler
    that it finds as this does (runtime/build.py of 3.6.0)."""
    name = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    remedy = "sudo apt install gcc python{}.{}-dev".format(*sys.version_info[:2])
    if name is None:
        yield Check("compiler", PROBLEM, "neither gcc nor clang, for Triton's kernels", remedy)
        return
    include = sysconfig.get_paths("posix_prefix")["include"]
    command = [name, "-fsyntax-only", "-x", "c", "-I", include, "-"]
    tried = subprocess.run(command, input="#include <Python.h>\n", capture_output=True, text=True)
    if tried.returncode == 0:
        yield Check("compiler", OK, f"{name}, and Python.h in {include}")
        return
    said = [line for line in tried.stderr.splitlines() if "error: " in line] or ["it fails"]
    yield Check("compiler", PROBLEM, f"{name}: {said[0].split('error: ')[-1]}", remedy)


def memory() -> Iterator[Check]:
    free, total = available_ram_mb(), usable_ram_mb()
    found = f"{free / 1024:.1f} of {total / 1024:.1f} GB free"
    if total == 0:
        yield Check("memory", OK, "not known on this system")
    elif free < LEAST_RAM_MB:
        yield Check("memory", PROBLEM, found, "close other programs, or add swap")
    elif free < FEW_RAM_MB:
        remedy = "close other programs, or use --number_of_actors 0 and a small model"
        yield Check("memory", WARNING, found, remedy)
    else:
        yield Check("memory", OK, found)


def shared_memory(machine: Machine) -> Iterator[Check]:
    """Too little makes Ray keep its object store on the disk, as `cluster.starting` has it."""
    wanted_bytes, other = object_store(machine)
    found = f"{machine.shm_mb} MB free"
    if other is None or machine.system != "Linux":
        yield Check("/dev/shm", OK, found)
        return
    wanted = wanted_bytes * 6 // 5 >> 20
    yield Check(
        "/dev/shm",
        WARNING,
        f"{found}, {wanted} wanted: Ray will use {other}, which is slower",
        f"in a container, docker run --shm-size={wanted + 1}m",
    )


def disks(output_dir: str) -> Iterator[Check]:
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    yield disk("disk: 4-bit", cache_folder(), CACHE_MB, "XDG_CACHE_HOME")
    yield disk("disk: hub", hub, CACHE_MB, "HF_HOME")
    yield disk("disk: runs", Path(output_dir), RUNS_MB, "--output_dir")


def disk(name: str, folder: Path, enough_mb: int, setting: str) -> Check:
    """Of a folder that need not be there yet."""
    there = folder.absolute()
    while not there.is_dir() and there != there.parent:
        there = there.parent
    free = free_mb(there)
    found = f"{free / 1024:.1f} GB free in {there}"
    if not os.access(there, os.W_OK | os.X_OK):
        return Check(name, PROBLEM, f"{there} cannot be written", f"set {setting} to another one")
    if free < LEAST_DISK_MB:
        return Check(name, PROBLEM, found, f"free some space, or set {setting} to another disk")
    if free < enough_mb:
        remedy = f"enough for a small model; for others free some, or set {setting} elsewhere"
        return Check(name, WARNING, found, remedy)
    return Check(name, OK, found)


def open_files() -> Iterator[Check]:
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    found = f"{'no limit' if soft == unlimited else soft}, at most " + (
        "no limit" if hard == unlimited else str(hard)
    )
    if hard != unlimited and hard < OPEN_FILES:  # Ray raises the soft limit itself
        remedy = f"raise it to {OPEN_FILES} in /etc/security/limits.conf, or use --cluster local"
        yield Check("open files", WARNING, found, remedy)
    else:
        yield Check("open files", OK, found)


def sandbox() -> Iterator[Check]:
    """Needed by rewards that run code, and by no other."""
    why = {}
    for level in sandboxes.SECURE:
        try:
            reason = sandboxes.available(level)
        except sandboxes.Overloaded as error:
            reason = f"too busy to try ({error})"
        if reason is None:
            yield Check("sandbox", OK, f"{level} works")
            return
        why[level] = " ".join(reason.split())
    yield Check(
        "sandbox",
        WARNING,
        "; ".join(f"{level}: {reason:.120}" for level, reason in why.items()),
        "only --reward code needs it: apt install bubblewrap, or allow user namespaces "
        "(sysctl kernel.apparmor_restrict_unprivileged_userns=0)",
    )


def hub() -> Iterator[Check]:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        yield Check("hub", OK, "not asked, HF_HUB_OFFLINE is set: only what is in the cache")
    elif hub_answers():
        yield Check("hub", OK, "answers")
    else:
        remedy = "use local files, or --model embedded --dataset embedded"
        yield Check("hub", WARNING, "does not answer: nothing can be downloaded", remedy)


def ray_processes() -> Iterator[Check]:
    """Those whose driver has gone; a cluster of `ray start` looks the same."""
    left = orphans(PROC)
    if not left:
        yield Check("Ray", OK, "no process was left by an earlier run")
        return
    numbers = ", ".join(map(str, left))
    yield Check(
        "Ray",
        WARNING,
        f"processes without a driver: {numbers}",
        "end them with `ray stop`, unless you have started a cluster with `ray start`",
    )


def orphans(proc: Path) -> list[int]:
    """Our own processes of Ray whose parent is the first process: its servers, and what it has
    started, whose names begin with `OF_RAY`."""
    found = []
    for folder in proc.glob("[0-9]*"):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            program = Path(os.fsdecode((folder / "cmdline").read_bytes().split(b"\0")[0])).name
            status = (folder / "status").read_text()
        except (OSError, AttributeError):  # it has ended; Windows
            continue
        parents = [line.split()[1] for line in status.splitlines() if line.startswith("PPid:")]
        is_rays = program in RAY or program.startswith(OF_RAY)
        if is_rays and parents == ["1"]:
            found.append(int(folder.name))
    return sorted(found)

"""What this machine is and whether an install will do on it: asked before the first download.

Each check takes what was found and returns `Fault`s, so tests can hand in machines that are not
here. The standard library only, and nothing newer than Python 3.8.
"""

from __future__ import annotations

import collections
import ctypes
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

PYTHONS = ("3.12", "3.11")
MIN_DRIVER = 580  # Linux driver branch of CUDA 13, which torch 2.11's wheels are built with
# CUDA 13's own libcuda, from NVIDIA's package cuda-compat-13-0, which runs on older drivers of data
# centre GPUs: these branches, by NVIDIA_REQUIRE_CUDA of NVIDIA's CUDA 13.0 container images. With a
# newer driver it fails (error 803), and on a GeForce with any (804).
COMPAT = "/usr/local/cuda-13.0/compat"
COMPAT_DRIVERS = (535, 550, 565, 570, 575)
DATA_CENTRE = re.compile(r"(NVIDIA|Tesla) (T4\b|[ABHL]\d)")  # as nvidia-smi names them
MIN_CAPABILITY = 7.5  # CUDA 13 compiles for Turing and later
BF16_CAPABILITY = 8.0
IN_CONTAINER = ("/.dockerenv", "/run/.containerenv", "/kaggle")
WITHOUT = "--set cpu (SET=cpu of make)"

Card = collections.namedtuple("Card", "name driver capability memory_mb")
Fault = collections.namedtuple("Fault", "what found needed mend")


def fault_line(fault):
    return f"{fault.what}: found {fault.found}, needs {fault.needed}: {fault.mend}"


def gigabytes(count):
    return f"{count / 1e9:.1f} GB"


def parse_cards(text):
    """Cards from nvidia-smi's CSV: name, driver, memory in MiB and, where it knows, capability."""
    cards = []
    for line in text.strip().splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 3 or not fields[1][:1].isdigit():
            continue
        memory = int(fields[2]) if fields[2].isdigit() else 0
        try:
            capability = float(fields[3])
        except (IndexError, ValueError):
            capability = None  # drivers before 510 cannot say, and fail the driver check anyway
        cards.append(Card(fields[0], fields[1], capability, memory))
    return cards


def find_cards():
    """The NVIDIA cards, and what nvidia-smi said if it is there but lists none."""
    program = shutil.which("nvidia-smi")
    if not program:
        return [], None
    said = ""
    for more in (",compute_cap", ""):
        fields = "--query-gpu=name,driver_version,memory.total" + more
        query = [program, fields, "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(query, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return [], str(error)
        if answer.returncode == 0 and parse_cards(answer.stdout):
            return parse_cards(answer.stdout), None
        said = (answer.stdout + answer.stderr).strip().split("\n")[0]
    return [], said or "it lists no card"


def card_faults(cards):
    """Of the best card: an old one beside it does no harm, and they share the driver."""
    if not cards:
        return []
    card, found = max(cards, key=lambda card: card.capability or 0), []
    if branch_of(card) < MIN_DRIVER and not uses_compat(card):
        needed = f"{MIN_DRIVER} or newer for CUDA 13 wheels"
        what = f"NVIDIA {card.driver} ({card.name})"
        found.append(Fault("driver", what, needed, driver_mend(card)))
    if card.capability is not None and card.capability < MIN_CAPABILITY:
        needed = f"{MIN_CAPABILITY} or more for CUDA 13 wheels"
        what = f"{card.name}, compute capability {card.capability}"
        found.append(Fault("card", what, needed, f"continue without it: {WITHOUT}"))
    return found


def branch_of(card):
    """580 of driver 580.95.05."""
    return int(card.driver.split(".")[0])


def may_use_compat(card):
    return branch_of(card) in COMPAT_DRIVERS and bool(DATA_CENTRE.match(card.name))


def uses_compat(card):
    there = os.path.exists(os.path.join(COMPAT, "libcuda.so.1"))
    return there and may_use_compat(card)


def driver_mend(card):
    if may_use_compat(card):
        return "sudo apt install cuda-compat-13-0, from NVIDIA's repository (docs/install.md)"
    if "microsoft" in platform.release().lower():  # WSL
        return f"install NVIDIA's driver {MIN_DRIVER} or newer in Windows and restart, or {WITHOUT}"
    if any(map(os.path.exists, IN_CONTAINER)):
        return f"it is the host's: choose a host with driver {MIN_DRIVER} or newer, or {WITHOUT}"
    return f"sudo apt install nvidia-driver-{MIN_DRIVER}-open and restart, or {WITHOUT}"


def library_path(cards, environ):
    """What must be in the environment of processes that compute on these GPUs."""
    if not any(map(uses_compat, cards)):
        return {}
    path = [COMPAT, *environ.get("LD_LIBRARY_PATH", "").split(":")]
    return {"LD_LIBRARY_PATH": ":".join(filter(None, path))}


def card_warning(card):
    if card.capability is None or card.capability >= BF16_CAPABILITY:
        return None
    if card.capability < MIN_CAPABILITY:
        return f"{card.name} is too old for CUDA 13: hide it with CUDA_VISIBLE_DEVICES"
    return (
        f"{card.name} has no bfloat16, which vLLM needs over a 4-bit base: runs generate with the "
        "transformers engine in float16 (not measured)"
    )


def probe_python(program):
    """The version by running it: a pyenv shim can exist and still start nothing."""
    command = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def find_python(folders, first=sys.executable, for_gpu=False):
    """(program, fault): the first Python that fits, beginning with the one that runs this file.
    Where it lacks ensurepip, `venv` says which package to install."""
    names = [f"python{version}" for version in PYTHONS]
    for program in [first] + [os.path.join(folder, name) for name in names for folder in folders]:
        if probe_python(program) in PYTHONS:
            return program, None
    packages = "python3.12 python3.12-venv" + " python3.12-dev" * for_gpu
    mend = f"sudo apt install {packages}, or uv python install 3.12, and run again"
    found = probe_python(first) or "that does not run"
    return None, Fault("python", f"Python {found}", "3.11 or 3.12", mend)


INCLUDE = """
import sys, sysconfig
print("%d.%d" % sys.version_info[:2], sysconfig.get_paths("posix_prefix")["include"])
"""


def compiler_faults(python, environ):
    """Triton compiles a C file against Python.h for each kernel that it starts, with the compiler
    that it finds as this does (runtime/build.py of 3.6.0)."""
    answer = subprocess.run([python, "-c", INCLUDE], capture_output=True, text=True, check=True)
    version, include = answer.stdout.split(None, 1)
    path = environ.get("PATH")
    found = (shutil.which(name, path=path) for name in ("gcc", "clang"))
    compiler = environ.get("CC") or next(filter(None, found), None)
    needed = "gcc or clang and Python.h, for Triton's kernels"
    mend = f"sudo apt install gcc python{version}-dev"
    if compiler is None:
        return [Fault("compiler", "none", needed, mend)]
    command = [*shlex.split(compiler), "-fsyntax-only", "-x", "c", "-I", include.strip(), "-"]
    source = "#include <Python.h>\n"
    tried = subprocess.run(command, input=source, capture_output=True, text=True, env=environ)
    if tried.returncode == 0:
        return []
    said = [line for line in tried.stderr.splitlines() if "error: " in line] or ["it fails"]
    return [Fault("compiler", f"{compiler}: {said[0].split('error: ')[-1]}", needed, mend)]


def library_faults(kind, name="libnuma.so.1"):
    """vLLM's build for CPUs goes on without it until a run asks for its operations."""
    try:
        if kind == "cpu":
            ctypes.CDLL(name)
    except OSError:
        return [Fault("library", f"no {name}", "it for vLLM", "sudo apt install libnuma1")]
    return []


def libc_faults(libc, version, needed):
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if libc == "glibc" and numbers >= [int(part) for part in needed.split(".")]:
        return []
    found = f"{libc} {version}".strip() or "another C library"
    mend = "use a newer Linux, e.g. Ubuntu 22.04"
    return [Fault("system", found, f"glibc {needed} or newer", mend)]


def cache_faults(environ):
    """Of the folders that the first run downloads a model into and quantises it in."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    hub = environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    closed = [path for path in (hub, cache) if not os.access(existing(path), os.W_OK | os.X_OK)]
    mend = "export HF_HOME=/path/with/room XDG_CACHE_HOME=/path/with/room"
    found = f"{closed[0]}, which cannot be written" if closed else ""
    return [Fault("cache", found, "a folder for models", mend)] if closed else []


def shared_memory_warning(kind, folder="/dev/shm"):
    """Ray keeps its object store there, and NCCL what GPUs exchange; Docker gives it 64 MB."""
    size = shutil.disk_usage(folder).total if kind != "base" and os.path.isdir(folder) else None
    if size is None or size >= 1 << 30:
        return None
    return f"{folder} has {size >> 20} MB, too few for Ray and NCCL: docker run --shm-size=8g"


def existing(path):
    path = pathlib.Path(path).absolute()
    return path if path.exists() else existing(path.parent)


def disk_needs(header, venv, environ):
    """(folder, bytes) of each place an install fills: the environment, pip's work, pip's cache."""
    download = int(header["download-bytes"])
    needs = [(venv, int(header["installed-bytes"])), (tempfile.gettempdir(), download)]
    if not environ.get("PIP_NO_CACHE_DIR"):
        home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        needs.append((environ.get("PIP_CACHE_DIR") or os.path.join(home, "pip"), download))
    return [(existing(path), count) for path, count in needs]


def disk_faults(needs):
    """Needs on one file system add up."""
    totals = {}  # type: dict
    for path, count in needs:
        device = path.stat().st_dev
        first, total = totals.get(device, (path, 0))
        totals[device] = (first, total + count)
    mend = "free some space, or point TMPDIR and PIP_CACHE_DIR at a larger disk"
    found = [(path, shutil.disk_usage(path).free, total) for path, total in totals.values()]
    return [
        Fault("disk", f"{gigabytes(free)} free at {path}", gigabytes(total), mend)
        for path, free, total in found
        if free < total
    ]

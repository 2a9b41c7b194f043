"""What this machine is and whether an install will do on it: asked before the first download.

Each check takes what was found and returns `Fault`s, so tests can hand in machines that are not
here. The standard library only, and nothing newer than Python 3.8.
"""

from __future__ import annotations

import collections
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PYTHONS = ("3.12", "3.11")
MIN_DRIVER = 580  # Linux driver branch of CUDA 13, which torch 2.11's wheels are built with
MIN_CAPABILITY = 7.5  # CUDA 13 compiles for Turing and later
BF16_CAPABILITY = 8.0

Card = collections.namedtuple("Card", "name driver capability memory_mb")
Fault = collections.namedtuple("Fault", "what found needed mend")


def fault_line(fault):
    return f"{fault.what}: found {fault.found}, needs {fault.needed}: {fault.mend}"


def gigabytes(count):
    return f"{count / 1e9:.1f} GB"


# Cards


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
    major = card.driver.split(".")[0]
    if major.isdigit() and int(major) < MIN_DRIVER:
        mend = f"sudo apt install nvidia-driver-{MIN_DRIVER} and restart, or SET=cpu"
        needed = f"{MIN_DRIVER} or newer for CUDA 13 wheels"
        found.append(Fault("driver", f"NVIDIA {card.driver} ({card.name})", needed, mend))
    if card.capability is not None and card.capability < MIN_CAPABILITY:
        needed = f"{MIN_CAPABILITY} or more for CUDA 13 wheels"
        what = f"{card.name}, compute capability {card.capability}"
        found.append(Fault("card", what, needed, "continue without it: SET=cpu"))
    return found


def card_warning(card):
    if card.capability is None or card.capability >= BF16_CAPABILITY:
        return None
    if card.capability < MIN_CAPABILITY:
        return f"{card.name} is too old for CUDA 13: hide it with CUDA_VISIBLE_DEVICES"
    return (
        f"{card.name} has no bfloat16, which vLLM needs over a 4-bit base: use the learner's "
        "own engine or a small 16-bit model (not measured)"
    )


# Python


PROBE = """
import importlib.util, sys
print("%d.%d" % sys.version_info[:2], bool(importlib.util.find_spec("ensurepip")))
"""


def probe_python(program):
    """(version, has ensurepip) by running it: a pyenv shim can exist and still start nothing."""
    try:
        answer = subprocess.run([program, "-c", PROBE], capture_output=True, text=True, timeout=60)
        version, has_pip = answer.stdout.split()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return version, has_pip == "True"


def find_python(folders, first=sys.executable):
    """(program, fault): the first Python that fits, beginning with the one that runs this file."""
    names = [f"python{version}" for version in PYTHONS]
    programs = [first] + [os.path.join(folder, name) for name in names for folder in folders]
    without_pip = None
    for program in programs:
        version, has_pip = probe_python(program) or (None, False)
        if version in PYTHONS and has_pip:
            return program, None
        if version in PYTHONS and without_pip is None:
            without_pip = Fault(
                "python",
                f"{program} without ensurepip",
                "the venv module with pip",
                f"sudo apt install python{version}-venv",
            )
    version = (probe_python(first) or ("that does not run", False))[0]
    install = "sudo apt install python3.12 python3.12-venv, or uv python install 3.12"
    missing = Fault("python", f"Python {version}", "3.11 or 3.12", f"{install}, and run again")
    return None, without_pip or missing


# System and disk


def libc_faults(libc, version, needed):
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if libc == "glibc" and numbers >= [int(part) for part in needed.split(".")]:
        return []
    found = f"{libc} {version}".strip() or "another C library"
    mend = "use a newer Linux, e.g. Ubuntu 22.04"
    return [Fault("system", found, f"glibc {needed} or newer", mend)]


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


def free_bytes(path):
    return shutil.disk_usage(path).free


def device_of(path):
    return os.stat(path).st_dev


def disk_faults(needs, free=free_bytes, device=device_of):
    """Needs on one file system add up."""
    totals = {}  # type: dict
    for path, count in needs:
        first, total = totals.get(device(path), (path, 0))
        totals[device(path)] = (first, total + count)
    mend = "free some space, or point TMPDIR and PIP_CACHE_DIR at a larger disk"
    return [
        Fault("disk", f"{gigabytes(free(path))} free at {path}", gigabytes(total), mend)
        for path, total in totals.values()
        if free(path) < total
    ]

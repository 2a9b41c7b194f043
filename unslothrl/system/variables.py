"""Environment variables that must be set before torch is imported, the same in every process; and
the command line as a process of its own: for Python's interface, the page and the self-test.

Equal thread counts are what makes the in-process cluster and Ray agree bit for bit; vLLM on a CPU
fixes them for good when it starts, and Ray would set one thread for each worker.
"""

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CARD_LIMIT = "UNSLOTHRL_CARD_MB"  # what this project may use of each GPU
SCRATCH = "UNSLOTHRL_SCRATCH"  # folder for adapters on their way to vLLM; the driver removes it
PROCESS = "UNSLOTHRL_PROCESS"  # an actor's or learner's name, in its environment for others to see
PYTHON = "UNSLOTHRL_PYTHON"  # of the environment that has it, where that is not this process's
UNSANDBOXED = "UNSLOTHRL_UNSANDBOXED"  # set where tools may run code with limits only
VISIBLE = "CUDA_VISIBLE_DEVICES"
KEEP_VISIBLE = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"  # Ray then leaves VISIBLE as it is
IMPORT_FOLDER = Path(__file__).parents[2]  # where another process finds the package
CHECKER = "answercheck"  # the package that compares answers; in a checkout it lies elsewhere
SAID = "unslothrl: "  # begins the line of an error

# CUDA 13 on the older driver of a data centre GPU, as Colab has one: NVIDIA's forward compatibility
# (docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html). The package
# cuda-compat-13-0 brings CUDA 13's own libcuda, which only drivers older than CUDA 13 may find.
COMPAT = Path("/usr/local/cuda-13.0/compat")
COMPAT_DRIVERS = (535, 550, 565, 570, 575)  # NVIDIA_REQUIRE_CUDA of its CUDA 13.0 images
DATA_CENTRE = re.compile(r"(NVIDIA|Tesla) (T4\b|[ABHL]\d)")  # as nvidia-smi names them
LINKED = "LD_LIBRARY_PATH"
ANSWER_S = 60  # for torch and nvidia-smi

INHERITED = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "XDG_CACHE_HOME",
    "PYTHONHASHSEED",
    "TRITON_INTERPRET",
    CARD_LIMIT,
)

OF_VLLM = {  # set before vLLM is imported, by its engine and by Unsloth
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the actor is the process; another one is 30 s of start
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two engines bound to the same cores starve each other
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiles at run time, and has no seed per request
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WSL2_ENABLE_PIN_MEMORY": "1",  # read under WSL 2 alone: vLLM's runner needs pinned memory
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def folder_of(package: str) -> Path:
    """Where another process finds a package."""
    if (IMPORT_FOLDER / "packages" / package).is_dir():  # of a checkout, maybe not installed
        return IMPORT_FOLDER / "packages" / package
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(spec.origin).parents[1]


def import_path() -> str:
    """PYTHONPATH with which another process can import this package, and what comes with it."""
    folders = (IMPORT_FOLDER, folder_of(CHECKER))
    return os.pathsep.join(dict.fromkeys(map(str, folders)))


def python_path() -> str:
    """The same, and before what is on this process's path already."""
    return os.pathsep.join(filter(None, [import_path(), os.environ.get("PYTHONPATH")]))


def defaults(cpus: int, gpu: bool, alone: bool = False) -> dict[str, str]:
    """What a process gets where the user has not set it; `alone`: no other computes beside it."""
    values = {
        "OMP_NUM_THREADS": str(cpus),
        # Idle threads must not spin against another process's for long, but waking takes as long as
        # a small operation. A step alone: 2.1 s without a spin, 1.5 s with 500 rounds, 0.9 s with
        # 10,000; with Ray on the same two cores 2.2, 1.7 and 4.9 s.
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "10000" if alone else "500",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "10",
        "HF_HUB_DISABLE_TELEMETRY": "1",  # TRL's trainers report their use to the hub
    }
    if not gpu:
        # Tracing vLLM's sampler takes 20 s and a C++ compiler, and gains nothing on a CPU.
        values["TORCH_COMPILE_DISABLE"] = "1"
    return values


def apply(cpus: int, gpu: bool, alone: bool = False) -> None:
    """Sets the defaults in this process; to be called before torch is imported."""
    for name, value in defaults(cpus, gpu, alone).items():
        os.environ.setdefault(name, value)
    # It warns of a kernel package that a CPU may do without, in every process.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


@contextlib.contextmanager
def kept(name: str) -> Iterator[None]:
    """A variable of the environment is afterwards what it was."""
    before = os.environ.get(name)
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def of_workers(cpus: int, gpu: bool) -> dict[str, str]:
    """What a worker process must have: this process's values, whatever Ray would set."""
    names = (*defaults(cpus, gpu), *INHERITED)
    return {name: os.environ[name] for name in names if name in os.environ}


def of_node(cpus: int, gpu: bool, here: Mapping[str, str]) -> dict[str, str]:
    """What a worker of another machine must have: what is right for that machine, except where the
    user has set something else here, where `here` would be right. Folders and tokens are its own.
    """
    values = defaults(cpus, gpu)
    for name in {*values, *here}:
        if os.environ.get(name, here.get(name)) != here.get(name):
            values[name] = os.environ[name]
    same = ("PYTHONHASHSEED", "TRITON_INTERPRET", CARD_LIMIT)
    return values | {name: os.environ[name] for name in same if name in os.environ}


def of_cards(*indices: int) -> dict[str, str]:
    """What binds a worker to GPUs that this process sees, whatever Ray has given it."""
    names = os.environ.get(VISIBLE, "").split(",")
    chosen = [names[i] if i < len(names) and names[i] else str(i) for i in indices]
    return {VISIBLE: ",".join(chosen), KEEP_VISIBLE: "1"}


def process(words: Sequence[str], variables: Mapping[str, str] = {}) -> dict[str, Any]:
    """The arguments of `subprocess` for a command line, with these variables besides."""
    own = {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    return {
        "args": [os.environ.get(PYTHON, sys.executable), "-m", "unslothrl", *words],
        "env": {**os.environ, **own, **variables},
        "encoding": "utf-8",
        "errors": "replace",
        "stdin": subprocess.DEVNULL,
    }


def error_in(lines: Iterable[str]) -> str:
    """What it has said last of a mistake or a failure, or ""."""
    said = [line.removeprefix(SAID) for line in lines if line.startswith(SAID)]
    return said[-1] if said else ""


def use_cuda_compat() -> None:
    """Starts this program again with `COMPAT` on the linker's path where that is needed: a process
    reads the variable once, when it starts."""
    path = os.environ.get(LINKED, "")
    is_needed = (COMPAT / "libcuda.so.1").exists() and str(COMPAT) not in path.split(":")
    if is_needed and any(map(takes_compat, drivers())):
        os.environ[LINKED] = ":".join(filter(None, [str(COMPAT), path]))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def takes_compat(driver: tuple[str, str]) -> bool:
    """Whether the package is for such a (driver's version, GPU's name)."""
    version, name = driver
    branch = version.partition(".")[0]
    return (
        branch.isdigit() and int(branch) in COMPAT_DRIVERS and DATA_CENTRE.match(name) is not None
    )


def answer_of(*command: str) -> tuple[int, str, str]:
    """-> (exit code, output, errors) of a program; (1, "", why) where it does not start or end."""
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", str(error)
    return done.returncode, done.stdout, done.stderr


def drivers() -> list[tuple[str, str]]:
    """(driver's version, GPU's name) by nvidia-smi; [] where that is not there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = "--query-gpu=driver_version,name", "--format=csv,noheader"
    code, said, _ = answer_of(program, *query)
    lines = [line.strip() for line in said.splitlines() if not code]
    pairs = [line.partition(", ") for line in lines if line[:1].isdigit()]
    return [(version, name) for version, _, name in pairs]

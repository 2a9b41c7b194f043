"""Collects, in little space, what explains why a stage failed: its machine will be gone."""

import contextlib
import io
import json
import re
import subprocess
import tarfile
import time
from importlib import metadata
from pathlib import Path

OUTPUT_HEAD, OUTPUT_TAIL = 100_000, 500_000  # bytes of a stage's output
LOG_TAIL, MOST_LOGS = 40_000, 40  # of one of Ray's logs, and how many
RAY_LOGS = ("worker-", "python-core-", "raylet", "gcs_server", "runtime_env")
RUN_FILES = ("config.toml", "metrics.jsonl", "summary.json", "result.json", "work.json")
COMMANDS = (
    "nvidia-smi",
    "nvidia-smi -q -d MEMORY,ECC,PIDS",
    "free -m",
    "df -h / /tmp /dev/shm",
    "ps axo pid,ppid,rss,etime,args --sort -rss",
    "dmesg --ctime --level err,crit,alert,emerg",
)

SLEEP = re.compile(
    r"CUDA driver error|cuMem(?:Create|Map|SetAccess|AddressReserve)|cumem_allocator"
)
OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA(?: error)?: out of memory|CUDA out of memory")
OF_TORCH = {  # in the message of torch.cuda.OutOfMemoryError
    "tried to allocate": r"Tried to allocate ([\d.]+ \w+)",
    "allocated by PyTorch": r"Of the allocated memory ([\d.]+ \w+) is allocated by PyTorch",
    "reserved by PyTorch but not allocated": r"([\d.]+ \w+) is reserved by PyTorch but unallocated",
    "of this process, by the driver": r"this process has ([\d.]+ \w+) memory in use",
    "allowed": r"([\d.]+ \w+) allowed",
}


def cause_of(output: str, is_capped: bool, is_wsl: bool) -> str | None:
    """What a failed stage's output is known to mean."""
    if SLEEP.search(output) and not OUT_OF_MEMORY.search(output):
        where = "WSL 2" if is_wsl else "this driver"
        return (
            f"sleep mode failed: {where} refused CUDA's virtual memory (cuMemCreate, cuMemMap), so "
            "a learner and an engine cannot take turns on one GPU: --engine transformers needs none"
        )
    if OUT_OF_MEMORY.search(output) and is_capped:
        return (
            "out of memory under a cap, which need not be so on a real GPU of that size: the cap "
            "counts all that PyTorch has reserved, also what a sleeping engine has given back"
        )
    return None


def memory_when_it_failed(output: str) -> dict[str, str]:
    """What PyTorch's last message says of memory that was allocated, reserved, and the driver's."""
    last = output.rpartition("Tried to allocate")
    message = "".join(last[1:])[:2000]
    found = {name: re.search(pattern, message) for name, pattern in OF_TORCH.items()}
    return {name: match[1] for name, match in found.items() if match}


def cut(data: bytes, head: int, tail: int) -> bytes:
    """The first `head` and the last `tail` bytes, with a note of how many are left out between."""
    if len(data) <= head + tail:
        return data
    left_out = f"\n[... {len(data) - head - tail} bytes left out ...]\n".encode()
    return data[:head] + left_out + data[-tail:]


def machine_state() -> str:
    """The output of `COMMANDS` now."""
    parts = []
    for command in COMMANDS:
        try:
            done = subprocess.run(command.split(), capture_output=True, text=True, timeout=60)
            output = done.stdout[:20_000] + done.stderr[:2_000]
        except (OSError, subprocess.TimeoutExpired) as error:
            output = str(error)
        parts.append(f"$ {command}\n{output}")
    return "\n".join(parts)


def versions() -> str:
    installed = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    return "\n".join(f"{name}=={installed[name]}" for name in sorted(installed, key=str))


def ray_logs(folder: Path) -> list[Path]:
    """The newest logs of Ray's processes, of any session below `folder`."""
    logs = [path for path in folder.glob("**/session_2*/logs/*") if path.is_file()]
    some = [path for path in logs if path.stat().st_size and path.name.startswith(RAY_LOGS)]
    return sorted(some, key=lambda path: path.stat().st_mtime)[-MOST_LOGS:]


def collect(result: dict, folder: Path, ray_folder: Path, target: Path) -> None:
    """Writes the result, the outputs and the logs of a stage run in `folder` into a .tar.gz."""
    files: dict[str, bytes] = {
        "stage.json": json.dumps(result, indent=1).encode(),
        "machine.txt": machine_state().encode(),
        "versions.txt": versions().encode(),
    }
    output = folder / "output.log"
    if output.exists():
        files["output.log"] = cut(output.read_bytes(), OUTPUT_HEAD, OUTPUT_TAIL)
    for name in RUN_FILES:
        for path in folder.glob(f"**/{name}"):
            with contextlib.suppress(OSError):
                text = cut(path.read_bytes(), LOG_TAIL, LOG_TAIL)
                files[f"run/{path.relative_to(folder)}"] = text
    for path in ray_logs(ray_folder):
        with contextlib.suppress(OSError):
            files[f"ray/{path.name}"] = cut(path.read_bytes(), 0, LOG_TAIL)
    with tarfile.open(target, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{folder.name}/{name}")
            info.size, info.mtime = len(data), int(time.time())
            archive.addfile(info, io.BytesIO(data))


def together(parts: list[Path], target: Path, most_bytes: int) -> list[str]:
    """Puts the archives into one of at most `most_bytes`, newest first; without archives there is
    no file. -> the names of those left out"""
    left_out, size = [], 0
    target.unlink(missing_ok=True)
    if not parts:
        return left_out
    with tarfile.open(target, "w") as archive:
        for part in sorted(parts, key=lambda path: path.stat().st_mtime, reverse=True):
            size += part.stat().st_size
            if size > most_bytes:
                left_out.append(part.name)
            else:
                archive.add(part, part.name)
    return left_out

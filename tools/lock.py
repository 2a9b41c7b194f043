"""Write the requirements files from pyproject.toml, the one place where dependencies are written.

    python tools/lock.py              # resolve, keeping the versions that the locks already have
    python tools/lock.py --upgrade    # resolve anew
    python tools/lock.py --check      # no network: do the locks still satisfy pyproject.toml?

Each lock holds every package, so pip installs it with --no-deps. One lock serves Python 3.11 and
3.12: each is resolved with a preference for the other's versions until they agree, and the union is
written. The header carries what tools/setup_env.py tells the user before it downloads: bytes to
download, bytes on disk, glibc.

Needs `uv` (pip install uv), a network and about three minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import fsspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from setup_env import TORCH_CPU_WHEELS, read_header, read_pins

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12")
PLATFORM = "x86_64-manylinux_2_35"  # for the resolver; the header says what the wheels need
HEADER = (
    "Every package of the set, for Linux x86-64, Python 3.11 and 3.12. Install with --no-deps.",
    "Written by tools/lock.py from pyproject.toml: edit that, then run `make lock`.",
)
UV_OPTIONS = ["--python-platform", PLATFORM, "--only-binary", ":all:", "-q"]
BLOCK = 4096  # bytes a file system gives to the smallest file
TAIL = 1 << 18  # bytes fetched from the end of a wheel: its table of contents, mostly


def public(version: str) -> str:
    """2.13.0+cpu is resolved as 2.13.0, whose metadata every index has."""
    return version.partition("+")[0]


class Plan:
    """One lock as pyproject.toml describes it."""

    def __init__(self, name: str, project: dict):
        table = project["tool"]["unslothrl"]["locks"][name]
        sources = project["dependency-groups"] | project["project"]["optional-dependencies"]
        self.name = name
        self.file = ROOT / table["file"]
        self.exclude: list[str] = table["exclude"]
        groups = (line for key in table["from"] for line in sources[key])
        self.wanted: list[str] = [*project["project"]["dependencies"], *groups]

    def local(self) -> dict[str, str]:
        """Packages pinned to a local build, such as torch 2.13.0+cpu."""
        pinned = (line for line in self.wanted if "+" in line)
        return read_pins("\n".join(pinned))

    def digest(self) -> str:
        """Of everything that decides the resolution, to see later that a lock is stale."""
        told = [sorted(self.wanted), sorted(self.exclude)]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def resolve(plan: Plan, python: str, kept: dict[str, str], work: pathlib.Path) -> dict[str, str]:
    """One uv resolution that prefers the versions in `kept`."""
    wanted = [re.sub(r"\+\w+", "", line) for line in plan.wanted]
    output = write(work / "lock.txt", (f"{n}=={public(v)}" for n, v in kept.items()))
    overrides = (f"{n}=={public(v)}" for n, v in plan.local().items())
    command = ["uv", "pip", "compile", write(work / "wanted.in", wanted), "-o", output]
    command += ["--excludes", write(work / "exclude.in", plan.exclude)]
    command += ["--overrides", write(work / "override.in", overrides)]
    command += ["--python-version", python, "--no-header", "--no-annotate", *UV_OPTIONS]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return read_pins(pathlib.Path(output).read_text()) | plan.local()


def write(path: pathlib.Path, lines: Iterable[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def agree(plan: Plan, kept: dict[str, str], work: pathlib.Path) -> dict[str, str]:
    """Versions that serve every Python: each one's bounds differ, so they take turns."""
    for _ in range(4):
        found = []
        for python in PYTHONS:
            found.append(resolve(plan, python, kept, work))
            kept = kept | found[-1]
        older, newer = found
        differing = [name for name in older if newer.get(name, older[name]) != older[name]]
        if not differing:
            return older | newer
    sys.exit(f"{plan.file.name}: no one version serves every Python: {', '.join(differing)}")


def wheel_links(
    plan: Plan, packages: dict[str, str], python: str, work: pathlib.Path
) -> dict[str, str]:
    """The wheel that this Python gets, for every package of an ordinary index: address to hash."""
    ordinary = [f"{n}=={v}" for n, v in packages.items() if n not in plan.local()]
    command = ["uv", "pip", "compile", write(work / "sized.in", ordinary), "--no-deps", *UV_OPTIONS]
    command += ["--format", "pylock.toml", "--python-version", python]
    written = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    tag = "cp" + python.replace(".", "")
    links = {}
    for package in tomllib.loads(written)["packages"]:
        offered = {wheel["url"]: wheel["hashes"]["sha256"] for wheel in package["wheels"]}
        chosen = next((url for url in offered if f"-{tag}-" in url), next(iter(offered)))
        links[chosen] = offered[chosen]
    return links


def wheel_size(link: str) -> tuple[int, int]:
    """Bytes to download, bytes on disk once unpacked: its table of contents, which comes last."""
    with fsspec.open(link, block_size=TAIL) as source, zipfile.ZipFile(source) as archive:
        unpacked = sum(-(-entry.file_size // BLOCK) * BLOCK for entry in archive.infolist())
        return source.seek(0, 2), unpacked


def glibc(link: str) -> Version:
    """The oldest glibc that this wheel names, 2.17 for pure Python."""
    named = re.findall(r"manylinux_(\d+)_(\d+)_", link.rsplit("/", 1)[-1])
    return min((Version(".".join(each)) for each in named), default=Version("2.17"))


def local_wheels(plan: Plan, work: pathlib.Path) -> list[str]:
    """Local builds, fetched the way setup_env does: as pip is configured, else PyTorch's index."""
    links = []
    for name, version in plan.local().items():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(work)]
        command.append(f"{name}=={version}")
        if subprocess.run(command, capture_output=True).returncode:
            subprocess.run([*command, "--index-url", TORCH_CPU_WHEELS], check=True)
        links += [str(path) for path in work.glob(f"{name}-*.whl")]
    return links


def measure(plan: Plan, packages: dict[str, str], work: pathlib.Path) -> dict[str, object]:
    """The header's figures: those of the Python version that needs more."""
    ours = local_wheels(plan, work)
    totals, oldest = [], [Version("2.17")]
    for python in PYTHONS:
        links = [*wheel_links(plan, packages, python, work), *ours]
        with ThreadPoolExecutor(16) as pool:
            sizes = list(pool.map(wheel_size, links))
        totals.append((sum(size[0] for size in sizes), sum(size[1] for size in sizes)))
        oldest += [glibc(link) for link in links]
    download, installed = max(totals)
    facts = {"packages": len(packages), "download-bytes": download, "installed-bytes": installed}
    return {**facts, "glibc": max(oldest)}


def write_lock(plan: Plan, upgrade: bool) -> None:
    kept = {} if upgrade or not plan.file.exists() else read_pins(plan.file.read_text())
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        packages = agree(plan, kept, work)
        facts = measure(plan, packages, work) | {"inputs": plan.digest()}
    lines = [f"# {line}" for line in (*HEADER, *(f"{k}: {v}" for k, v in facts.items()))]
    lines += [f"{name}=={packages[name]}" for name in sorted(packages)]
    partial = plan.file.with_suffix(".partial")
    write(partial, lines)
    partial.replace(plan.file)
    print(plan.file.name, facts)


def faults(plan: Plan) -> list[str]:
    """What is wrong with a lock, one line each; needs no network."""
    text = plan.file.read_text()
    locked, found = read_pins(text), []
    if read_header(text).get("inputs") != plan.digest():
        found.append("older than pyproject.toml's dependencies: run `make lock`")
    for requirement in map(Requirement, plan.wanted):
        version = locked.get(canonicalize_name(requirement.name))
        if version is None:
            found.append(f"{requirement.name} is missing: run `make lock`")
        elif not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{requirement.name}=={version} does not satisfy {requirement.specifier}")
    forbidden = {canonicalize_name(name) for name in plan.exclude}
    found += [f"{name} is excluded by pyproject.toml" for name in sorted(forbidden & set(locked))]
    return [f"{plan.file.name}: {line}" for line in found]


def plans() -> list[Plan]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [Plan(name, project) for name in project["tool"]["unslothrl"]["locks"]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="verify the locks, without network")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    options = parser.parse_args()
    if not options.check:
        for plan in plans():
            write_lock(plan, options.upgrade)
    found = [line for plan in plans() for line in faults(plan)]
    sys.exit("\n".join(found) if found else 0)


if __name__ == "__main__":
    main()

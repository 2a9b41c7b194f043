"""Pack the GPU set for a machine that has a Hopper GPU and no network.

    python tools/pack_gpu_set.py OUT --has FILE

Downloads the pins of requirements.txt that the target lacks, leaves out what a Hopper GPU never
loads, and writes one xz archive in parts of at most 50 MB, OUT/00/part-00, OUT/01/part-01 and so
on. OUT/pins.txt says of each pin where it went. FILE has a line for each package of the target:
`name==version`, as `pip list --format freeze` prints, or `name` alone. Versions that differ from
the pin are printed here; bench/gpu.py finds them on the target too, and keeps them in gpu.json.

On the target, which needs Python 3.12 and the GPU set's torch:

    mkdir -p SITE && cat PARTS/part-* | tar -xJf - -C SITE
    PYTHONPATH=SITE OUT=results bash bench/gpu.sh

Needs pip, a network, 3 GB of disk and a few minutes.
"""

import argparse
import fnmatch
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from lock import pins
from packaging.utils import canonicalize_name

LOCK = Path(__file__).resolve().parents[1] / "requirements.txt"
PART_BYTES = 50_000_000
DROPPED = {  # packages, with * for any characters -> why a run on a Hopper GPU does without them
    "cuda-tile nvidia-cutlass-dsl* tilelang tokenspeed-* z3-solver": "kernels of other models",
    "nvidia-cuda-cc* nvidia-cuda-crt nvidia-cuda-nv[cd]* nvidia-nvvm": "CUDA's compiler",
    "ast-serialize librt mypy ruff": "checks the code",
}
DROPPED_FILES = (  # FlashAttention 3 serves Hopper; bitsandbytes loads its build for CUDA 13.0
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/vllm-rs", "studio/*", "unsloth_studio/*",
    "ray/cpp/*", "ray/dashboard/client/*", "ray/jars/*", "ray/rllib/*", "*/tests/*",
    "bitsandbytes/libbitsandbytes_cuda1[0-2]*.so", "bitsandbytes/libbitsandbytes_cuda13[1-9]*.so",
    "bitsandbytes/libbitsandbytes_rocm*.so", "bitsandbytes/libbitsandbytes_xpu*.so",
)  # fmt: skip


def why_dropped(name: str) -> str | None:
    for patterns, why in DROPPED.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns.split()):
            return why
    return None


def places(wanted: dict[str, str], has: dict[str, str]) -> dict[str, str]:
    """Of each pin (name -> version): "packed", "on the target" and with which version where that
    differs, or "dropped" and why. `has`: as `on_target` gives it."""
    found = {}
    for name, version in wanted.items():
        if name in has:
            found[name] = "on the target"
            if has[name] not in ("", version):
                found[name] += f": version {has[name]}"
        else:
            found[name] = f"dropped: {why}" if (why := why_dropped(name)) else "packed"
    return found


def on_target(text: str) -> dict[str, str]:
    """Name to version of every line of `name==version` or `name`; "": not known."""
    split = (line.strip().partition("==") for line in text.splitlines() if line.strip())
    return {canonicalize_name(name): version for name, _, version in split}


def download(requirements: list[str], wheels: Path) -> None:
    older = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 26, 27, 28, 31, 34, 35)]
    platforms = [*older, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    pip += ["--python-version", "3.12", "--implementation", "cp", "-d", str(wheels)]
    pip += [word for platform in platforms for word in ("--platform", platform)]
    subprocess.run([*pip, *requirements], check=True)


def unpack(wheel: Path, site: Path) -> None:
    """A wheel's modules, as pip would put them into `site`, without `DROPPED_FILES`."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = entry.filename
            if ".data/" in path:  # NAME.data/purelib/... belongs into site; scripts, headers do not
                kind, _, path = path.partition(".data/")[2].partition("/")
                if kind not in ("purelib", "platlib"):
                    continue
            if entry.is_dir() or any(fnmatch.fnmatch(path, each) for each in DROPPED_FILES):
                continue
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            if mode := entry.external_attr >> 16 & 0o777:  # Ray's servers are programs
                target.chmod(mode)


def cut(archive: Path, out: Path) -> int:
    """Cuts a file into parts of at most `PART_BYTES`. -> how many"""
    with archive.open("rb") as source:
        for number, chunk in enumerate(iter(lambda: source.read(PART_BYTES), b"")):
            part = out / f"{number:02d}" / f"part-{number:02d}"
            part.parent.mkdir()
            part.write_bytes(chunk)
    return number + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--has", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    wanted = pins(LOCK.read_text())
    found = places(wanted, on_target(given.has.read_text()))
    given.out.mkdir(parents=True)
    lines = [f"{name}=={wanted[name]}: {place}" for name, place in found.items()]
    (given.out / "pins.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(line for line in lines if not line.endswith((": packed", ": on the target"))))
    requirements = [f"{name}=={wanted[name]}" for name, place in found.items() if place == "packed"]
    print(f"{len(requirements)} of {len(wanted)} packages to pack", flush=True)
    with tempfile.TemporaryDirectory() as work:
        wheels, site, archive = Path(work, "wheels"), Path(work, "site"), Path(work, "site.tar.xz")
        download(requirements, wheels)
        for wheel in sorted(wheels.glob("*.whl")):
            unpack(wheel, site)
        with tarfile.open(archive, "w:xz", preset=3) as packed:
            packed.add(site, ".")
        size, count = archive.stat().st_size, cut(archive, given.out)
    print(f"{size / 1e6:.0f} MB in {count} parts")


if __name__ == "__main__":
    main()

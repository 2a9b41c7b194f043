"""Does a lock hold every shared library that its wheels need?

A library that is built for another CUDA installs without a word and fails when it is loaded. So
`make lock` downloads each wheel that has shared libraries, reads their `DT_NEEDED` entries, and
keeps what it read in a JSON file beside this one, so that an unchanged wheel is not downloaded
again and `tools/lock.py --check` needs no network.

A library counts as found if the system or the driver has it, if RPATH or RUNPATH leads to it, if
its own wheel or a package that its wheel requires has it, or if importing torch has loaded it.
What is missing on purpose (a build for another CUDA in the same wheel) is written with its reason
in pyproject.toml, under `optional-libraries` of the lock.
"""

from __future__ import annotations

import email.parser
import fnmatch
import hashlib
import json
import pathlib
import posixpath
import re
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import elf
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SHARED = re.compile(r"\.so(\.[\w.]+)?$")
EXTENSION = re.compile(r"\.(cpython-[\w-]+|abi3)\.so$")  # a Python module: nobody links against it
SYSTEM = {  # what manylinux expects of every Linux: glibc, the compiler's run time, zlib
    "ld-linux-x86-64.so.2", "libanl.so.1", "libc.so.6", "libcrypt.so.1", "libdl.so.2",
    "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libresolv.so.2", "librt.so.1",
    "libstdc++.so.6", "libutil.so.1", "libz.so.1",
}  # fmt: skip
DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4"}
LOADED_BY_TORCH = re.compile(r"torch$|nvidia-")  # torch/__init__.py loads NVIDIA's before its own


@dataclass(frozen=True)
class Need:
    """A library that the wheel itself lacks. `found_at`: where RPATH would find it, if anywhere."""

    library: str
    by: str
    found_at: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wheel:
    """What was read from one wheel; paths are those in site-packages."""

    file: str
    sha256: str
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    needs: tuple[Need, ...] = field(default=())

    @property
    def package(self) -> str:
        return canonicalize_name(self.file.split("-")[0])

    @classmethod
    def of(cls, stored: dict) -> Wheel:
        needs = tuple(Need(n["library"], n["by"], tuple(n["found_at"])) for n in stored["needs"])
        whole = stored | {key: tuple(stored[key]) for key in ("requires", "provides")}
        return cls(**(whole | {"needs": needs}))


def installed_path(entry: str) -> str:
    """Where pip puts an entry of a wheel, from site-packages."""
    _, data, rest = entry.partition(".data/")
    if not data:
        return entry
    kind, _, path = rest.partition("/")
    return path if kind in ("purelib", "platlib") else f"../../../{path}"


def has_libraries(archive: zipfile.ZipFile) -> bool:
    return any(SHARED.search(name) for name in archive.namelist())


def read_wheel(path: pathlib.Path, sha256: str = "") -> Wheel:
    """-> what the wheel at `path` needs that neither it nor the system has."""
    found: dict[str, elf.Dynamic] = {}
    with zipfile.ZipFile(path) as archive:
        (metadata,) = (n for n in archive.namelist() if re.fullmatch(r"[^/]+/METADATA", n))
        requires = requirements_of(archive.read(metadata).decode())
        for entry in archive.infolist():
            if SHARED.search(entry.filename):
                with tempfile.TemporaryFile() as copy, archive.open(entry) as source:
                    shutil.copyfileobj(source, copy, 1 << 20)
                    copy.seek(0)
                    if (dynamic := elf.read(copy)) is not None:
                        found[installed_path(entry.filename)] = dynamic
    own = names_of(found)
    needs: dict[tuple, Need] = {}  # the first of many that need the same from the same folders
    for by, dynamic in sorted(found.items()):
        for library in dynamic.needed:
            if library not in SYSTEM | DRIVER | own:
                places = tuple(searched(by, dynamic.search, library))
                needs.setdefault((library, places, variant(by)), Need(library, by, places))
    provides = {name for name in found if not EXTENSION.search(name) and ".libs/" not in name}
    provides |= {
        posixpath.join(posixpath.dirname(name), found[name].soname or "") for name in list(provides)
        if found[name].soname
    }  # fmt: skip
    return Wheel(path.name, sha256, requires, tuple(sorted(provides)), tuple(needs.values()))


def variant(path: str) -> str:
    """Variants in one wheel are kept apart by their names, since some may be optional."""
    return posixpath.basename(path) if not EXTENSION.search(path) else posixpath.dirname(path)


def requirements_of(metadata: str) -> tuple[str, ...]:
    lines = email.parser.Parser().parsestr(metadata, headersonly=True).get_all("Requires-Dist", [])
    return tuple(sorted({canonicalize_name(Requirement(line).name) for line in lines}))


def names_of(libraries: dict[str, elf.Dynamic]) -> set[str]:
    names = {posixpath.basename(path) for path in libraries}
    return names | {one.soname for one in libraries.values() if one.soname}


def searched(by: str, folders: Iterable[str], library: str) -> Iterable[str]:
    """The paths that RPATH or RUNPATH names, in site-packages."""
    for folder in folders:
        here = re.sub(r"\$ORIGIN|\$\{ORIGIN\}", posixpath.dirname(by) or ".", folder)
        if not here.startswith("/"):
            yield posixpath.normpath(posixpath.join(here, library))


def missing(wheels: Iterable[Wheel], optional: dict[str, str]) -> list[str]:
    """One line for each library that no wheel of this set has where it would be looked for."""
    wheels = list(wheels)
    paths = {path for wheel in wheels for path in wheel.provides}
    owners: dict[str, set[str]] = {}
    for wheel in wheels:
        for path in wheel.provides:
            owners.setdefault(posixpath.basename(path), set()).add(wheel.package)
    lines = []
    for wheel in wheels:
        for need in wheel.needs:
            having = owners.get(need.library, set())
            loaded = {one for one in having if LOADED_BY_TORCH.match(one)}
            if paths & set(need.found_at) or loaded or having & set(wheel.requires):
                continue
            if any(fnmatch.fnmatch(need.by, pattern) for pattern in optional):
                continue
            where = f"only {', '.join(sorted(having))} has it" if having else "no wheel has it"
            lines.append(f"{wheel.file}: {need.by} needs {need.library}: {where}")
    return lines


def unused(wheels: Iterable[Wheel], optional: dict[str, str]) -> list[str]:
    """Patterns of `optional-libraries` that excuse nothing."""
    by = [need.by for wheel in wheels for need in wheel.needs]
    return [pattern for pattern in optional if not fnmatch.filter(by, pattern)]


def download(url: str, sha256: str, folder: pathlib.Path) -> pathlib.Path:
    """-> the wheel, its hash compared.

    Raises:
        ValueError: the hash differs.
    """
    path, digest = folder / url.rsplit("/", 1)[1], hashlib.sha256()
    with urllib.request.urlopen(url, timeout=120) as source, path.open("wb") as sink:
        while data := source.read(1 << 20):
            digest.update(data)
            sink.write(data)
    if digest.hexdigest() != sha256:
        raise ValueError(f"{url}: its hash is {digest.hexdigest()}, the index says {sha256}")
    return path


def load(file: pathlib.Path) -> dict:
    return json.loads(file.read_text()) if file.exists() else {}


def known(stored: dict) -> dict[str, Wheel]:
    """Hash to wheel, of what was read before."""
    return {one["sha256"]: Wheel.of(one) for one in stored.get("wheels", [])}


def save(file: pathlib.Path, sets: dict[str, list[Wheel]], lock_digest: str) -> None:
    """`sets`: for each Python, its wheels. One wheel a line."""
    every = {wheel.sha256: wheel for wheels in sets.values() for wheel in wheels}
    lines = [json.dumps(asdict(every[key])) for key in sorted(every, key=lambda k: every[k].file)]
    files = {python: sorted(wheel.file for wheel in wheels) for python, wheels in sets.items()}
    head = json.dumps({"lock": lock_digest, "sets": files})[:-1]
    partial = file.with_suffix(".partial")
    partial.write_text(head + ', "wheels": [\n' + ",\n".join(lines) + "\n]}\n")
    partial.replace(file)

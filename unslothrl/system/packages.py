"""Which packages are installed, and which versions do not go together."""

import importlib.metadata
import re
from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement


def installed() -> dict[str, str]:
    """Package -> version."""
    found = [(each.name, each.version) for each in importlib.metadata.distributions()]
    return {normal(name): version for name, version in found if name}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements_of(name: str) -> list[str]:
    """What a package that is installed says that it needs."""
    return importlib.metadata.requires(name) or []


def unmet(found: Mapping[str, str], wanted: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """What packages need of one another (`wanted`: name -> requirements) where that is there in
    another version -> (what is wrong, what helps). What is not there the locks leave out."""
    for name, lines in wanted.items():
        for needed in map(Requirement, lines):
            other = normal(needed.name)
            is_wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if not is_wanted or other not in found:
                continue
            if not needed.specifier.contains(found[other], prereleases=True):
                what = f"{name} {found[name]} needs {other}{needed.specifier}, got {found[other]}"
                yield what, f'pip install "{other}{needed.specifier}"'

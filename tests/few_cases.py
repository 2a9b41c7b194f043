"""One property over many cases, of which `make test` runs a few and `make slow` all."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def few(cases: Iterable[Any], count: int = 1, *, among: Iterable[Any] | None = None) -> list:
    """The cases for `pytest.mark.parametrize`: all but the first `count`, or those `among`, are
    marked slow."""
    cases = list(cases)
    often = cases[:count] if among is None else list(among)
    assert all(one in cases for one in often), "a case that is not one of these"
    return [one if one in often else slow(one) for one in cases]


def slow(case: Any) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

"""One property over many cases, of which `make test` runs a few and `make slow` all."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
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


def uncovered(cases: Iterable[Sequence], factors: Mapping[str, Sequence]) -> set[tuple]:
    """The pairs of values of two factors that are in none of the cases, which have a value of each
    in the order of `factors`."""
    pairs = itertools.combinations(range(len(factors)), 2)
    values = list(factors.values())
    return {
        (one, a, other, b)
        for one, other in pairs
        for a in values[one]
        for b in values[other]
        if not any(case[one] == a and case[other] == b for case in cases)
    }


def slow(case: Any) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

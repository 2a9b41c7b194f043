"""Answers that stand beside one another, as one answer: lists and unions."""

from collections.abc import Sequence

from unslothrl.rewards.maths import regions
from unslothrl.rewards.maths.kinds import Answer, Collection, Region, Relation, Value


def as_list(answers: Sequence[Answer]) -> Collection:
    """Answers that stood apart as a list."""
    return Collection(tuple(flattened(with_label_repeated(answers))))


def with_label_repeated(answers: Sequence[Answer]) -> list[Answer]:
    """ "x = 1, 2" as "x = 1, x = 2"."""
    first = answers[0]
    if not (isinstance(first, Relation) and first.signs == ("=",)):
        return list(answers)
    if not all(isinstance(answer, Value) for answer in (*first.sides, *answers[1:])):
        return list(answers)
    label = first.sides[0]
    return [first, *(Relation((label, answer), ("=",)) for answer in answers[1:])]


def flattened(answers: Sequence[Answer]) -> list[Answer]:
    return [
        part
        for answer in answers
        for part in (answer.parts if isinstance(answer, Collection) else (answer,))
    ]


def with_exclusions(answers: Sequence[Answer]) -> list[Answer]:
    """ "x != 1, 2" as "x != 1, x != 2"."""
    first = answers[0]
    if not isinstance(first, Region) or not first.intervals:
        return list(answers)
    outside = regions.complement(first.intervals)
    if len(outside) != 1 or outside[0].low is None or outside[0].low != outside[0].high:
        return list(answers)
    rest = [
        Region(regions.complement((regions.point(answer.tree),)), first.variable)
        if isinstance(answer, Value) and not answer.unit
        else answer
        for answer in answers[1:]
    ]
    return [first, *rest]


def as_region(answers: Sequence[Answer], connectives: set[str]) -> Region | None:
    """Inequalities in one variable: "or" is a union; a comma or "and" is an intersection, unless
    that is empty."""
    if not all(isinstance(answer, Region) for answer in answers):
        return None
    parts = [answer for answer in answers if isinstance(answer, Region)]
    names = {part.variable for part in parts} - {None}
    if len(names) > 1 or (not names and len(parts) > 1 and connectives == {","}):
        return None
    name = next(iter(names), None)
    together = [interval for part in parts for interval in part.intervals]
    if not names or connectives == {"or"}:
        return Region(regions.union(together), name)
    common = parts[0].intervals
    for part in parts[1:]:
        common = regions.intersection(common, part.intervals)
    return Region(common or regions.union(together), name)

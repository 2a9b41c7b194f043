"""Which answers are sets of real numbers, and their intervals."""

from unslothrl.rewards.maths import regions
from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.expressions.tree import Tree
from unslothrl.rewards.maths.kinds import Answer, Collection, EmptySet, Infinity, Region, Row, Value
from unslothrl.rewards.maths.regions import Interval


def intervals_of(answer: Answer) -> regions.Intervals | None:
    """A set of real numbers as intervals; None where it is none."""
    if isinstance(answer, Region):
        return answer.intervals
    if isinstance(answer, EmptySet):
        return ()
    if isinstance(answer, Value):
        return None if answer.unit else (regions.point(answer.tree),)
    if isinstance(answer, Collection):
        parts = [intervals_of(part) for part in answer.parts]
        if any(part is None for part in parts):
            return None
        return regions.union([interval for part in parts for interval in part or ()])
    if isinstance(answer, Row):
        return row_intervals(answer)
    return None


def row_intervals(row: Row) -> regions.Intervals | None:
    """ "(1, 2]" as an interval; None where its ends are no numbers in order."""
    if len(row.parts) != 2 or row.opening not in "([" or row.closing not in ")]":
        return None
    ends: list[Tree | None] = []
    for end, sign in zip(row.parts, (-1, 1), strict=True):
        if isinstance(end, Infinity) and end.sign == sign:
            ends.append(None)
        elif isinstance(end, Value) and not end.unit:
            ends.append(end.tree)
        else:
            return None
    interval = Interval(
        ends[0],
        row.opening == "[" and ends[0] is not None,
        ends[1],
        row.closing == "]" and ends[1] is not None,
    )
    try:
        return None if interval.is_empty else (interval,)
    except Unreadable:
        return (interval,)


def region_of(answer: Answer) -> regions.Intervals | None:
    """The intervals of an answer that is compared as a region: a list is one of intervals."""
    if isinstance(answer, Row):
        return row_intervals(answer)
    if isinstance(answer, Collection) and not all(
        isinstance(part, Row | Region) for part in answer.parts
    ):
        return None
    return intervals_of(answer)


def region_names(answer: Answer) -> frozenset[str]:
    """The variables of which an answer names regions."""
    if isinstance(answer, Region):
        return frozenset((answer.variable,) if answer.variable else ())
    parts = answer.parts if isinstance(answer, Collection) else ()
    return frozenset().union(*map(region_names, parts))

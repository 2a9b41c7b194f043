"""Expressions as trees.

A tree is a tuple: ("number", Fraction), ("symbol", name), ("add", *terms), ("mul", *factors),
("pow", base, exponent), ("call", name, *arguments) or ("infinity", sign). Terms and factors are
sorted, nothing is computed: equal trees are the same formula in any order.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction

Tree = tuple

MINUS_ONE: Tree = ("number", Fraction(-1))


def number(value: int | Fraction) -> Tree:
    return ("number", Fraction(value))


def add(*terms: Tree) -> Tree:
    return _flat("add", terms)


def mul(*factors: Tree) -> Tree:
    return _flat("mul", factors)


def _flat(kind: str, parts: tuple[Tree, ...]) -> Tree:
    flat = [each for part in parts for each in (part[1:] if part[0] == kind else (part,))]
    return flat[0] if len(flat) == 1 else (kind, *sorted(flat, key=repr))


def negative(tree: Tree) -> Tree:
    if tree[0] in ("number", "infinity"):
        return (tree[0], -tree[1])
    if tree[0] == "mul" and MINUS_ONE in tree[1:]:
        rest = list(tree[1:])
        rest.remove(MINUS_ONE)
        return mul(*rest)
    return mul(MINUS_ONE, tree)


def divided(a: Tree, b: Tree) -> Tree:
    return mul(a, ("pow", b, MINUS_ONE))


def subtrees(tree: Tree) -> Iterator[Tree]:
    return (part for part in tree[1:] if isinstance(part, tuple))


def replaced(tree: Tree, values: Mapping[str, Fraction]) -> Tree:
    """With numbers in place of symbols."""
    if tree[0] == "symbol":
        return number(values[tree[1]]) if tree[1] in values else tree
    return tuple(replaced(part, values) if isinstance(part, tuple) else part for part in tree)


def symbols(tree: Tree) -> frozenset[str]:
    """The names of the symbols in a tree, "\\pi" and "e" among them."""
    if tree[0] == "symbol":
        return frozenset((tree[1],))
    return frozenset().union(*map(symbols, subtrees(tree)))

"""Expressions as trees.

A tree is a tuple: ("number", Fraction), ("symbol", name), ("add", *terms), ("mul", *factors),
("pow", base, exponent) or ("call", name, *arguments). Terms and factors are sorted, nothing is
computed: equal trees are the same formula, written down in any order.
"""

from fractions import Fraction

Tree = tuple

MINUS_ONE: Tree = ("number", Fraction(-1))


def number(value: int | Fraction) -> Tree:
    return ("number", Fraction(value))


def add(*terms: Tree) -> Tree:
    """The sum of terms; a single term is itself."""
    flat = [part for term in terms for part in (term[1:] if term[0] == "add" else (term,))]
    return flat[0] if len(flat) == 1 else ("add", *sorted(flat, key=repr))


def mul(*factors: Tree) -> Tree:
    """The product of factors; a single factor is itself."""
    flat = [
        part for factor in factors for part in (factor[1:] if factor[0] == "mul" else (factor,))
    ]
    return flat[0] if len(flat) == 1 else ("mul", *sorted(flat, key=repr))


def negative(tree: Tree) -> Tree:
    if tree[0] == "number":
        return ("number", -tree[1])
    if tree[0] == "mul" and MINUS_ONE in tree[1:]:
        rest = list(tree[1:])
        rest.remove(MINUS_ONE)
        return mul(*rest)
    return mul(MINUS_ONE, tree)


def divided(a: Tree, b: Tree) -> Tree:
    return mul(a, ("pow", b, MINUS_ONE))


def symbols(tree: Tree) -> frozenset[str]:
    """The names of the symbols in a tree, "\\pi" and "e" among them."""
    if tree[0] == "symbol":
        return frozenset((tree[1],))
    return frozenset().union(*(symbols(part) for part in tree[1:] if isinstance(part, tuple)))

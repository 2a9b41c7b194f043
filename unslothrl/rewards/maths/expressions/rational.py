"""Exact values of expressions, as fractions."""

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath

from unslothrl.rewards.maths.errors import NotRational, Undefined
from unslothrl.rewards.maths.expressions.tree import Tree, symbols

MAX_BITS = 40_000  # of a fraction's numerator and denominator together
MAX_FACTORIAL = 3_000  # of what a factorial is computed

Point = dict[str, Fraction]  # a value for each variable


def rational(tree: Tree, where: Point) -> Fraction:
    """The exact value. NotRational; Undefined where a divisor is 0."""
    kind = tree[0]
    if kind == "number":
        return tree[1]
    if kind == "symbol":
        if tree[1] not in where:
            raise NotRational
        return where[tree[1]]
    if kind == "add":
        return bounded(sum((rational(part, where) for part in tree[1:]), Fraction(0)))
    if kind == "mul":
        product = Fraction(1)
        for part in tree[1:]:
            product = bounded(product * rational(part, where))
        return product
    if kind == "pow":
        base, exponent = rational(tree[1], where), rational(tree[2], where)
        if base == exponent == 0 and symbols(tree):
            return Fraction(1)  # x^0 also at 0; but 0^0 alone has no value
        return rational_power(base, exponent)
    if tree[1] in _RATIONAL:
        return _RATIONAL[tree[1]](*(rational(part, where) for part in tree[2:]))
    raise NotRational


def bounded(value: Fraction) -> Fraction:
    """The value itself. NotRational where its digits are too many to go on with."""
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise NotRational
    return value


def rational_power(base: Fraction, exponent: Fraction) -> Fraction:
    """NotRational for roots and for results over `MAX_BITS`."""
    if exponent.denominator != 1:
        raise NotRational
    if base == 0 and exponent <= 0:
        raise Undefined("0 to a power that is not positive")
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    if base not in (0, 1, -1) and abs(exponent) * bits > MAX_BITS:
        raise NotRational
    if base in (1, -1):
        return base ** (exponent.numerator % 2)
    return base ** int(exponent)


def rational_factorial(n: Fraction) -> Fraction:
    if n.denominator != 1 or n > MAX_FACTORIAL:
        raise NotRational
    if n < 0:
        raise Undefined("factorial of a negative number")
    return Fraction(mpmath.libmp.ifac(int(n)))


def rational_double_factorial(n: Fraction) -> Fraction:
    if n.denominator != 1 or n > MAX_FACTORIAL:
        raise NotRational
    if n < 0:
        raise Undefined("factorial of a negative number")
    return Fraction(math.prod(range(int(n), 0, -2)))


def rational_binomial(n: Fraction, k: Fraction) -> Fraction:
    if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= MAX_FACTORIAL or abs(n) > 1e9:
        raise NotRational
    product = Fraction(1)
    for i in range(int(k)):
        product = bounded(product * (n - i) / (i + 1))
    return product


_RATIONAL: dict[str, Callable[..., Fraction]] = {
    "abs": abs,
    "percent": lambda value: value / 100,
    "degree": lambda value: value,
    "floor": lambda value: Fraction(value.numerator // value.denominator),
    "ceil": lambda value: -Fraction(-value.numerator // value.denominator),
    "factorial": rational_factorial,
    "double factorial": rational_double_factorial,
    "binomial": rational_binomial,
    "max": max,
    "min": min,
}

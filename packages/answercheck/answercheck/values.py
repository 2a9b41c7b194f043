"""Values of expressions: exact where they are fractions, else to a given number of bits; and
whether two expressions are equal, without rounding.

Fractions are compared as such. Others agree only if the digits outnumber by far the size of all
that occurs in both, so that `\\sqrt2 + 10^{-400}` is not `\\sqrt2`. With variables this is repeated
at random rational points (Schwartz 1980, doi 10.1145/322217.322225: a polynomial that is not zero
is zero at few of them). `imaginary`: i squared is -1, and i is no variable.
"""

import functools
import math
import operator
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath

from answercheck.trees import Tree, divided, mul, number, replaced, subtrees, symbols

FIRST_PRECISION, POINT_PRECISION, CONSTANT_PRECISION = 96, 192, 640  # bits
MAX_BITS = 40_000  # of a fraction's numerator and denominator together
MAX_PRECISION, MAX_POINT_PRECISION = 24_000, 3_000  # bits; the latter of what has variables
MAX_MAGNITUDE = 1 << 14  # bits before the point, of what sin and exp are taken of
MAX_FACTORIAL = 3_000  # of what a factorial is computed
POINTS, LEAST_POINTS = 16, 4  # LEAST_POINTS: at which two expressions must both be defined
ZERO = number(0)
MOST_CONSTANTS = 6  # at which formulas with branches are compared besides
_SCALES = [10, 10**2, 10**3, 10**4, 10**8, 10**16, 10**32, 10**64, 10**128]
_BRANCHING = {"abs", "floor", "ceil", "max", "min"}
_PERIODIC = {name + h for name in ("sin", "cos", "tan", "cot", "sec", "csc") for h in ("", "h")}
MP = mpmath.MPContext()  # not mpmath's global one, whose precision others may change
_CONSTANTS = {"\\pi": MP.pi, "e": MP.e, "i": MP.j}

Number = Any  # a Fraction, or an mpf or mpc of `MP`
Point = dict[str, Fraction]  # a value for each variable


class Undefined(ArithmeticError):
    """The expression has no value there, or none that can be computed."""


def evaluated(tree: Tree, where: Point, bits: int, real: bool = True) -> tuple[Number, int]:
    """-> (the value, `Evaluation.magnitude`). Undefined where there is no value."""
    evaluation = Evaluation(where, bits, real)
    try:
        return evaluation.value(tree), evaluation.magnitude
    except (ArithmeticError, ValueError, TypeError, mpmath.libmp.NoConvergence) as error:
        raise Undefined("no value") from error


def attempted(tree: Tree, where: Point, bits: int, real: bool = True) -> Number | None:
    """The value; None where there is none."""
    try:
        return evaluated(tree, where, bits, real)[0]
    except Undefined:
        return None


def exact(tree: Tree, where: Point | None = None) -> Fraction | None:
    """The value where it is a fraction, and not too long a one."""
    value = attempted(tree, where or {}, FIRST_PRECISION)
    return value if isinstance(value, Fraction) else None


def rounded(tree: Tree, bits: int) -> Fraction | None:
    """The value to a number of bits; None where it is no real number or has letters."""
    value = attempted(tree, {}, bits)
    if isinstance(value, MP.mpf):
        return Fraction(*map(int, mpmath.libmp.to_rational(value._mpf_)))
    return value if isinstance(value, Fraction) else None


def inexact(value: Number) -> Number:
    return MP.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def differ(a: Number, b: Number, exponent: int) -> bool:
    difference = inexact(a) - inexact(b)
    return bool(difference) and MP.mag(difference) > exponent


@functools.lru_cache(maxsize=4096)
def coordinate(name: str, point: int) -> Fraction:
    """Of a variable, at the numbered point. Every fourth is whole; other denominators are even:
    (-1)^n has no value there."""
    draw = random.Random(f"{name} {point}")
    if point % 4 == 3:
        return Fraction(draw.randrange(2, 12 + point))
    value = Fraction(draw.randrange(1, 1 << 17, 2), 1 << 17) * (1, 3, 41)[point % 3]
    return -value if point % 4 == 2 else value


def is_real(value: Number) -> bool:
    return isinstance(value, Fraction | MP.mpf)


class Evaluation:
    """Computes values at a point: fractions as long as all parts are, then to a number of bits.
    i squared is -1 where the point has no value for it. `real`: what is not real is undefined.
    `magnitude`: the most bits before or after the point of any part. Sums of parts are wrong by up
    to 2 ** (magnitude - bits)."""

    def __init__(self, where: Point, bits: int, real: bool):
        self.where, self.real = where, real
        MP.prec = bits  # one context for all, since it is large; numbers keep their digits
        self.magnitude = 0

    def value(self, tree: Tree, in_angle: bool = False) -> Number:
        """Undefined. `in_angle`: of a trigonometric function, where degrees become radians."""
        kind = tree[0]
        if kind == "number":
            return self.noted(tree[1])
        if kind == "symbol":
            value = self.where.get(tree[1], _CONSTANTS.get(tree[1]))
            if value is None:
                raise Undefined(tree[1])
            return +value  # a constant has as many digits as are asked for
        if kind == "pow":
            return self.noted(self.power(tree[1], tree[2], in_angle))
        if kind == "call":
            return self.noted(self.call(tree[1], tree[2:], in_angle), small=False)
        if kind not in ("add", "mul"):
            raise Undefined(kind)
        operation = operator.add if kind == "add" else operator.mul
        total, *others = [self.value(part, in_angle) for part in tree[1:]]
        for other in others:
            if not (isinstance(total, Fraction) and isinstance(other, Fraction)):
                total, other = inexact(total), inexact(other)
            total = bounded(operation(total, other))
        return self.noted(total, small=kind == "mul")

    def noted(self, value: Number, small: bool = True) -> Number:
        """Notes how large, or where `small` how near to 0, a value is."""
        if isinstance(value, Fraction):
            size = value.numerator.bit_length() - value.denominator.bit_length() if value else 0
        elif not MP.isfinite(value):
            raise Undefined("not finite")
        else:
            size = int(MP.mag(value)) if value else 0
        self.magnitude = max(self.magnitude, abs(size) if small else size)
        if self.magnitude > MAX_PRECISION and not isinstance(value, Fraction):
            raise Undefined("too large")
        return value

    def power(self, base_tree: Tree, exponent_tree: Tree, in_angle: bool) -> Number:
        base, power = self.value(base_tree, in_angle), self.value(exponent_tree)
        is_exact = isinstance(power, Fraction)
        if base == power == 0 and symbols(base_tree) | symbols(exponent_tree):
            return Fraction(1)  # x^0 also at 0; but 0^0 alone has no value
        is_computed = not isinstance(base, Fraction) and MP.prec > FIRST_PRECISION
        may_be_0 = base == 0 or (is_computed and MP.mag(base) < -3 * MP.prec // 4)
        if may_be_0 and not (is_exact and power > 0):
            raise Undefined("0 to a power that is not positive")
        if base == 0:
            return base
        is_whole = is_exact and power.denominator == 1
        is_short = isinstance(base, Fraction) and abs(power) * bits_of(base) <= MAX_BITS
        if is_whole and is_short:
            return base ** int(power)
        base = inexact(base)
        is_positive = is_real(base) and base > 0
        if not is_exact:
            if (self.real and not is_positive) or abs(power * MP.log(base)) > MAX_MAGNITUDE:
                raise Undefined("power of what is not positive, or too large")
            return base**power
        if abs(power * MP.mag(base)) > MAX_PRECISION:
            raise Undefined("too large")
        if is_whole:
            return base ** int(power)
        if is_real(base) and not is_positive and power.denominator % 2:  # the real root
            root = (-base) ** inexact(power)
            return -root if power.numerator % 2 else root
        if self.real and is_real(base) and not is_positive:
            raise Undefined("root of a negative number")
        return base ** inexact(power)

    def call(self, name: str, arguments: Tree, in_angle: bool) -> Number:
        values = [self.value(argument, name in _PERIODIC) for argument in arguments]
        if name in _EXACT and all(isinstance(value, Fraction) for value in values):
            result = _EXACT[name](*values)
            if result is not None and not (name == "degree" and in_angle):
                return bounded(result)
        values = [inexact(value) for value in values]
        are_real = all(map(is_real, values))
        if name in _PERIODIC:
            if abs(values[0]) > MAX_MAGNITUDE:
                raise Undefined("too large")
            if name.endswith("h"):
                self.noted(MP.exp(2 * abs(values[0])))  # how near to 1 or 0 it may be
            return getattr(MP, name)(*values)
        if name.startswith("arc"):
            inverse = getattr(MP, name.replace("arc", "a", 1))(*values)
            if self.real and not is_real(inverse):
                raise Undefined(name)
            return inverse
        if name in ("ln", "log"):
            if self.real and not (are_real and min(values) > 0):
                raise Undefined("logarithm of what is not positive")
            base = values[1] if len(values) > 1 else 10
            return MP.log(values[0]) / (1 if name == "ln" else self.noted(MP.log(base)))
        if name == "degree":
            return values[0] * MP.pi / 180 if in_angle else values[0]
        if name in ("abs", "percent") or (name in ("max", "min") and are_real):
            return _EXACT[name](*values)
        are_small = name in ("factorial", "binomial") and all(
            abs(x) < MAX_FACTORIAL for x in values
        )
        if are_small or (name in ("floor", "ceil") and are_real):
            return getattr(MP, name)(*values)
        if name.startswith("of "):  # a function that is not known: any value, by its arguments
            return inexact(coordinate(name + "".join(MP.nstr(x, 24) for x in values), 0))
        raise Undefined(name)


def bits_of(value: Fraction) -> int:
    """How fast its powers grow: 0 of 1 and -1."""
    return value.numerator.bit_length() + value.denominator.bit_length() - 2


def bounded(value: Number) -> Number:
    """The value itself; not as a fraction where its digits are too many to go on with."""
    is_long = isinstance(value, Fraction) and bits_of(value) > MAX_BITS
    return inexact(value) if is_long else value


def _factorial(n: Fraction, step: int = 1) -> Fraction | None:
    if n.denominator != 1 or not 0 <= n <= MAX_FACTORIAL:
        return None
    return Fraction(math.prod(range(int(n), 0, -step)))


def _binomial(n: Fraction, k: Fraction) -> Fraction | None:
    if n.denominator != 1 or k.denominator != 1 or not (0 <= n < 1e9 and 0 <= k <= MAX_FACTORIAL):
        return None
    return Fraction(math.comb(int(n), int(k)))


# What is exact of exact numbers; None: not of these.
_EXACT: dict[str, Callable[..., Any]] = {
    "abs": abs, "max": max, "min": min, "percent": lambda value: value / 100,
    "degree": lambda value: value, "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)), "factorial": _factorial,
    "double factorial": functools.partial(_factorial, step=2), "binomial": _binomial,
}  # fmt: skip


def equal(a: Tree, b: Tree, imaginary: bool = False) -> bool:
    """Whether two expressions are equal wherever both are defined, as real or complex numbers."""
    if a == b:
        return True
    names = variables(a, b, imaginary=imaginary)
    points = points_of(names, a, b)
    both = None if imaginary else agreement(a, b, points, real=True)
    return agreement(a, b, points, real=False) is True if both is None else both


def variables(*trees: Tree, imaginary: bool = False) -> frozenset[str]:
    names = frozenset().union(*map(symbols, trees)) - {"\\pi", "e"}
    return names - {"i"} if imaginary else names


def agreement(a: Tree, b: Tree, points: Sequence[Point], real: bool) -> bool | None:
    """None where `b` is defined at too few points."""
    least = min(LEAST_POINTS, len(points))
    defined, shared = 0, 0
    for where in points:
        same = equal_at(a, b, where, real)
        if same is False:
            return False
        shared += same is True
        defined += same is True or attempted(b, where, FIRST_PRECISION, real) is not None
    if shared < least:
        return None if defined < least else False
    return 4 * shared >= defined


def points_of(names: frozenset[str], *trees: Tree) -> list[Point]:
    """Where expressions are compared; with branches, which may begin anywhere, at every scale."""
    if not names:
        return [{}]
    points = [{name: coordinate(name, i) for name in names} for i in range(POINTS)]
    if not any(map(has_branches, trees)):
        return points
    numbers = {value for tree in trees for value in constants(tree) if value < 1 << 64}
    for value in sorted(numbers, reverse=True)[:MOST_CONSTANTS]:
        points += [dict.fromkeys(names, by * value) for by in (1, -1, 3)]
    for scale in _SCALES:  # near to, below and above 0
        points += [{name: scale * coordinate(name, i) for name in names} for i in (1, 2, 3)]
    return points


def has_branches(tree: Tree) -> bool:
    """Whether it may be given by one formula here and by another one there, as |x| is."""
    is_whole = tree[0] == "pow" and tree[2][0] == "number" and tree[2][1].denominator == 1
    is_power = tree[0] == "pow" and symbols(tree[1]) and not is_whole
    is_call = tree[0] == "call" and tree[1] in _BRANCHING and symbols(tree)
    return bool(is_power or is_call) or any(map(has_branches, subtrees(tree)))


def constants(tree: Tree) -> frozenset[Fraction]:
    """The sizes of the rational numbers in a tree: in x - 10^6 that of the power as well."""
    value = exact(tree)
    own = () if value is None else (abs(value),)
    return frozenset(own).union(*map(constants, subtrees(tree)))


def equal_at(a: Tree, b: Tree, where: Point, real: bool) -> bool | None:
    """None where either is not defined there."""
    bits, most = POINT_PRECISION, MAX_POINT_PRECISION
    if not where:
        bits, most = CONSTANT_PRECISION, MAX_PRECISION
    try:
        first, size = evaluated(a, where, FIRST_PRECISION, real)
        second, other = evaluated(b, where, FIRST_PRECISION, real)
        if isinstance(first, Fraction) and isinstance(second, Fraction):
            return first == second
        size = max(size, other)
        if size < FIRST_PRECISION // 2 and differ(first, second, -16):
            return False
        bits += 4 * size
        if bits > most:
            return None
        first, size = evaluated(a, where, bits, real)
        second, other = evaluated(b, where, bits, real)
    except Undefined:
        return None
    # A product that is 0 but for its last digits is about 2 ** -bits: that size is no error, and no
    # tolerance may grow by it. 2 ** -(bits // 4) is below all sizes that the first digits had.
    return not differ(first, second, min(max(size, other) - bits // 2, -(bits // 4)))


def proportional(a: Tree, b: Tree, imaginary: bool, positive: bool) -> bool:
    """Whether `a` is `b` times a constant other than 0, or above 0, and neither is constant."""
    names = variables(a, b, imaginary=imaginary)
    for point in range(POINTS):
        where = {name: coordinate(name, point) for name in names}
        x, y = (replaced(tree, where) for tree in (a, b))
        at = [attempted(z, {}, FIRST_PRECISION, not imaginary) for z in (x, y)]
        if None in at or any(equal(z, ZERO, imaginary) for z in (x, y)):
            continue
        if equal(y, b, imaginary) or not equal(a, mul(divided(x, y), b), imaginary):
            return False
        return not positive or order(divided(x, y), ZERO) == 1
    return False


def order(a: Tree, b: Tree) -> int | None:
    """-1, 0 or 1 as a constant is less than, equal to or more than another; None without"""
    if "infinity" in (a[0], b[0]):
        x, y = (tree[1] if tree[0] == "infinity" else 0 for tree in (a, b))
        return (x > y) - (x < y)
    first, second = (rounded(tree, CONSTANT_PRECISION) for tree in (a, b))
    if first is None or second is None:
        return None
    return 0 if equal(a, b) else 1 if first > second else -1

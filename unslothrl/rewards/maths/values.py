"""Whether two expressions are equal, without rounding.

Expressions of rational numbers are computed as fractions. Others are computed to many digits: a
difference that is far above the error of the last digit refuses; agreement is only accepted when
the digits outnumber by far the size of anything that occurs in the two expressions, so that
`\\sqrt2 + 10^{-400}` is not `\\sqrt2`. With variables this is repeated at random rational points,
positive, negative and whole (Schwartz 1980, doi 10.1145/322217.322225: a polynomial that is not
zero is zero at few of them).
"""

import functools
import math
import random
from collections.abc import Callable
from fractions import Fraction

import mpmath

from unslothrl.rewards.maths.tree import Tree, symbols

MAX_BITS = 40_000  # of a fraction
MAX_PRECISION = 24_000  # bits
MAX_POINT_PRECISION = 3_000  # bits, where it is done at every point
MAX_MAGNITUDE = 1 << 14  # bits before the point, of what sin and exp are taken of
MAX_FACTORIAL = 3_000
FIRST_PRECISION, POINT_PRECISION, CONSTANT_PRECISION = 96, 192, 640  # bits
POINTS = 16
MOST_CONSTANTS = 6  # at which formulas with branches are compared besides
LEAST_POINTS = 4  # at which two expressions must both be defined

Point = dict[str, Fraction]


class Undefined(ArithmeticError):
    """The expression has no value there, or none that can be computed."""


class NotRational(ArithmeticError):
    """The value is no fraction, or too long a one."""


@functools.lru_cache(maxsize=4096)
def coordinate(name: str, point: int) -> Fraction:
    """Of the variable, at the numbered point. Every fourth is whole; the denominator of the others
    is even, so that (-1)^n has no value there."""
    draw = random.Random(f"{name} {point}")
    if point % 4 == 3:
        return Fraction(draw.randrange(2, 12 + point))
    value = Fraction(draw.randrange(1, 1 << 17, 2), 1 << 17) * (1, 3, 41)[point % 3]
    return -value if point % 4 == 2 else value


def at_point(names: frozenset[str], point: int) -> Point:
    return {name: coordinate(name, point) for name in names}


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
        return short(sum((rational(one, where) for one in tree[1:]), Fraction(0)))
    if kind == "mul":
        product = Fraction(1)
        for one in tree[1:]:
            product = short(product * rational(one, where))
        return product
    if kind == "pow":
        return rational_power(rational(tree[1], where), rational(tree[2], where))
    if tree[1] in _RATIONAL:
        return _RATIONAL[tree[1]](*(rational(one, where) for one in tree[2:]))
    raise NotRational


def short(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise NotRational
    return value


def rational_power(base: Fraction, exponent: Fraction) -> Fraction:
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
        product = short(product * (n - i) / (i + 1))
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


class Evaluation:
    """Values to a number of bits. `magnitude` is the most bits before or after the point that any
    part had: sums of parts are wrong by up to 2 ** (magnitude - bits)."""

    def __init__(self, where: Point, bits: int, imaginary: bool, real: bool):
        self.where, self.imaginary, self.real = where, imaginary, real
        self.context = context(bits)
        self.magnitude = 0
        self.steps = 0

    def value(self, tree: Tree, in_angle: bool = False):
        """An mpf or mpc. Undefined."""
        kind = tree[0]
        if kind == "number":
            return self.seen(self.fraction(tree[1]))
        if kind == "symbol":
            return self.symbol(tree[1])
        if kind == "add":
            total = self.context.mpf(0)
            for one in tree[1:]:
                total += self.value(one, in_angle)
            return self.seen(total, small=False)
        if kind == "mul":
            product = self.context.mpf(1)
            for one in tree[1:]:
                product *= self.value(one, in_angle)
            return self.seen(product)
        if kind == "pow":
            return self.power(tree[1], tree[2], in_angle)
        return self.seen(self.call(tree, in_angle), small=False)

    def seen(self, value, small: bool = True):
        """Notes how large, or where `small` how near to 0, a value is."""
        if not self.context.isfinite(value):
            raise Undefined("not finite")
        if value:
            size = self.context.mag(value)
            size = size if size > 0 or small else 0
            self.magnitude = max(self.magnitude, abs(int(size)))
        if self.magnitude > MAX_PRECISION:
            raise Undefined("too large")
        return value

    def fraction(self, value: Fraction):
        return self.context.mpf(value.numerator) / value.denominator

    def symbol(self, name: str):
        if name == "\\pi":
            return +self.context.pi
        if name == "e" and "e" not in self.where:
            return +self.context.e
        if name == "i" and self.imaginary:
            return self.context.mpc(0, 1)
        if name in self.where:
            return self.fraction(self.where[name])
        raise Undefined(name)

    def power(self, base: Tree, exponent: Tree, in_angle: bool):
        raised = self.value(base, in_angle)
        try:
            power = rational(exponent, self.where)
        except NotRational:
            return self.seen(self.any_power(raised, self.value(exponent)))
        if raised == 0 and power <= 0:
            raise Undefined("0 to a power that is not positive")
        if raised == 0:
            return raised
        if abs(power * self.context.mag(raised)) > MAX_PRECISION:
            raise Undefined("too large")
        if power.denominator == 1:
            return self.seen(raised ** int(power))
        if self.is_real(raised) and raised < 0:
            if power.denominator % 2:  # the real root
                root = (-raised) ** self.fraction(power)
                return self.seen(-root if power.numerator % 2 else root)
            if self.real:
                raise Undefined("root of a negative number")
        return self.seen(raised ** self.fraction(power))

    def any_power(self, raised, power):
        if raised == 0 or (self.real and not (self.is_real(raised) and raised > 0)):
            raise Undefined("power of what is not positive")
        self.limit(power * self.context.log(raised))
        return raised**power

    def limit(self, value):
        """What a periodic or exponential function may be taken of."""
        if abs(value) > MAX_MAGNITUDE:
            raise Undefined("too large")
        return value

    def is_real(self, value) -> bool:
        return isinstance(value, self.context.mpf)

    def call(self, tree: Tree, in_angle: bool):
        name, arguments = tree[1], tree[2:]
        if name == "degree":
            value = self.value(arguments[0])
            return value * self.context.pi / 180 if in_angle else value
        if name in _TRIGONOMETRIC:
            (argument,) = arguments
            value = self.limit(self.value(argument, in_angle=True))
            return getattr(self.context, name)(value)
        values = [self.value(one) for one in arguments]
        if name in _LOGARITHMS:
            return self.logarithm(name, *values)
        if name in _INVERSE:
            (value,) = values
            inverse = getattr(self.context, _INVERSE[name])(value)
            if self.real and not self.is_real(inverse):
                raise Undefined(name)
            return inverse
        if name in ("abs", "percent"):
            return abs(values[0]) if name == "abs" else values[0] / 100
        if name in ("floor", "ceil", "max", "min") and all(map(self.is_real, values)):
            if name in ("max", "min"):
                return (max if name == "max" else min)(values)
            return getattr(self.context, name)(values[0])
        if name in ("factorial", "binomial") and all(abs(one) < MAX_FACTORIAL for one in values):
            return getattr(self.context, name)(*values)
        if name.startswith("of "):  # a function that is not known: any value, by its arguments
            return self.unknown(name + "".join(self.context.nstr(one, 24) for one in values))
        raise Undefined(name)

    def logarithm(self, name: str, value, base=10):
        if value == 0 or base in (0, 1):
            raise Undefined("logarithm")
        if self.real and not (self.is_real(value) and value > 0 and base > 0):
            raise Undefined("logarithm of what is not positive")
        found = self.context.log(value)
        return found if name == "ln" else found / self.context.log(base)

    def unknown(self, name: str):
        return self.fraction(coordinate(name, 0))


_TRIGONOMETRIC = {"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "sech",
                  "csch"}  # fmt: skip
_LOGARITHMS = {"ln", "log"}
_INVERSE = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec",
    "arccsc": "acsc", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip


_CONTEXT = mpmath.MPContext()  # our own, so that nobody else changes its precision


def context(bits: int):
    """The one context: it is large, and its numbers keep their digits when it changes."""
    _CONTEXT.prec = bits
    return _CONTEXT


def evaluated(tree: Tree, where: Point, bits: int, imaginary: bool, real: bool):
    """-> (value, magnitude). Undefined."""
    evaluation = Evaluation(where, bits, imaginary, real)
    try:
        return evaluation.value(tree), evaluation.magnitude
    except Undefined:
        raise
    except (ArithmeticError, ValueError, TypeError, AttributeError, mpmath.libmp.NoConvergence):
        raise Undefined("no value") from None


def variables(*trees: Tree, imaginary: bool) -> frozenset[str]:
    names = frozenset().union(*map(symbols, trees)) - {"\\pi", "e"}
    return names - {"i"} if imaginary else names


def equal(a: Tree, b: Tree, imaginary: bool = False) -> bool:
    """Whether two expressions are equal wherever both are defined. `imaginary`: i squared is -1."""
    if a == b:
        return True
    names = variables(a, b, imaginary=imaginary)
    if not names:
        return equal_constants(a, b, imaginary)
    both = agreement(a, b, names, imaginary, real=not imaginary)
    if both is None and not imaginary:
        both = agreement(a, b, names, imaginary, real=False)
    return both is True


def agreement(a: Tree, b: Tree, names: frozenset[str], imaginary: bool, real: bool) -> bool | None:
    """None where there are too few points at which both are defined."""
    defined, shared = 0, 0
    points = [at_point(names, point) for point in range(POINTS)]
    if has_branches(a) or has_branches(b):
        points += branch_points(names, constants(a) | constants(b))
    for where in points:
        same = equal_at(a, b, where, imaginary, real)
        if same is False:
            return False
        shared += same is True
        defined += same is True or is_defined(b, where, imaginary, real)
    if shared < LEAST_POINTS:
        return None
    return 4 * shared >= defined


def has_branches(tree: Tree) -> bool:
    """Whether it may be given by one formula here and by another one there, as |x| is."""
    if tree[0] == "call" and tree[1] in _BRANCHING and symbols(tree):
        return True
    if tree[0] == "pow" and symbols(tree[1]) and tree[2][0] != "number":
        return True
    return any(has_branches(one) for one in tree[1:] if isinstance(one, tuple))


_BRANCHING = {"abs", "floor", "ceil", "max", "min"}


def constants(tree: Tree) -> frozenset[Fraction]:
    if tree[0] == "number":
        return frozenset((abs(tree[1]),))
    return frozenset().union(*(constants(one) for one in tree[1:] if isinstance(one, tuple)))


def branch_points(names: frozenset[str], numbers: frozenset[Fraction]) -> list[Point]:
    """More points for formulas with branches: at the numbers in them, and beyond them."""
    largest = sorted((one for one in numbers if one < 1 << 64), reverse=True)[:MOST_CONSTANTS]
    near = [dict.fromkeys(names, sign * one) for one in largest for sign in (1, -1)]
    scale = 10 * max(largest, default=1) + 1
    beyond = [at_point(names, point) for point in range(8)]
    return near + [{name: scale * value for name, value in one.items()} for one in beyond]


def is_defined(tree: Tree, where: Point, imaginary: bool, real: bool) -> bool:
    try:
        evaluated(tree, where, FIRST_PRECISION, imaginary, real)
    except Undefined:
        return False
    return True


def equal_constants(a: Tree, b: Tree, imaginary: bool) -> bool:
    """Real numbers first; where either has no real value, complex ones."""
    for real in (True, False):
        same = equal_at(a, b, {}, imaginary, real, CONSTANT_PRECISION)
        if same is not None:
            return same
    return False


def equal_at(
    a: Tree, b: Tree, where: Point, imaginary: bool, real: bool, bits: int = POINT_PRECISION
) -> bool | None:
    """None where either is not defined there."""
    try:
        return rational(a, where) == rational(b, where)
    except NotRational:
        pass
    except Undefined:
        return None
    try:
        first, size = evaluated(a, where, FIRST_PRECISION, imaginary, real)
        second, other = evaluated(b, where, FIRST_PRECISION, imaginary, real)
        size = max(size, other)
        if size < FIRST_PRECISION // 2 and differ(first, second, -16):
            return False
        bits += 4 * size
        if bits > (MAX_POINT_PRECISION if where else MAX_PRECISION):
            return None
        first, size = evaluated(a, where, bits, imaginary, real)
        second, other = evaluated(b, where, bits, imaginary, real)
    except Undefined:
        return None
    return not differ(first, second, max(size, other) - bits // 2)


def differ(a, b, exponent: int) -> bool:
    """Whether the difference is over 2 ** exponent."""
    difference = a - b
    return bool(difference) and _CONTEXT.mag(difference) > exponent


def ratio(a: Tree, b: Tree, imaginary: bool):
    """The constant that `a` is of `b`; None where there is none, or where it is 0."""
    names = variables(a, b, imaginary=imaginary)
    found: list = []
    for point in range(POINTS):
        where = at_point(names, point)
        pair = values_at(a, b, where, imaginary)
        if pair is None:
            continue
        if not pair[0] and not pair[1]:
            continue  # a common root
        if not pair[0] or not pair[1]:
            return None
        found.append(pair[0] / pair[1])
        if len(found) > 1 and not nearly(found[0], found[-1]):
            return None
    return found[0] if len(found) >= LEAST_POINTS else None


def nearly(a, b) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    return not differ(in_context(a), in_context(b), -POINT_PRECISION // 2)


def in_context(value):
    if isinstance(value, Fraction):
        return context(POINT_PRECISION).mpf(value.numerator) / value.denominator
    return value


def values_at(a: Tree, b: Tree, where: Point, imaginary: bool) -> tuple | None:
    """Both as fractions or both to `POINT_PRECISION`, noise as 0."""
    try:
        return rational(a, where), rational(b, where)
    except NotRational:
        pass
    except Undefined:
        return None
    try:
        pair = []
        for tree in (a, b):
            value, size = evaluated(tree, where, POINT_PRECISION, imaginary, not imaginary)
            pair.append(value if differ(value, 0, size - POINT_PRECISION // 2) else 0)
    except Undefined:
        return None
    return tuple(pair)


def sign_between(a: Tree, b: Tree) -> int | None:
    """-1, 0 or 1 as a constant is less than, equal to or more than another; None without values."""
    if variables(a, b, imaginary=False):
        return None
    try:
        x, y = rational(a, {}), rational(b, {})
        return (x > y) - (x < y)
    except NotRational:
        pass
    except Undefined:
        return None
    if equal_constants(a, b, False):
        return 0
    try:
        x, _ = evaluated(a, {}, CONSTANT_PRECISION, False, True)
        y, _ = evaluated(b, {}, CONSTANT_PRECISION, False, True)
    except Undefined:
        return None
    return 1 if x > y else -1

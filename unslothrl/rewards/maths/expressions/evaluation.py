"""Values of expressions to a given number of bits."""

from fractions import Fraction

import mpmath

from unslothrl.rewards.maths.errors import NotRational, Undefined
from unslothrl.rewards.maths.expressions.points import coordinate
from unslothrl.rewards.maths.expressions.rational import MAX_FACTORIAL, Point, rational
from unslothrl.rewards.maths.expressions.tree import Tree, symbols

MAX_PRECISION = 24_000  # bits
MAX_MAGNITUDE = 1 << 14  # bits before the point, of what sin and exp are taken of
_TRIGONOMETRIC = {"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "sech",
                  "csch"}  # fmt: skip
_LOGARITHMS = {"ln", "log"}
_INVERSE = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec",
    "arccsc": "acsc", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip
_CONTEXT = mpmath.MPContext()  # not mpmath's global one, whose precision others may change


def context(bits: int):
    """The context, set to a precision: it is shared, since it is large; numbers keep their digits
    when its precision changes."""
    _CONTEXT.prec = bits
    return _CONTEXT


def evaluated(tree: Tree, where: Point, bits: int, imaginary: bool, real: bool):
    """-> (an mpf or mpc, `Evaluation.magnitude`). Undefined where there is no value."""
    evaluation = Evaluation(where, bits, imaginary, real)
    try:
        return evaluation.value(tree), evaluation.magnitude
    except Undefined:
        raise
    except (ArithmeticError, ValueError, TypeError, AttributeError, mpmath.libmp.NoConvergence):
        raise Undefined("no value") from None


class Evaluation:
    """Computes values at a point to a number of bits.

    `imaginary`: i squared is -1. `real`: what has no real value is undefined. `magnitude` is the
    most bits before or after the point that any part had: sums of parts are wrong by up to
    2 ** (magnitude - bits).
    """

    def __init__(self, where: Point, bits: int, imaginary: bool, real: bool):
        self.where, self.imaginary, self.real = where, imaginary, real
        self.context = context(bits)
        self.magnitude = 0

    def value(self, tree: Tree, in_angle: bool = False):
        """An mpf or mpc. Undefined. `in_angle`: of a trigonometric function, where degrees become
        radians."""
        kind = tree[0]
        if kind == "number":
            return self.noted(self.fraction(tree[1]))
        if kind == "symbol":
            return self.symbol(tree[1])
        if kind == "add":
            total = self.context.mpf(0)
            for part in tree[1:]:
                total += self.value(part, in_angle)
            return self.noted(total, small=False)
        if kind == "mul":
            product = self.context.mpf(1)
            for part in tree[1:]:
                product *= self.value(part, in_angle)
            return self.noted(product)
        if kind == "pow":
            return self.power(tree[1], tree[2], in_angle)
        return self.noted(self.call(tree, in_angle), small=False)

    def noted(self, value, small: bool = True):
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
        base_value = self.value(base, in_angle)
        try:
            power = rational(exponent, self.where)
        except NotRational:
            return self.noted(self.any_power(base_value, self.value(exponent)))
        if base_value == power == 0 and symbols(base) | symbols(exponent):
            return self.context.mpf(1)
        if base_value == 0 and power <= 0:
            raise Undefined("0 to a power that is not positive")
        if base_value == 0:
            return base_value
        if abs(power * self.context.mag(base_value)) > MAX_PRECISION:
            raise Undefined("too large")
        if power.denominator == 1:
            return self.noted(base_value ** int(power))
        if self.is_real(base_value) and base_value < 0:
            if power.denominator % 2:  # the real root
                root = (-base_value) ** self.fraction(power)
                return self.noted(-root if power.numerator % 2 else root)
            if self.real:
                raise Undefined("root of a negative number")
        return self.noted(base_value ** self.fraction(power))

    def any_power(self, base, power):
        """A power whose exponent is not rational."""
        if base == 0 or (self.real and not (self.is_real(base) and base > 0)):
            raise Undefined("power of what is not positive")
        self.limit(power * self.context.log(base))
        return base**power

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
        values = [self.value(argument) for argument in arguments]
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
        if name in ("factorial", "binomial") and all(
            abs(argument) < MAX_FACTORIAL for argument in values
        ):
            return getattr(self.context, name)(*values)
        if name.startswith("of "):  # a function that is not known: any value, by its arguments
            return self.unknown(
                name + "".join(self.context.nstr(argument, 24) for argument in values)
            )
        raise Undefined(name)

    def logarithm(self, name: str, value, base=10):
        if value == 0 or base in (0, 1):
            raise Undefined("logarithm")
        if self.real and not (self.is_real(value) and value > 0 and base > 0):
            raise Undefined("logarithm of what is not positive")
        natural = self.context.log(value)
        return natural if name == "ln" else natural / self.context.log(base)

    def unknown(self, name: str):
        return self.fraction(coordinate(name, 0))


def differ(a, b, exponent: int) -> bool:
    """Whether the difference is over 2 ** exponent."""
    difference = a - b
    return bool(difference) and _CONTEXT.mag(difference) > exponent

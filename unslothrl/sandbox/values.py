"""Values that are data as JSON, and back: numbers, texts, bytes, ranges, dates, arrays.

Part of `remote`: it runs inside sandboxes, where this package is not. A value that is no JSON by
itself is a list that begins with the name of its kind.
"""

import collections
from collections.abc import Callable
from typing import Any

LARGE = 1 << 53  # integers from there on travel in hexadecimal, whose conversion is quick
PLAIN = (type(None), bool, str, float)
DATES = ("date", "datetime", "time")
CONTAINERS = (list, dict, set, bytearray, collections.deque)
ARRAYS = "biufcU"  # kinds of NumPy's: numbers and texts


def as_data(value: Any) -> Any:
    """A value as JSON; None for what is no data. None itself, containers and tuples are not for
    here."""
    if isinstance(value, bool | int | float | str | complex | bytes):
        return as_plain(value)
    if isinstance(value, range):
        return ["range", *map(hex, (value.start, value.stop, value.step))]
    name, module = type(value).__name__, type(value).__module__
    if (module, name) == ("decimal", "Decimal"):
        return ["Decimal", str(value)]
    if (module, name) == ("fractions", "Fraction"):
        return ["Fraction", hex(value.numerator), hex(value.denominator)]
    if module == "datetime" and name in DATES:
        return [name, value.isoformat()]
    if (module, name) == ("datetime", "timedelta"):
        return [name, value.days, value.seconds, value.microseconds]
    if module == "numpy" and hasattr(value, "tolist") and value.dtype.kind in ARRAYS:
        if not value.shape:
            return as_plain(value.item())
        return ["array", value.dtype.str, list(value.shape), flat(value)]
    return None


def as_plain(value: Any) -> Any:
    """A number, a text or bytes as JSON, those of a class that is derived from these too."""
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value) if -LARGE < value < LARGE else ["int", hex(value)]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    return float(value) if isinstance(value, float) else str(value)


def flat(array: Any) -> list:
    """The items of an array, complex ones as two numbers."""
    items = array.reshape(-1).tolist()
    return [[z.real, z.imag] for z in items] if array.dtype.kind == "c" else items


def array_of(dtype: str, shape: list[int], items: list) -> Any:
    import numpy

    kind = numpy.dtype(dtype)
    if kind.kind not in ARRAYS:
        raise ValueError("an array of something else")
    values = [complex(*pair) for pair in items] if kind.kind == "c" else items
    return numpy.array(values, dtype=kind).reshape(shape)


def integer(text: str) -> int:
    return int(text, 16)


def made_by(module: str, name: str, prepare: Callable = lambda part: part) -> Callable:
    """-> a function that calls a class of a module, which is imported then."""
    return lambda *parts: getattr(__import__(module), name)(*map(prepare, parts))


def dated(name: str) -> Callable:
    return lambda text: getattr(__import__("datetime"), name).fromisoformat(text)


FROM_DATA: dict[str, Callable] = {
    "int": integer,
    "complex": complex,
    "bytes": bytes.fromhex,
    "range": lambda *parts: range(*map(integer, parts)),
    "Decimal": made_by("decimal", "Decimal"),
    "Fraction": made_by("fractions", "Fraction", integer),
    "timedelta": made_by("datetime", "timedelta"),
    "array": array_of,
    **{name: dated(name) for name in DATES},
}

"""JSON with integers of any length, for trusted data; and how deeply values are nested.

Python refuses integers of more than 4,300 digits, because converting them takes time quadratic in
their length. The result of an untrusted program is read by `sandbox.runner.read_result` instead.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

MOST_NESTED = 100  # levels; what walks through a value may take several calls for each
_lock = threading.Lock()  # the limit is process-wide


@contextlib.contextmanager
def any_length() -> Iterator[None]:
    """Lifts Python's limit on the digits of an integer inside the block."""
    with _lock:
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            yield
        finally:
            sys.set_int_max_str_digits(limit)


def loads(text: str | bytes) -> Any:
    """As json.loads, with integers of any length."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        with any_length():
            return json.loads(text)


def dumps(value: Any) -> str:
    """As json.dumps, with integers of any length."""
    try:
        return json.dumps(value)
    except ValueError:
        with any_length():
            return json.dumps(value)


def is_too_deep(text: str, value: Any) -> bool:
    """Whether `value`, which is `text` as JSON, has more than `MOST_NESTED` levels."""
    if text.count("[") + text.count("{") <= MOST_NESTED:
        return False
    level, depth = [value], 0
    while level and depth <= MOST_NESTED:
        depth += 1
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
    return depth > MOST_NESTED


def digits(number: int) -> str:
    """The decimal digits of an integer of any length."""
    with any_length():
        return str(number)

"""JSON with integers of any length, for data that can be trusted.

Python refuses integers of more than 4,300 digits, since converting them takes time by the square of
their length. What a program returned is read otherwise: see `sandbox.runner.read_result`.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()  # the limit is one of the whole process


@contextlib.contextmanager
def any_length() -> Iterator[None]:
    with _lock:
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            yield
        finally:
            sys.set_int_max_str_digits(limit)


def loads(text: str | bytes) -> Any:
    """As json.loads."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        with any_length():
            return json.loads(text)


def dumps(value: Any) -> str:
    """As json.dumps."""
    try:
        return json.dumps(value)
    except ValueError:
        with any_length():
            return json.dumps(value)


def digits(number: int) -> str:
    with any_length():
        return str(number)

"""Keeps `make quick` quick: its tests, and every Python that they start, load none of HEAVY.

conftest.py imports this in pytest's own process and puts the folder on PYTHONPATH, so that Python
imports it by itself (https://docs.python.org/3/library/site.html) in each process that a test
starts. torch is allowed, since the maths runs on it.
"""

import sys

HEAVY = frozenset(
    ("bitsandbytes", "datasets", "peft", "ray", "transformers", "trl", "unsloth", "vllm")
)


class NotQuick(BaseException):
    """Of no class that `except ImportError` or `except Exception` would catch."""


def refuse(event: str, arguments: tuple) -> None:
    if event == "import" and arguments[0].partition(".")[0] in HEAVY:
        raise NotQuick(
            f"a test of `make quick` imports {arguments[0]}: mark it, or its file, with "
            "pytest.mark.real"
        )


sys.addaudithook(refuse)

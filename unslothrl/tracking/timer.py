"""Times the parts of a training step."""

import contextlib
import time
from collections.abc import Iterator

PARTS = ("generation", "reward", "update", "sync")


class Timer:
    """Seconds of one step by part: `with timer("update"): ...`. The time outside all parts is the
    driver's overhead."""

    def __init__(self):
        self.spent = dict.fromkeys(PARTS, 0.0)
        self.began = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[part] += time.perf_counter() - began

    def move(self, seconds: float, source: str, target: str) -> None:
        """Counts `seconds` that were timed as part `source` to part `target`."""
        self.spent[source] -= seconds
        self.spent[target] += seconds

    def metrics(self) -> dict[str, float]:
        """`timing/<part>_s` for every part, overhead and the whole step so far."""
        step = time.perf_counter() - self.began
        overhead = step - sum(self.spent.values())
        seconds = {**self.spent, "overhead": overhead, "step": step}
        return {f"timing/{name}_s": value for name, value in seconds.items()}

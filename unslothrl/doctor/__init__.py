"""What is wrong with this machine for a run, and what to do about it.

    for check in examine(self_test=False):
        check.line()                   "warning  /dev/shm       64 MB: start the container with ..."

Each check is one line, and none of them changes anything. What raises is a problem of its own.
"""

from collections.abc import Callable, Iterable, Iterator

from unslothrl.doctor import cards, packages, system, trial
from unslothrl.doctor.check import PROBLEM, STATUSES, Check
from unslothrl.planning.machine import Machine

__all__ = ["STATUSES", "Check", "examine", "worst"]


def examine(self_test: bool, output_dir: str = "runs") -> Iterator[Check]:
    """Every check in turn, as it is made; the self-test last."""
    yield from guarded("Python", packages.python)
    machine = Machine.detect()
    yield from guarded("card", lambda: cards.cards(machine))
    yield from guarded("driver", lambda: cards.driver(machine, packages.cuda_of_torch()))
    yield from guarded("packages", lambda: packages.packages(bool(machine.gpus)))
    if machine.gpus or machine.gpu_problem is not None:
        yield from guarded("compiler", system.compiler)
    yield from guarded("memory", system.memory)
    yield from guarded("/dev/shm", lambda: system.shared_memory(machine))
    yield from guarded("disk", lambda: system.disks(output_dir))
    yield from guarded("open files", system.open_files)
    yield from guarded("sandbox", system.sandbox)
    yield from guarded("hub", system.hub)
    yield from guarded("Ray", system.ray_processes)
    if self_test:
        yield from guarded("self-test", trial.self_test)


def guarded(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """The checks of `look`. A fault of a check must not hide the others."""
    try:
        yield from look()
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        yield Check(name, PROBLEM, f"the check failed ({said:.200})", "please report it")


def worst(checks: Iterable[Check]) -> str:
    """The worst status of all."""
    return max((check.status for check in checks), key=STATUSES.index, default=STATUSES[0])

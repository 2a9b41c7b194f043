"""A run that is short of memory for a moment, for bench/injections.py.

`python bench/little_memory.py update|generation NUMBER -- arguments` is `unslothrl arguments`, in
which the NUMBERth pass of an update, or the generation from its NUMBERth token on, finds too little
memory, until the run has made itself smaller. The limit is the system's: tests/limited_memory.py.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from limited_memory import limit  # noqa: E402

from unslothrl.engines.transformers import TransformersEngine  # noqa: E402
from unslothrl.learners.learner import Learner  # noqa: E402

ROOM_MB = tuple(range(20, -1, -1))  # that is left, until it is too little
OF_UPDATES = tuple(100 * 0.9**times for times in range(50))  # their need grows with the batch


def limit_updates(number: int) -> None:
    """A pass begins its gradient anew, so it may be repeated until it has run out of memory."""
    real, passes = Learner.forward_backward, 0

    def limited(learner: Learner, *arguments: Any) -> Any:
        nonlocal passes
        passes += 1
        for room_mb in OF_UPDATES if passes == number else ():
            limit(room_mb)
            try:
                stats = real(learner, *arguments)
            finally:
                limit(None)
            if learner.passes.note:
                return stats
        return real(learner, *arguments)

    Learner.forward_backward = limited


def limit_generation(number: int) -> None:
    real, steps, is_done = TransformersEngine.step, 0, False

    def limited(engine: TransformersEngine) -> Any:
        nonlocal steps, is_done
        steps += 1
        if steps < number or is_done:
            return real(engine)
        rows = engine.max_num_seqs
        limit(ROOM_MB[min(steps - number, len(ROOM_MB) - 1)])
        try:
            return real(engine)
        finally:
            limit(None)
            is_done = engine.max_num_seqs < rows
            if is_done:
                print(f"generation goes on with {engine.max_num_seqs} rows of {rows}", flush=True)
                print("without oneDNN" * (not torch.backends.mkldnn.enabled), flush=True)

    TransformersEngine.step = limited


def main() -> int:
    where, number, _, *arguments = sys.argv[1:]
    (limit_updates if where == "update" else limit_generation)(int(number))
    from unslothrl.commands.cli import main as program

    return program(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""TensorBoard: event files in the run's folder, for `tensorboard --logdir runs`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from unslothrl.tracking.trackers import TrackedRun

FOLDER = "tensorboard"


class TensorBoard:
    def __init__(self, run: TrackedRun):
        from torch.utils.tensorboard import SummaryWriter

        # What an interrupted run has logged after the step that it is resumed at is dropped.
        purge = None if run.resumed_at is None else run.resumed_at + 1
        self.writer = SummaryWriter(str(run.folder / FOLDER), purge_step=purge)
        self.writer.add_text("config", verbatim(json.dumps(run.config, indent=1)), purge or 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for number, row in enumerate(rows):
            text = "\n\n".join(f"**{name}**\n\n{verbatim(str(row[name]))}" for name in row)
            self.writer.add_text(f"samples/{row['set']}/{number}", text, step)

    def close(self, status: str) -> None:
        self.writer.close()


def verbatim(text: str) -> str:
    """A block of code in Markdown, whatever the text contains."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


start = TensorBoard

"""Trackio: a database on this machine, or a Space on the Hugging Face hub."""

from collections.abc import Mapping, Sequence
from typing import Any

from unslothrl.tracking.trackers import COLUMNS, TrackedRun


class Trackio:
    def __init__(self, run: TrackedRun):
        import trackio

        self.trackio = trackio
        self.run = trackio.init(
            project=run.project("TRACKIO_PROJECT"),
            name=f"{run.name}-{run.id}",  # a name is all that it knows a run by
            config=dict(run.config),
            resume="never" if run.resumed_at is None else "allow",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=step)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        table = self.trackio.Table(COLUMNS, [[row[name] for name in COLUMNS] for row in rows])
        self.run.log({"samples": table}, step=step)

    def close(self, status: str) -> None:
        self.run.finish()


start = Trackio

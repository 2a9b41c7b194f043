"""Runs as the lines of a table: what they trained, how they ended, and their verdicts."""

from collections.abc import Sequence

from unslothrl.text import aligned
from unslothrl.tracking.metrics import Points, duration, short
from unslothrl.tracking.report.history import RunHistory
from unslothrl.tracking.report.verdict import verdict

LISTED = {  # column -> figure, of the first evaluation set where it has none
    "reward": "reward/mean", "pass@1": "pass@1", "held-out loss": "loss",
    "tokens right": "token_accuracy", "pairs right": "accuracy",
}  # fmt: skip


def cells(run: RunHistory) -> dict[str, str]:
    """A run in a line of a table, by column. Of curves the first and the last value."""
    timed = run.values("timing/step_s")
    curves = {}
    for column, figure in LISTED.items():
        names = [figure, *(f"eval/{name}/{figure}" for name in run.sets)]
        curves[column] = change(next(filter(None, map(run.points, names)), []))
    return {
        "run": run.name,
        "status": run.status,
        "verdict": verdict(run).kind,
        "started": run.begun.started or "-",
        "method": str(run.options.get("learner", "-")) if run.is_rl else run.kind,
        "model": str(run.options.get("model", "-")),
        "steps": str(len(timed)),
        "time": duration(sum(timed)),
        **curves,
    }


def change(points: Points) -> str:
    """The first and the last value of a curve."""
    if len(points) < 2:
        return short(points[0][1]) if points else "-"
    return f"{short(points[0][1])} -> {short(points[-1][1])}"


def table_of(runs: Sequence[RunHistory]) -> list[list[str]]:
    """The lines of a table of runs, its heading first, without columns that say nothing."""
    lines = [cells(run) for run in runs]
    columns = [name for name in lines[0] if any(each[name] != "-" for each in lines)]
    return [columns, *([each[name] for name in columns] for each in lines)]


def listing(runs: Sequence[RunHistory]) -> list[str]:
    """The runs as lines of plain text, one a run."""
    return aligned(table_of(runs))

"""How a run ended, as labelled lines."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unslothrl.tracking.metrics import EVALUATED, duration, eval_sets, is_number, short
from unslothrl.tracking.run_folder import REPORT

SHOWN = (  # label, key of the summary
    ("adapter", "adapter"),
    ("best", "best_adapter"),
    ("use it", "command"),
    ("evaluate", "evaluate"),
    ("export", "export"),
    ("resume", "resume"),
    ("goes on", "goes_on"),
    ("report", "report"),
)


def is_whole(summary: Mapping[str, Any]) -> bool:
    """Whether it has what `summary_lines` needs: a file may hold anything."""
    evaluations = [summary.get(name) or {} for name in ("first_eval", "last_eval")]
    seconds = [summary.get("seconds"), summary.get("eval_seconds") or 0]
    return (
        type(summary.get("steps")) is int
        and all(map(is_number, seconds))
        and all(isinstance(each, dict) for each in evaluations)
    )


def summary_lines(
    summary: Mapping[str, Any], values: Sequence[float], arrow: str, curve: str = "reward"
) -> list[tuple[str, str]]:
    """(label, text): status, steps and times; evaluations before and after; what can be done now.

    An evaluation of another step than the first or the last is shown with its step. `values`: the
    figure of every step that `curve` names; `arrow` stands between before and after.
    """
    lines = [(str(summary["status"]), times(summary))]
    first, last = summary.get("first_eval") or {}, summary.get("last_eval") or {}
    when = sorted({each["step"] for each in (first, last) if type(each.get("step")) is int})
    is_plain = not when or (when[-1] == summary["steps"] and when[0] in (0, when[-1]))
    at = "" if is_plain else f", after step {' and '.join(map(str, when))}"
    for name in eval_sets([first]):
        for label, key in EVALUATED:
            before = first.get(f"eval/{name}/{key}")
            if before is None:
                continue
            after = last.get(f"eval/{name}/{key}") if last != first else None
            lines.append((label, f"{change(before, after, arrow)}  {name}{at}"))
    if values:
        last_value = values[-1] if len(values) > 1 else None
        said = "in training, first and last step" if len(values) > 1 else "in training"
        lines.append((curve, f"{change(values[0], last_value, arrow)}  {said}"))
    return lines + [(label, str(summary[key])) for label, key in SHOWN if summary.get(key)]


def found_at(run: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run that may have been moved since, with the paths of the folder `run`."""
    before = str(summary.get("report") or "").removesuffix(f"/{REPORT}")
    return {
        key: value.replace(before, str(run)) if before and isinstance(value, str) else value
        for key, value in summary.items()
    }


def times(summary: Mapping[str, Any]) -> str:
    """The steps, the seconds that they and the evaluations took, and those of the whole run."""
    steps = summary["steps"]
    text = f"{steps} step{'' if steps == 1 else 's'} in {duration(summary['seconds'])}"
    if evaluating := summary.get("eval_seconds"):
        text += f", and {duration(evaluating)} of evaluation"
    if is_number(wall := summary.get("wall_seconds")):
        since = " since it was resumed" if summary.get("was_resumed") else " with start and end"
        text += f"; {duration(wall)}{since}"
    return text


def change(before: float | None, after: float | None, arrow: str) -> str:
    if not is_number(before) or not is_number(after):
        return short(before)
    return f"{short(before)} {arrow} {short(after)}  {after - before:+.3f}"

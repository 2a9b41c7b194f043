"""Several runs on one page, and as a table for the terminal."""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unslothrl.files import write_whole
from unslothrl.tracking import charts, methods, origin
from unslothrl.tracking.charts import Curve
from unslothrl.tracking.metrics import Points, Row, duration, eval_sets, mean, series, short
from unslothrl.tracking.origin import Origin
from unslothrl.tracking.report import curves, overview, signs, stages, steps
from unslothrl.tracking.report.curves import Evaluations
from unslothrl.tracking.report.document import address, page, section, text
from unslothrl.tracking.report.page import evaluations_of
from unslothrl.tracking.report.status import status
from unslothrl.tracking.run_folder import CONFIG, REPORT, RunFolder

SAME_FOR_ALL = ("run_name", "output_dir", "resume")  # options that say nothing of what was trained
DRAWN = ("pass@1", "best_of_n")  # figures of completions, which problems have
METRICS = (
    ("Reward, mean of a step's completions", "reward/mean", None),
    ("Score: share of right completions", "rollout/score", 0.0),
    ("Completion length, tokens", "rollout/mean_length", 0.0),
    ("Truncated completions, share", "rollout/truncated", 0.0),
    ("Groups whose rewards are equal", "reward/zero_signal_groups", 0.0),
    ("Entropy, nats per token", "train/entropy", 0.0),
    ("Sampler gap, mean |sampler - learner| in nats", "train/sampler_gap", 0.0),
    ("KL against the reference, nats per token", "train/kl_reference", 0.0),
    ("Gradient norm, before clipping", "train/grad_norm", 0.0),
    ("Seconds of a step", "timing/step_s", 0.0),
    ("Generation, tokens per second", "rollout/tokens_per_s", 0.0),
)


@dataclass(frozen=True)
class Run:
    """What a comparison needs of a run."""

    name: str  # unlike any other's
    folder: RunFolder
    rows: Sequence[Row]
    options: dict[str, Any]
    summary: dict[str, Any]
    begun: Origin
    evaluations: Evaluations = field(default_factory=dict)

    @property
    def status(self) -> str:
        return status(self.summary, self.folder.path)

    @functools.cached_property
    def scores(self) -> overview.ScoresByStep:
        return overview.scores_by_step(self.folder)


def read(folders: Sequence[Path], with_evaluations: bool = True) -> list[Run]:
    """Runs in the order in which they are given; those of one name are told apart by their path."""
    names = [path.resolve().name for path in folders]
    runs = []
    for path, name in zip(folders, names, strict=True):
        folder = RunFolder(path)
        runs.append(
            Run(
                name if names.count(name) == 1 else str(path),
                folder,
                folder.read_metrics(),
                overview.read_options(path / CONFIG),
                folder.read_summary(),
                origin.read(path),
                evaluations_of(steps.update(folder)) if with_evaluations else {},
            )
        )
    return runs


def write_comparison(runs: Sequence[Run], path: Path) -> Path:
    """Writes the page that compares runs. -> its path."""
    title = ", ".join(run.name for run in runs)
    drawn = overlaid(runs)
    parts = [
        f"<header><h1>{text(title)} <small>{len(runs)} runs</small></h1></header>",
        runs_table(runs, path),
        section("Options that differ", differing_table(runs)),
        section("Evaluations", evaluations_table(runs)),
        section("What to look at", signs_list(runs)),
        section("Over the steps", f"<div class=figures>{drawn}</div>" if drawn else ""),
    ]
    write_whole(path, page(title, "\n".join(parts), {"steps": [], "evals": []}))
    return path


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Of cells in HTML; the first of a row is its name."""
    if not body:
        return ""
    top = "".join(f"<th>{cell}" for cell in head)
    lines = "".join(
        f"<tr><th>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>"
        for row in body
    )
    return (
        f"<div class=wide><table class=numbers><thead><tr>{top}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def runs_table(runs: Sequence[Run], path: Path) -> str:
    body = []
    for run in runs:
        name = text(run.name)
        if (run.folder.path / REPORT).is_file():
            link = address(os.path.relpath(run.folder.path / REPORT, path.parent))
            name = f'<a href="{link}">{name}</a>'
        body.append([name, *(text(cell) for cell in cells(run, runs)[1:])])
    return section("Runs", table(head(runs), body))


HEAD = ("run", "status", "started", "learner", "model", "steps", "time")
OF_RL = ("reward", "pass@1")
OF_STAGES = {"held-out loss": "loss", "tokens right": "token_accuracy", "pairs right": "accuracy"}


def head(runs: Sequence[Run]) -> list[str]:
    """The columns that these runs have."""
    found = [*HEAD, *OF_RL]
    if not any(map(is_rl, runs)):
        found = ["stage" if column == "learner" else column for column in HEAD]
    stages = [run for run in runs if not is_rl(run)]
    return found + [c for c, key in OF_STAGES.items() if any(held_out(run, key) for run in stages)]


def is_rl(run: Run) -> bool:
    return methods.command_of(run.options) == methods.RL


def held_out(run: Run, key: str) -> Points:
    """A figure of the first evaluation set."""
    names = eval_sets(run.rows)
    return series(run.rows, f"eval/{names[0]}/{key}") if names else []


def cells(run: Run, runs: Sequence[Run] = ()) -> list[str]:
    """A run in a line, in the columns of `runs`. Of curves the first and the last value."""
    timed = series(run.rows, "timing/step_s")
    command = methods.command_of(run.options)
    known = {
        "reward": series(run.rows, "reward/mean"),
        "pass@1": held_out(run, "pass@1"),
        **{column: held_out(run, key) for column, key in OF_STAGES.items()},
    }
    return [
        run.name,
        run.status,
        run.begun.started or "-",
        str(run.options.get("learner", "-")) if command == methods.RL else command,
        str(run.options.get("model", "-")),
        str(len(timed)),
        duration(sum(value for _, value in timed)),
        *(change(known[column]) for column in head(runs or [run])[len(HEAD) :]),
    ]


def change(points: Sequence[tuple[int, float]]) -> str:
    if len(points) < 2:
        return short(points[0][1]) if points else "-"
    return f"{short(points[0][1])} → {short(points[-1][1])}"


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Options that are not the same in all runs -> the value of each, None where it has none."""
    names = dict.fromkeys(name for run in runs for name in run.options)
    found = {name: [run.options.get(name) for run in runs] for name in names}
    return {
        name: values
        for name, values in found.items()
        if name not in SAME_FOR_ALL and any(value != values[0] for value in values)
    }


def differing_table(runs: Sequence[Run]) -> str:
    body = [
        [text(name), *("-" if value is None else text(value) for value in values)]
        for name, values in differing(runs).items()
    ]
    return table(["", *(text(run.name) for run in runs)], body) or "<p>None.</p>"


def evaluations_table(runs: Sequence[Run]) -> str:
    """The first and the last evaluation of each run, by set; of two runs on the same problems also
    how their last ones differ."""
    body = []
    for name in dict.fromkeys(name for run in runs for name in eval_sets(run.rows)):
        for label, key in stages.EVALUATIONS:
            row = [f"{label} <small>{text(name)}</small>"]
            for run in runs:
                points = series(run.rows, f"eval/{name}/{key}")
                row.append(change(points) + last_interval(run, name, key, points))
            if len(runs) == 2:
                row.append(last_difference(runs, name, key))
            body.append(row)
    body = [row for row in body if set(row[1:]) != {"-"}]
    head = ["", *(text(run.name) for run in runs), *["difference of the last"] * (len(runs) == 2)]
    return table(head, body)


def last_interval(run: Run, name: str, key: str, points: Sequence[tuple[int, float]]) -> str:
    figures = run.evaluations.get(points[-1][0], {}).get(name) if points else None
    field = {"pass@1": "pass_at_1"}.get(key, key)
    return overview.interval(getattr(figures, field)[1:]) if figures else ""


def last_difference(runs: Sequence[Run], name: str, key: str) -> str:
    """Paired over the problems, "-" where those are not the same, or where the best is one of more
    completions in one of the runs; what is no problem's own is subtracted."""
    if key not in DRAWN:
        both = [series(run.rows, f"eval/{name}/{key}") for run in runs]
        return f"{both[1][-1][1] - both[0][-1][1]:+.3f}" if all(both) else "-"
    first, second = (overview.last_scores(run.scores, name, run.evaluations) for run in runs)
    counts = [{len(values) for values in of_run.values()} for of_run in (first, second)]
    if key == "best_of_n" and counts[0] != counts[1]:
        return "-"
    return overview.difference(first, second, mean if key == "pass@1" else max) or "-"


def signs_list(runs: Sequence[Run]) -> str:
    items = "".join(
        f"<li class={sign.level}><b>{text(run.name)}: {text(sign.title)}.</b> "
        f"{text(sign.seen)}</li>"
        for run in runs
        for sign in signs.found(run.rows, run.options, overview.rules_of(run.options))
    )
    return f"<ul class=signs>{items}</ul>" if items else ""


def overlaid(runs: Sequence[Run]) -> str:
    """The charts, with a curve for each run."""
    sets = dict.fromkeys(name for run in runs for name in eval_sets(run.rows))
    figures = [
        charts.lines(
            f"Evaluation, {name} pass@1, with 95% intervals",
            [
                Curve(run.name, each.points, each.dots, each.band)
                for run in runs
                for each in [curves.evaluation_curve(run.rows, run.evaluations, name)]
            ],
            0.0,
            1.0,
        )
        for name in sets
    ]
    figures += stages_overlaid([run for run in runs if not is_rl(run)])
    figures += [
        charts.lines(title, [Curve(run.name, series(run.rows, metric)) for run in runs], low=low)
        for title, metric, low in METRICS
    ]
    return "".join(figures)


def stages_overlaid(runs: Sequence[Run]) -> list[str]:
    """What SFT, DPO or reward models have learnt: in training, and in every evaluation set."""
    sets = dict.fromkeys(name for run in runs for name in eval_sets(run.rows))
    places = [("in training", "train"), *((f"on {text(name)}", f"eval/{name}") for name in sets)]
    found = [
        charts.lines(
            f"{label[0].upper()}{label[1:]} {where}",
            [Curve(run.name, series(run.rows, f"{prefix}/{key}")) for run in runs],
            high=None if key in ("loss", "margin") else 1.0,
        )
        for label, key in stages.EVALUATIONS
        for where, prefix in places
    ]
    curves_of_speed = [Curve(run.name, stages.tokens_per_s(run.rows)) for run in runs]
    return [*found, charts.lines("Tokens per second", curves_of_speed, low=0.0)]


def listing(runs: Sequence[Run]) -> list[str]:
    """The runs as lines of plain text, one a run."""
    rows = ([cell.replace("→", "->") for cell in cells(run, runs)] for run in runs)
    lines = [head(runs), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]

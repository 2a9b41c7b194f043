"""The page of SFT, DPO or a reward model: its figures, its evaluations and its curves."""

from collections.abc import Mapping, Sequence
from typing import Any

from unslothrl.tracking import charts, methods
from unslothrl.tracking.charts import Curve
from unslothrl.tracking.methods import DPO, METHODS, RM, SFT
from unslothrl.tracking.metrics import (
    EVALUATED,
    Points,
    Row,
    eval_sets,
    is_number,
    series,
    short,
)
from unslothrl.tracking.report.document import section, text

MOST_DOTS = 60
LOSS, MARGIN = "loss", "margin"
EVALUATIONS = (*EVALUATED, (MARGIN, MARGIN))  # label, key

# Title, (name in the legend, figure), lowest and highest value shown.
Named = tuple[str, tuple[tuple[str, str], ...], float | None, float | None]
RIGHT: Named = (
    "Pairs whose better answer is preferred, share; a tie is half", (("", "accuracy"),), 0.0, 1.0
)  # fmt: skip
LEARNT: dict[str, tuple[Named, ...]] = {
    SFT: (
        ("Loss, nats per token", (("", LOSS),), None, None),
        ("Token accuracy", (("", "token_accuracy"),),
         None, 1.0),
        ("Entropy, nats per token", (("", "entropy"),), 0.0, None),
    ),
    DPO: (
        ("Loss", (("", LOSS),), None, None),
        RIGHT,
        ("Margin between the implicit rewards", (("", MARGIN),), None, None),
        ("Implicit rewards, beta x log-ratio to the reference",
         (("chosen", "reward_chosen"), ("rejected", "reward_rejected")), None, None),
        ("Log-probability of an answer, nats",
         (("chosen", "logprob_chosen"), ("rejected", "logprob_rejected")), None, None),
    ),
    RM: (
        ("Loss", (("", LOSS),), None, None),
        RIGHT,
        ("Margin between the scores", (("", MARGIN),), None, None),
        ("Score, mean of all answers", (("", "reward_mean"),), None, None),
    ),
}  # fmt: skip
UPDATES = (
    ("Gradient norm, before clipping", "train/grad_norm", 0.0),
    ("Learning rate", "train/lr", 0.0),
)


def what(rows: Sequence[Row], options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What the header says that it is."""
    return [
        ("stage", METHODS[methods.command_of(options)].name),
        ("model", options.get("model")),
        ("data set", options.get("dataset")),
        ("from adapter", options.get("adapter")),
    ]


def figures(rows: Sequence[Row]) -> list[tuple[str, str]]:
    tokens = max((value for _, value in series(rows, "train/tokens")), default=0)
    return [
        ("tokens read", f"{tokens:,.0f}"),
        ("rows seen", f"{max((row.get('samples_seen') or 0 for row in rows), default=0):,}"),
    ]


EQUAL_BEFORE = (
    "<p class=meta>Before the first step the policy is its own reference: it prefers neither "
    "answer of a pair, which counts as half right.</p>"
)


def before_after(rows: Sequence[Row], options: Mapping[str, Any]) -> str:
    """A table of the held-out evaluations: first, last, difference and best."""
    body = []
    for name in eval_sets(rows):
        for label, key in EVALUATIONS:
            if points := series(rows, f"eval/{name}/{key}"):
                body.append(evaluation_row(name, label, points, -1 if key == LOSS else 1))
    if not body:
        return ""
    head = "<tr><th><th>before<th>after<th>difference<th>best</tr>"
    return section(
        "Before and after, on held-out rows",
        f"<div class=wide><table class=numbers><thead>{head}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
        + (EQUAL_BEFORE if methods.command_of(options) == DPO else ""),
        "before-after",
    )


def evaluation_row(name: str, label: str, points: Points, better: int) -> str:
    """`better`: 1 where more is, -1 where less is."""
    (_, first), (_, last) = points[0], points[-1]
    best_step, best = max(points, key=lambda point: better * point[1])
    after = changed = "-"
    if len(points) > 1:
        after, changed = short(last), f"{last - first:+.3f}"
    kind = "up" if better * (last - first) > 0 else "same"
    return (
        f"<tr><th>{label} <small>{text(name)}</small></th><td>{short(first)}</td>"
        f"<td><b>{after}</b></td><td class={kind}>{changed}</td>"
        f"<td>{short(best)} <small>step {best_step}</small></td></tr>"
    )


def sections(rows: Sequence[Row], options: Mapping[str, Any], marks: Sequence[int]) -> str:
    """All charts, under their headings."""
    learnt = LEARNT[methods.command_of(options)]
    machine = [
        ("Tokens per second", tokens_per_s(rows), 0.0),
        ("Seconds of a step", series(rows, "timing/step_s"), 0.0),
        ("Peak memory, MB", series(rows, "memory/learner_peak_mb"), 0.0),
    ]
    updates = [(title, series(rows, metric), low) for title, metric, low in UPDATES]
    groups = (
        ("What it learnt", [chart(rows, each, marks) for each in learnt]),
        ("Updates", [one(*each, marks) for each in updates]),
        ("Machine", [one(*each, marks) for each in machine]),
    )
    return "".join(
        f"<h3>{title}</h3><div class=figures>{''.join(drawn)}</div>"
        for title, drawn in groups
        if any(drawn)
    )


def chart(rows: Sequence[Row], named: Named, marks: Sequence[int]) -> str:
    """A figure in training, and in every evaluation set."""
    title, metrics, low, high = named
    curves = []
    for where, prefix in [("training", "train"), *((n, f"eval/{n}") for n in eval_sets(rows))]:
        for name, metric in metrics:
            points = series(rows, f"{prefix}/{metric}")
            is_eval = prefix != "train"
            dots = is_eval and len(points) <= MOST_DOTS
            curves.append(Curve(f"{where} {name}".strip(), points, dots=dots))
    return charts.lines(title, curves, low, high, marks)


def one(title: str, points: Points, low: float | None, marks: Sequence[int]) -> str:
    return charts.lines(title, [Curve("", points)], low, marks=marks)


def tokens_per_s(rows: Sequence[Row]) -> Points:
    """Of every step: what it has read of the run's tokens in its time."""
    found: Points = []
    before = 0.0
    for row in rows:
        total, seconds = row.get("train/tokens"), row.get("timing/step_s")
        if is_number(total):
            if is_number(seconds) and seconds > 0 and total > before:
                found.append((row["step"], (total - before) / seconds))
            before = total
    return found

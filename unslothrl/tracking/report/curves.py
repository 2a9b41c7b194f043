"""The charts of a run: which metrics, under which titles."""

from collections.abc import Iterable, Mapping, Sequence

from unslothrl.tracking import charts
from unslothrl.tracking.charts import Curve
from unslothrl.tracking.metrics import Row, components, eval_sets, is_number, series
from unslothrl.tracking.report.steps import SetFigures
from unslothrl.tracking.timer import PARTS

Evaluations = Mapping[int, Mapping[str, SetFigures]]
"""By step, then by the set's name."""

# Title, (name in the legend, metric), lowest value shown, whether a chart of zeros is left out.
Named = tuple[str, tuple[tuple[str, str], ...], float | None, bool]

COMPLETIONS: tuple[Named, ...] = (
    ("Score: share of right completions", (("", "rollout/score"),), 0.0, False),
    ("Completion length, tokens", (("", "rollout/mean_length"),), 0.0, False),
    ("Truncated completions, share", (("", "rollout/truncated"),), 0.0, False),
    (
        "Groups without signal",
        (
            ("all rewards equal", "reward/zero_signal_groups"),
            ("filtered out", "reward/filtered_groups"),
        ),
        0.0,
        False,
    ),
    ("Failed rewards", (("", "reward/failed"),), 0.0, True),
    ("Entropy, nats per token", (("", "train/entropy"),), 0.0, False),
    ("Prompt redraws per step", (("", "rollout/resamples"),), 0.0, True),
)
EPISODES: tuple[Named, ...] = (
    ("Turns of an episode", (("", "episode/turns"),), 0.0, False),
    (
        "Tool calls of an episode",
        (("all", "episode/tool_calls"), ("failed", "episode/failed_tool_calls")),
        0.0,
        True,
    ),
    ("Lost episodes", (("", "episode/lost"),), 0.0, False),
)
UPDATES: tuple[Named, ...] = (
    (
        "Sampler gap, |sampler - learner| in nats",
        (("mean", "train/sampler_gap"), ("99th percentile", "train/sampler_gap_p99")),
        0.0,
        False,
    ),
    (
        "Staleness, versions behind",
        (("oldest", "rollout/staleness"), ("mean", "rollout/staleness_mean")),
        0.0,
        False,
    ),
    ("Effective tokens, share", (("", "train/ess"),), 0.0, False),
    ("KL against the reference, nats per token", (("", "train/kl_reference"),), 0.0, False),
    (
        "Tokens bounded, share",
        (("by the clip", "train/clip_fraction"), ("correction", "train/correction_truncated")),
        0.0,
        True,
    ),
    ("Loss", (("", "train/loss"),), None, False),
    ("Gradient norm, before clipping", (("", "train/grad_norm"),), 0.0, False),
    ("Learning rate", (("", "train/lr"),), 0.0, False),
    ("Skipped updates", (("", "train/skipped_updates"),), 0.0, True),
    (
        "Critic: share of the returns' variance explained",
        (("", "train/value_explained"),),
        None,
        False,
    ),
)
MACHINE: tuple[Named, ...] = (
    ("Generation, tokens per second", (("", "rollout/tokens_per_s"),), 0.0, False),
    (
        "Peak memory, MB",
        (("learner", "memory/learner_peak_mb"), ("actor", "memory/actor_peak_mb")),
        0.0,
        False,
    ),
)


def sections(rows: Sequence[Row], evaluations: Evaluations, marks: Sequence[int]) -> str:
    """All charts, under their headings; a metric that was not logged has none."""
    groups = (
        (
            "What it earned",
            [reward_chart(rows, marks), evaluation_chart(rows, evaluations, marks)],
        ),
        ("Completions", [chart(rows, each, marks) for each in COMPLETIONS]),
        ("Episodes", [chart(rows, each, marks) for each in EPISODES]),
        ("Updates", [chart(rows, each, marks) for each in UPDATES]),
        (
            "Machine",
            [
                charts.stacked("Seconds of a step", step_seconds(rows)),
                *(chart(rows, each, marks) for each in MACHINE),
            ],
        ),
    )
    return "".join(
        f"<h3>{title}</h3><div class=figures>{''.join(drawn)}</div>"
        for title, drawn in groups
        if any(drawn)
    )


def reward_chart(rows: Sequence[Row], marks: Sequence[int]) -> str:
    rewards = [Curve("mean", series(rows, "reward/mean"))]
    parts = components(rows)
    if len(parts) > 1:
        rewards += [Curve(n.removeprefix("reward/"), series(rows, n)) for n in parts]
    return charts.lines("Reward, mean of a step's completions", rewards, marks=marks)


def evaluation_chart(rows: Sequence[Row], evaluations: Evaluations, marks: Sequence[int]) -> str:
    """pass@1 with its intervals where the completions are there to compute them."""
    curves = []
    for name in eval_sets(rows):
        curves.append(evaluation_curve(rows, evaluations, name))
        best = series(rows, f"eval/{name}/best_of_n")
        curves.append(Curve(f"{name} best of n", best, dots=len(best) <= 60))
    return charts.lines(
        "Evaluation on held-out problems, with 95% intervals", curves, 0.0, 1.0, marks
    )


def evaluation_curve(rows: Sequence[Row], evaluations: Evaluations, name: str) -> Curve:
    """pass@1 of a set."""
    points = series(rows, f"eval/{name}/pass@1")
    known = [evaluations.get(step, {}).get(name) for step, _ in points]
    band = [(each.pass_at_1[1], each.pass_at_1[2]) for each in known if each is not None]
    whole = band if len(band) == len(points) else []
    return Curve(f"{name} pass@1", points, dots=len(points) <= 60, band=whole)


def chart(rows: Sequence[Row], named: Named, marks: Sequence[int]) -> str:
    title, metrics, low, is_left_out = named
    curves = [Curve(name, series(rows, metric)) for name, metric in metrics]
    curves = [curve for curve in curves if curve.points]
    if len(curves) == 1:
        curves = [Curve("", curves[0].points)]
    if is_left_out and not any(value for curve in curves for _, value in curve.points):
        return ""
    return charts.lines(title, curves, low=low, marks=marks)


def step_seconds(rows: Iterable[Row]) -> list[Curve]:
    """Seconds of every step by part of the loop; "overhead" is the time outside all parts."""
    rows = [row for row in rows if is_number(row.get("timing/step_s"))]
    named = [[row.get(f"timing/{name}_s") or 0.0 for name in PARTS] for row in rows]
    other = [max(0.0, r["timing/step_s"] - sum(v)) for r, v in zip(rows, named, strict=True)]
    parts = [
        Curve(name, [(row["step"], v[i]) for row, v in zip(rows, named, strict=True)])
        for i, name in enumerate(PARTS)
    ]
    rest = [(row["step"], value) for row, value in zip(rows, other, strict=True)]
    return [*parts, Curve("overhead", rest)]

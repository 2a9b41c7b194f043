"""The upper part of the page: what the run is, what it did, what to look at; and its options."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unslothrl.config.reading import read_table
from unslothrl.evaluation.estimates import paired
from unslothrl.redaction import redacted_values
from unslothrl.tracking import methods, origin
from unslothrl.tracking.metrics import Row, components, duration, eval_sets, mean, series, short
from unslothrl.tracking.origin import Origin
from unslothrl.tracking.report import signs, stage_signs, stages
from unslothrl.tracking.report.curves import Evaluations
from unslothrl.tracking.report.document import section, text
from unslothrl.tracking.report.steps import by_set
from unslothrl.tracking.run_folder import RunFolder, read_jsonl

ScoresByStep = Callable[[int], Mapping[str, Mapping[str, list[float]]]]
"""Of the evaluation after a step: set -> task -> the scores of its completions."""


def read_options(path: Path) -> dict[str, Any]:
    """The options in config.toml, {} without one. ValueError where it is damaged."""
    found = read_table(path) if path.is_file() else {}
    return redacted_values(found)  # an older version wrote secrets


def title(
    name: str,
    status: str,
    summary: Mapping[str, Any],
    rows: Sequence[Row],
    options: Mapping[str, Any],
    begun: Origin,
) -> str:
    """The header: the run's name and status, what it trained on what, figures, and commands."""
    is_rl = methods.command_of(options) == methods.RL
    what = [
        *(of_rl(rows, options) if is_rl else stages.what(rows, options)),
        ("started", begun.started),
        ("page written", origin.now()),
    ]
    steps = series(rows, "timing/step_s")
    figures = [
        ("steps", f"{len(steps):,}"),
        ("time in steps", duration(sum(value for _, value in steps))),
        ("in evaluations", duration(sum(v for _, v in series(rows, "timing/eval_s")))),
        *(figures_of_rl(rows) if is_rl else stages.figures(rows)),
    ]
    lines = [
        ("Started by", begun.command),
        ("Adapter", summary.get("adapter")),
        ("Use it", summary.get("command")),
    ]
    lines += [
        ("Resumed", "; ".join((f"after step {each.step}, {each.date}", *each.changes)))
        for each in begun.resumes
    ]
    where = "".join(
        f"<p class=where><span>{label}</span> <code>{text(value)}</code></p>"
        for label, value in lines
        if value
    )
    return (
        f"<header><h1>{text(name)} <small class='{text(status)}'>{text(status)}</small></h1>"
        f"{facts(what, 'what')}{facts(figures, 'facts')}{where}</header>"
    )


def of_rl(rows: Sequence[Row], options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        ("model", options.get("model")),
        ("data set", options.get("dataset")),
        ("learner", options.get("learner")),
        ("reward", ", ".join(rewards_of(rows, options))),
    ]


def figures_of_rl(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return [
        ("tokens generated", f"{sum(v for _, v in series(rows, 'rollout/tokens')):,.0f}"),
        ("samples", f"{max((row.get('samples_seen') or 0 for row in rows), default=0):,}"),
        ("policy version", f"{max((row.get('policy_version') or 0 for row in rows), default=0):,}"),
    ]


def rewards_of(rows: Sequence[Row], options: Mapping[str, Any]) -> list[str]:
    """As they were chosen, else those that the run has resolved."""
    chosen = options.get("reward") or [n.removeprefix("reward/") for n in components(rows)]
    return list(map(str, chosen))


def facts(pairs: Sequence[tuple[str, Any]], kind: str) -> str:
    """A definition list of what is known."""
    cells = "".join(f"<div><dt>{k}</dt><dd>{text(v)}</dd></div>" for k, v in pairs if v)
    return f"<dl class={kind}>{cells}</dl>"


def signs_found(rows: Sequence[Row], options: Mapping[str, Any]) -> str:
    """What a newcomer should look at: the signs of this run."""
    is_rl = methods.command_of(options) == methods.RL
    if not any(row["step"] for row in rows) or (is_rl and not series(rows, "reward/mean")):
        return ""
    found = "".join(
        f"<li class={sign.level}><b>{text(sign.title)}.</b> {text(sign.seen)} "
        f"<span>{text(sign.advice)}</span></li>"
        for sign in signs.found(rows, options, rules_of(options))
    )
    looked_for = (
        "collapse, drifting length, missing signal, a growing sampler gap and others"
        if is_rl
        else "losses that are not finite, a rising held-out loss, pairs told apart by chance and "
        "others"
    )
    body = found or (
        f"<li class=fine><b>Nothing stands out.</b> {len(rules_of(options))} signs were looked "
        f"for: {looked_for}.</li>"
    )
    return section("What to look at", f"<ul class=signs>{body}</ul>", "signs")


def rules_of(options: Mapping[str, Any]) -> Sequence[signs.Rule]:
    """What is looked for in a run with these options."""
    return signs.RULES if methods.command_of(options) == methods.RL else stage_signs.RULES


def before_after(folder: RunFolder, rows: Sequence[Row], evaluations: Evaluations) -> str:
    """A table of the held-out evaluations: first, last, difference and best."""
    body, scores = [], scores_by_step(folder)
    for name in eval_sets(rows):
        for label, key in (("pass@1", "pass@1"), ("best of n", "best_of_n")):
            if points := series(rows, f"eval/{name}/{key}"):
                body.append(evaluation_row(scores, name, label, key, points, evaluations))
    if not body:
        return ""
    head = "<tr><th><th>before<th>after<th>difference<th>best</tr>"
    return section(
        "Before and after, on held-out problems",
        f"<div class=wide><table class=numbers><thead>{head}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
        "<p class=meta>In brackets 95% intervals over problems; the difference is paired, p is the "
        "probability of one as large if there were none. See docs/evaluation.md.</p>",
        "before-after",
    )


def evaluation_row(
    scores: ScoresByStep,
    name: str,
    label: str,
    key: str,
    points: Sequence[tuple[int, float]],
    evaluations: Evaluations,
) -> str:
    (first_step, first), (last_step, last) = points[0], points[-1]
    best_step, best = max(points, key=lambda point: point[1])
    field = {"pass@1": "pass_at_1", "best_of_n": "best_of_n"}[key]

    def with_interval(step: int, value: float) -> str:
        figures = evaluations.get(step, {}).get(name)
        return short(value) + (interval(getattr(figures, field)[1:]) if figures else "")

    after = changed = "-"
    if len(points) > 1:
        after = with_interval(last_step, last)
        ends = [scores(step).get(name, {}) for step in (first_step, last_step)]
        of_problem = mean if key == "pass@1" else max
        changed = difference(ends[0], ends[1], of_problem) or f"{last - first:+.3f}"
    return (
        f"<tr><th>{label} <small>{text(name)}</small></th><td>{with_interval(first_step, first)}"
        f"</td><td><b>{after}</b></td><td class={'up' if last > first else 'same'}>{changed}"
        f"</td><td>{short(best)} <small>step {best_step}</small></td></tr>"
    )


def interval(ends: Sequence[float]) -> str:
    return f" <small>({ends[0]:.3f} to {ends[1]:.3f})</small>"


def difference(
    before: Mapping[str, list[float]],
    after: Mapping[str, list[float]],
    of_problem: Callable[[list[float]], float],
) -> str:
    """The paired difference of two evaluations, with its interval and p; "" where they are not of
    the same problems."""
    if not before or before.keys() != after.keys():
        return ""
    pairs = [(of_problem(scores), of_problem(after[name])) for name, scores in before.items()]
    compared = paired([first for first, _ in pairs], [last for _, last in pairs])
    p = "p &lt; 0.001" if compared.p < 0.001 else f"p = {compared.p:.3f}"
    return f"{compared.mean:+.3f} <small>({compared.low:+.3f} to {compared.high:+.3f}), {p}</small>"


def scores_by_step(folder: RunFolder) -> ScoresByStep:
    """Reads each file once, however many sets it has.

    Another run may have held out other problems under the same tasks: so a problem is called by its
    answer as well, or where it has none by its prompt.
    """

    def read(step: int) -> Mapping[str, Mapping[str, list[float]]]:
        return by_set(
            [
                {**row, "task": f"{row['task']}: {row.get('answer') or row['prompt']}"}
                for row in read_jsonl(folder.evaluation_file(step))
            ]
        )

    return functools.cache(read)


def last_scores(
    scores: ScoresByStep, name: str, evaluations: Evaluations
) -> Mapping[str, list[float]]:
    """Of a set in the last evaluation that has it."""
    step = max((step for step, sets in evaluations.items() if name in sets), default=None)
    return {} if step is None else scores(step).get(name, {})


def options_table(options: Mapping[str, Any]) -> str:
    return section("Options", definitions(options, "options"))


def versions_table(begun: Origin, summary: Mapping[str, Any]) -> str:
    known = dict(begun.versions)
    if summary.get("version"):
        known.setdefault("unslothrl", summary["version"])
    if summary.get("base_hash"):
        known["hash of the base"] = str(summary["base_hash"])[:16]
    return section("Versions", definitions(known, "options"))


def definitions(table: Mapping[str, Any], kind: str) -> str:
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in table.items()
    )
    return f"<dl class={kind}>{cells}</dl>" if cells else ""

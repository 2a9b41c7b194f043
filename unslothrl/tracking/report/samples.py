"""Completions in the page itself: of the first and last step, and of the first and last
evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unslothrl.tracking.metrics import short
from unslothrl.tracking.report.document import address, long_text, section, text
from unslothrl.tracking.report.episodes import Turns
from unslothrl.tracking.report.steps import reward_of
from unslothrl.tracking.run_folder import RunFolder, read_jsonl


def samples(folder: RunFolder) -> str:
    """Three completions of each, see `best_middle_worst`; all others are in the files."""
    steps = folder.rollout_steps()
    parts = [
        part(f"Step {step}", folder.read_rollouts(step), folder.rollouts_file(step))
        for step in dict.fromkeys([*steps[:1], *steps[-1:]])
    ]
    evals = folder.evaluation_steps()
    parts += [
        part(f"Evaluation after step {step}", read_jsonl(path), path)
        for step in dict.fromkeys([*evals[:1], *evals[-1:]])
        for path in [folder.evaluation_file(step)]
    ]
    return section("Samples", "".join(parts), "samples")


def part(title: str, rows: Sequence[Mapping[str, Any]], path: Path) -> str:
    chosen = best_middle_worst(rows)
    cards = "".join(sample(row, is_open=number == 0) for number, row in enumerate(chosen))
    file = f"{path.parent.name}/{path.name}"
    link = f'<a href="{address(file)}">{text(file)}</a>'
    return f"<h3>{title}</h3><p class=meta>best, middle and worst; all of them: {link}</p>{cards}"


def best_middle_worst(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Up to three candidates: those with the highest, the median and the lowest reward."""
    ranked = sorted(rows, key=reward_of, reverse=True)
    places = dict.fromkeys([0, len(ranked) // 2, len(ranked) - 1]) if ranked else []
    return [ranked[place] for place in places]


def sample(row: Mapping[str, Any], is_open: bool) -> str:
    """One candidate: what it earned, its prompt, the gold answer and its completion."""
    facts = [f"{name} {short(value)}" for name, value in row["rewards"].items()]
    if "advantage" in row:
        facts.append(f"advantage {short(row['advantage'])}")
    if "selected" in row:
        facts.append("selected" if row["selected"] else "not selected")
    if "lost" in row:
        facts.append(f"lost: its environment failed: {row['lost']}")
    if row["finish_reason"] == "length":
        facts.append("cut at the length limit")
    of = "Answer of the row" if row.get("turns") else "Gold answer"  # environments may ask another
    answer = f"<h4>{of}</h4><pre>{long_text(row['answer'])}</pre>" if row.get("answer") else ""
    return (
        f"<details{' open' * is_open}><summary><b>reward {short(reward_of(row))}</b> "
        f"<span>task {text(row['task'])}, candidate {row['candidate']}</span></summary>"
        f"<p class=meta>{text(', '.join(facts))}</p>"
        f"<h4>Prompt</h4><pre>{long_text(row['prompt'])}</pre>{answer}"
        f"{body(row)}</details>"
    )


def body(row: Mapping[str, Any]) -> str:
    """What was written, and in an episode with an environment what was answered."""
    if row.get("turns"):
        return episode(row["turns"])
    return f"<h4>Completion</h4><pre>{long_text(row['completion'])}</pre>"


def episode(turns: Turns) -> str:
    """Its turns. What the environment said is set apart from what the model wrote."""
    return f"<div class=turns>{''.join(map(turn, range(1, len(turns) + 1), turns))}</div>"


def turn(number: int, row: Mapping[str, Any]) -> str:
    earned = f", reward {short(row['reward'])}" if row["reward"] else ""
    said = row["observation"]
    return (
        f"<h4>Turn {number}{earned}{failed(row)}</h4><pre>{long_text(row['reply'])}</pre>"
        + "".join(map(call, row.get("tool_calls", ())))
        + (
            f"<h4 class=said>Observation</h4><pre class=said>{long_text(said)}</pre>"
            if said
            else ""
        )
    )


def failed(row: Mapping[str, Any]) -> str:
    count = row["failed_calls"]
    return f", {count} failed {'call' if count == 1 else 'calls'}" if count else ""


def call(row: Mapping[str, Any]) -> str:
    """A tool's name and what it is called with."""
    error = f" <b>{text(row['error'])}</b>" if row["error"] else ""
    return f"<p class=call><code>{text(row['name'])} {text(row['arguments'])}</code>{error}</p>"

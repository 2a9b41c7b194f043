"""The model card of an adapter, and of what is exported of it: README.md in the hub's format."""

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl import __version__
from unslothrl.config.options import OPTIONS
from unslothrl.config.reading import read_table
from unslothrl.embedded import EMBEDDED
from unslothrl.redaction import redacted
from unslothrl.tracking.metrics import Row, buckets, eval_sets, is_number, series, short
from unslothrl.tracking.run_folder import CONFIG, METRICS, SUMMARY, read_jsonl
from unslothrl.untrusted import printable, read_object
from unslothrl.weights.adapter_use import Use
from unslothrl.weights.portable import BASE_FOLDER, is_hub_id

MARKUP = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
CURVE_ROWS = 12
MOST_BYTES = 1 << 20  # of summary.json
OF_THE_MACHINE = ("output_dir", "run_name", "resume", "ray_address", "adapter", "lora_save_path")
FORMS = {
    "adapter": ("A LoRA adapter", "peft"),
    "merged": ("A merged 16-bit model", "transformers"),
    "gguf": ("A merged model in GGUF", "gguf"),
}


@dataclass(frozen=True)
class Run:
    """What a run's folder says of it."""

    options: Mapping[str, Any]  # of config.toml
    rows: Sequence[Row]  # of metrics.jsonl
    steps: int

    @classmethod
    def read(cls, folder: Path | None) -> "Run":
        """Empty where there is no run; what is damaged counts as missing."""
        options: dict[str, Any] = {}
        rows: list[dict[str, Any]] = []
        steps = 0
        if folder is not None:
            try:
                options = read_table(folder / CONFIG)
                rows = [row for row in read_jsonl(folder / METRICS) if type(row.get("step")) is int]
                steps = max((row["step"] for row in rows), default=0)
                if (folder / SUMMARY).is_file():
                    told = read_object(folder / SUMMARY, MOST_BYTES).get("steps")
                    steps = told if type(told) is int else steps
            except (OSError, ValueError, TypeError, AttributeError, RecursionError):
                pass
        return cls(options, rows, steps)


def card(title: str, use: Use | None, base: str, run: Run, form: str = "adapter") -> str:
    """The text of README.md."""
    what, library = FORMS[form]
    is_public = is_hub_id(base) or base == EMBEDDED
    trained_on = code(base) if is_public else f"{code(Path(base).name)}, a local model,"
    parts = [
        front_matter(base, library, run),
        f"# {inline(title)}",
        f"{what}, trained by reinforcement learning over the 4-bit (NF4) weights of {trained_on} "
        f"with unslothrl {__version__}.",
        *usage(form, base),
        *prompts(use),
        *evaluations(run.rows),
        *curve(run.rows),
        *recipe(run),
    ]
    return redacted("\n\n".join(parts) + "\n")  # it is published


def front_matter(base: str, library: str, run: Run) -> str:
    """What the hub reads. It knows bases and data sets by their ids alone."""
    head: dict[str, Any] = {"library_name": library, "pipeline_tag": "text-generation"}
    if is_hub_id(base):
        head["base_model"] = base
    data = str(run.options.get("dataset", "")).partition("@")[0].partition("[")[0]
    if is_hub_id(data) and not data.endswith((".jsonl", ".json", ".csv", ".parquet")):
        head["datasets"] = [data]
    learner = str(run.options.get("learner", ""))
    tags = ["reinforcement-learning", "lora", "unslothrl"]
    head["tags"] = [*tags, learner] if learner.isidentifier() else tags
    return "\n".join(
        ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---"]
    )


def usage(form: str, base: str) -> list[str]:
    """How it is loaded with others' libraries."""
    if form != "adapter":
        return []
    if base == EMBEDDED:
        load = f'base = AutoModelForCausalLM.from_pretrained(f"{{folder}}/{BASE_FOLDER}")'
        needs = ""
    else:
        load = (
            "base = AutoModelForCausalLM.from_pretrained(\n"
            f"    {json.dumps(base if is_hub_id(base) else 'the/folder/of/its/base')},\n"
            "    quantization_config=BitsAndBytesConfig(\n"
            '        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True\n'
            "    ),\n)"
        )
        needs = ", BitsAndBytesConfig"
    return [
        "## Use",
        "```python\n"
        "from peft import PeftModel\n"
        f"from transformers import AutoModelForCausalLM, AutoTokenizer{needs}\n\n"
        'folder = "."  # this one\n'
        f"{load}\n"
        "model = PeftModel.from_pretrained(base, folder)\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        "```",
    ]


def prompts(use: Use | None) -> list[str]:
    """What the model was told, and how it was sampled."""
    if use is None:
        return []
    sampled = f"Evaluated at temperature {use.temperature:g}, top_p {use.top_p:g}, at most "
    lines = [f"{sampled}{use.max_new_tokens:,} new tokens, with the tokenizer's chat template."]
    if use.system_prompt:
        lines.append(f"Its system prompt:\n\n{fenced(use.system_prompt)}")
    return lines


def evaluations(rows: Sequence[Row]) -> list[str]:
    """A table of held-out figures before training and after."""
    lines = []
    for name in eval_sets(rows):
        for label, key in (("pass@1", "pass@1"), ("best of n", "best_of_n")):
            points = series(rows, f"eval/{name}/{key}")
            if points:
                (_, first), (step, last) = points[0], points[-1]
                best = max(value for _, value in points)
                cells = (
                    inline(name),
                    label,
                    short(first),
                    f"{short(last)} (step {step})",
                    short(best),
                )
                lines.append("| " + " | ".join(cells) + " |")
    if not lines:
        return []
    head = "| set | figure | first | last | best |\n| --- | --- | --- | --- | --- |"
    return ["## Evaluation", "\n".join([head, *lines])]


def curve(rows: Sequence[Row]) -> list[str]:
    """The reward and the length of a dozen stretches of the run."""
    rows = [row for row in rows if is_number(row.get("reward/mean"))]
    if not rows:
        return []
    lines = ["| steps | reward | tokens per completion |", "| --- | --- | --- |"]
    for part in buckets(rows, CURVE_ROWS):
        steps = f"{part[0]['step']} to {part[-1]['step']}" if len(part) > 1 else part[0]["step"]
        lengths = [row["rollout/mean_length"] for row in part
                   if is_number(row.get("rollout/mean_length"))]  # fmt: skip
        length = f"{math.fsum(lengths) / len(lengths):.0f}" if lengths else "-"
        lines.append(f"| {steps} | {short(mean(part, 'reward/mean'))} | {length} |")
    return ["## Training", "\n".join(lines)]


def mean(rows: Sequence[Row], name: str) -> float:
    return math.fsum(row[name] for row in rows) / len(rows)


def recipe(run: Run) -> list[str]:
    """The options of the run, without those that say where it was and other paths."""
    lines = []
    for name, value in run.options.items():
        is_set = name in OPTIONS and value not in (OPTIONS[name].default, [])
        if is_set and name not in OF_THE_MACHINE:
            values = value if isinstance(value, list) else [value]
            if all(map(may_be_shown, values)):
                lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    if not lines:
        return []
    return [
        f"## Recipe\n\n{run.steps} steps; options that are not listed have their defaults. Usable "
        "as a file: `unslothrl --recipe FILE.toml`.",
        fenced("\n".join(lines), "toml"),
    ]


def may_be_shown(value: Any) -> bool:
    """Whether this is a value of an option, and no path."""
    return isinstance(value, str | int | float) and not looks_like_a_path(str(value))


def looks_like_a_path(value: str) -> bool:
    """Of this machine, which is nobody's business."""
    return value.startswith(("/", "~", ".")) or "=/" in value or "\\" in value


def inline(text: str) -> str:
    """Text of unknown origin within a line of Markdown: no markup, link or HTML."""
    shown = html.escape(printable(" ".join(text.split())), quote=False)
    return MARKUP.sub(r"\\\g<0>", shown)


def code(text: str) -> str:
    """Such a text as code within a line."""
    return f"`{printable(' '.join(text.split())).replace('`', '?')}`"


def fenced(text: str, language: str = "") -> str:
    """`text` in a code block, whatever it holds."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"

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
from unslothrl.config.reading import read_table
from unslothrl.embedded import EMBEDDED
from unslothrl.redaction import redacted
from unslothrl.rewards.model import HEAD_FILE
from unslothrl.tracking import methods
from unslothrl.tracking.methods import METHODS
from unslothrl.tracking.metrics import (
    EVALUATED,
    Row,
    buckets,
    eval_sets,
    is_number,
    series,
    short,
)
from unslothrl.tracking.run_folder import CONFIG, METRICS, SUMMARY, read_jsonl
from unslothrl.untrusted import printable, read_object
from unslothrl.weights.adapter_use import Use
from unslothrl.weights.portable import BASE_FOLDER, is_hub_id

MARKUP = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
CURVE_ROWS = 12
MOST_BYTES = 1 << 20  # of summary.json
OF_THE_MACHINE = ("output_dir", "run_name", "resume", "ray_address", "adapter", "lora_save_path")
TRAINED = {  # command -> (column, metric) of the table of its steps
    methods.RL: (("reward", "reward/mean"), ("tokens per completion", "rollout/mean_length")),
    methods.SFT: (("loss", "train/loss"), ("tokens right", "train/token_accuracy")),
    methods.DPO: (
        ("loss", "train/loss"),
        ("chosen over rejected", "train/accuracy"),
        ("margin", "train/margin"),
    ),
}
TRAINED[methods.RM] = TRAINED[methods.DPO]
ADAPTER = "adapter"
FORMS = {
    ADAPTER: ("A LoRA adapter", "peft"),
    "merged": ("A merged 16-bit model", "transformers"),
    "gguf": ("A merged model in GGUF", "gguf"),
}


@dataclass(frozen=True)
class Run:
    """What a run's folder says of it."""

    options: Mapping[str, Any]  # of config.toml
    rows: Sequence[Row]  # of metrics.jsonl
    steps: int

    @property
    def command(self) -> str:
        return methods.command_of(self.options)

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


def card(title: str, use: Use | None, base: str, run: Run, form: str = ADAPTER) -> str:
    """The text of README.md."""
    what, library = FORMS[form]
    if run.command == methods.RM:
        what = "A reward model: a LoRA adapter, and a head that gives an answer a score"
    is_public = is_hub_id(base) or base == EMBEDDED
    trained_on = code(base) if is_public else f"{code(Path(base).name)}, a local model,"
    parts = [
        front_matter(base, library, run),
        f"# {inline(title)}",
        f"{what}, trained by {METHODS[run.command].name} over the 4-bit (NF4) weights of "
        f"{trained_on} with unslothrl {__version__}.",
        *stages(use),
        *usage(form, base, run, has_template=use is None or use.chat_template is not None),
        *prompts(use, run),
        *evaluations(run.rows),
        *curve(run),
        *recipe(run),
    ]
    return redacted("\n\n".join(parts) + "\n")  # it is published


def front_matter(base: str, library: str, run: Run) -> str:
    """What the hub reads. It knows bases and data sets by their ids alone."""
    scores = run.command == methods.RM
    head: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": "text-classification" if scores else "text-generation",
    }
    if is_hub_id(base):
        head["base_model"] = base
    data = str(run.options.get("dataset", "")).partition("@")[0].partition("[")[0]
    if is_hub_id(data) and not data.endswith((".jsonl", ".json", ".csv", ".parquet")):
        head["datasets"] = [data]
    learner = str(run.options.get("learner", ""))
    tags = [*METHODS[run.command].tags, "lora", "unslothrl"]
    head["tags"] = [*tags, learner] if learner.isidentifier() else tags
    return "\n".join(
        ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---"]
    )


def stages(use: Use | None) -> list[str]:
    """What has trained it before, where it began as an adapter."""
    if use is None or len(use.stages) < 2:
        return []
    lines = [f"{number}. {inline(stage)}" for number, stage in enumerate(use.stages, 1)]
    return ["## Stages", "\n".join(lines)]


def usage(form: str, base: str, run: Run, has_template: bool) -> list[str]:
    """How it is loaded with others' libraries."""
    if form != ADAPTER:
        return []
    scores = run.command == methods.RM
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
    text = (
        ("" if has_template or not scores else "import torch\n")
        + "from peft import PeftModel\n"
        + ("from safetensors.torch import load_file\n" if scores else "")
        + f"from transformers import AutoModelForCausalLM, AutoTokenizer{needs}\n\n"
        'folder = "."  # this one\n'
        f"{load}\n"
        "model = PeftModel.from_pretrained(base, folder)\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        + (scoring(has_template) if scores else "")
    )
    of_rl = "In reinforcement learning: `unslothrl train --reward rm:FOLDER`, with this folder."
    return ["## Use", *([of_rl] if scores and has_template else []), f"```python\n{text}```"]


def scoring(has_template: bool) -> str:
    return (
        f'\nhead = load_file(f"{{folder}}/{HEAD_FILE}")\n'
        + (OF_CONVERSATION if has_template else OF_TEXTS)
        + SCORE
    )


OF_CONVERSATION = """\
turns = [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]
text = tokenizer.apply_chat_template(turns, tokenize=False).rstrip()  # up to the answer's end
ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").to(model.device)
"""
OF_TEXTS = """\
prompt, answer = "...", "..."  # as they stand: the base has no chat template
ids = tokenizer(prompt)["input_ids"]
ids += tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
ids = {"input_ids": torch.tensor([ids], device=model.device)}
"""
SCORE = """\
last = model(**ids, output_hidden_states=True).hidden_states[-1][0, -1].float()
score = last @ head["weight"][0].to(last.device)
usual = (score - head["mean"][0]) / head["std"][0]  # 0: as good as the average of its pairs
"""


def prompts(use: Use | None, run: Run) -> list[str]:
    """What the model was told, and how it was sampled."""
    if use is None:
        return []
    lines = []
    if run.command == methods.RL:
        sampled = f"Evaluated at temperature {use.temperature:g}, top_p {use.top_p:g}, at most "
        lines.append(
            f"{sampled}{use.max_new_tokens:,} new tokens, with the tokenizer's chat template."
        )
    if use.system_prompt:
        lines.append(f"Its system prompt:\n\n{fenced(use.system_prompt)}")
    return lines


def evaluations(rows: Sequence[Row]) -> list[str]:
    """A table of held-out figures before training and after."""
    lines = []
    for name in eval_sets(rows):
        for label, key in EVALUATED:
            points = series(rows, f"eval/{name}/{key}")
            if points:
                (_, first), (step, last) = points[0], points[-1]
                best = (min if key == "loss" else max)(value for _, value in points)
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


def curve(run: Run) -> list[str]:
    """The main figures of a dozen stretches of the run."""
    columns = TRAINED[run.command]
    rows = [row for row in run.rows if is_number(row.get(columns[0][1]))]
    if not rows:
        return []
    names = [name for name, _ in columns]
    lines = [f"| steps | {' | '.join(names)} |", "| --- " * (1 + len(names)) + "|"]
    for part in buckets(rows, CURVE_ROWS):
        steps = f"{part[0]['step']} to {part[-1]['step']}" if len(part) > 1 else part[0]["step"]
        lines.append(f"| {steps} | {' | '.join(mean(part, metric) for _, metric in columns)} |")
    return ["## Training", "\n".join(lines)]


def mean(rows: Sequence[Row], name: str) -> str:
    values = [row[name] for row in rows if is_number(row.get(name))]
    if not values:
        return "-"
    found = math.fsum(values) / len(values)
    return f"{found:.0f}" if name == "rollout/mean_length" else short(found)


def recipe(run: Run) -> list[str]:
    """The options of the run, without those that say where it was and other paths."""
    lines, known = [], methods.options_of(run.command)
    for name, value in run.options.items():
        is_set = name in known and value not in (known[name].default, [])
        if is_set and name not in OF_THE_MACHINE:
            values = value if isinstance(value, list) else [value]
            if all(map(may_be_shown, values)):
                lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    if not lines:
        return []
    return [
        f"## Recipe\n\n{run.steps} steps; options that are not listed have their defaults. Usable "
        f"as a file: `unslothrl {run.command} --recipe FILE.toml`.",
        fenced("\n".join(lines), "toml"),
    ]


def may_be_shown(value: Any) -> bool:
    """Whether this is a value of an option, and no path."""
    return is_number(value) or (isinstance(value, str) and not looks_like_a_path(value))


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

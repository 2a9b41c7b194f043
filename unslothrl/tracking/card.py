"""The model card of an adapter, and of what is exported of it: README.md in the hub's format."""

import html
import json
import re
from pathlib import Path
from typing import Any

from unslothrl import __version__
from unslothrl.config.offline_options import TABLES
from unslothrl.config.options import OPTIONS
from unslothrl.embedded import BASES
from unslothrl.rewards.model import HEAD_FILE
from unslothrl.text import printable, redacted
from unslothrl.tracking.metrics import EVALUATED, is_number, short
from unslothrl.tracking.origin import METHODS, RL, RM
from unslothrl.tracking.report.history import RunHistory
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.weights.adapter_use import BASE_FOLDER, Use
from unslothrl.weights.shapes import config_of, is_hub_id

MARKUP = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
OF_THE_MACHINE = ("output_dir", "run_name", "resume", "ray_address", "adapter", "lora_save_path")
FORMS = {  # what is published, the library that loads it
    "adapter": ("A LoRA adapter", "peft"),
    "merged": ("A merged 16-bit model", "transformers"),
    "gguf": ("A merged model in GGUF", "gguf"),
}
LOAD = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer{imports}

folder = "."  # this one
base = AutoModelForCausalLM.from_pretrained({base})
model = PeftModel.from_pretrained(base, folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
"""
IN_NF4 = """
    {name}, quantization_config=BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
"""
OF_TEXT = (  # PEFT would leave out all tensors of it
    "Its base takes images as well, and this adapter is of the text model in it, whose layers have "
    "other names there: `unslothrl chat`, or `unslothrl export --to merged`."
)
OF_CONVERSATION = """
turns = [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]
text = tokenizer.apply_chat_template(turns, tokenize=False).rstrip()  # up to the answer's end
ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").to(model.device)
"""
OF_JUDGE = "In reinforcement learning: `unslothrl train --reward rm:FOLDER`, with this folder."
SCORE = f"""\
from safetensors.torch import load_file

head = load_file(f"{{folder}}/{HEAD_FILE}")
last = model(**ids, output_hidden_states=True).hidden_states[-1][0, -1].float()
score = last @ head["weight"][0].to(last.device)
usual = (score - head["mean"][0]) / head["std"][0]  # 0: as good as the average of its pairs
"""


def history(folder: Path | None) -> RunHistory:
    """Of the run that trained an adapter; an empty one where there is none, or it is damaged."""
    try:
        return RunHistory(()) if folder is None else RunHistory.read(RunFolder(folder))
    except ValueError:
        return RunHistory(())


def card(title: str, use: Use | None, base: str, run: RunHistory, form: str = "adapter") -> str:
    """The text of README.md."""
    what, library = FORMS[form]
    if run.kind == RM:
        what = "A reward model: a LoRA adapter, and a head that gives an answer a score"
    is_public = is_hub_id(base) or base in BASES
    trained_on = code(base) if is_public else f"{code(Path(base).name)}, a local model,"
    stages = use.stages if use is not None and len(use.stages) > 1 else ()  # that were before it
    sections = {
        "Stages": "\n".join(f"{number}. {inline(each)}" for number, each in enumerate(stages, 1)),
        "Use": usage(base, run, use) if form == "adapter" else "",
        "Evaluation": evaluations(run),
        "Recipe": recipe(run),
    }
    head = (
        f"---\n{front_matter(base, library, run)}---\n\n# {inline(title)}\n\n{what}, trained by "
        f"{METHODS[run.kind].name} over the 4-bit (NF4) weights of {trained_on} with unslothrl "
        f"{__version__}."
    )
    parts = [f"## {name}\n\n{said}" for name, said in sections.items() if said]
    return redacted("\n\n".join([head, *parts]) + "\n")  # it is published


def front_matter(base: str, library: str, run: RunHistory) -> str:
    """What the hub reads. It knows bases and data sets by their ids alone."""
    from huggingface_hub import ModelCardData

    data = re.split(r"[@[:]", str(run.options.get("dataset", "")))[0]
    is_on_hub = is_hub_id(data) and not data.endswith((".jsonl", ".json", ".csv", ".parquet"))
    learner = str(run.options.get("learner", ""))
    tags = [*METHODS[run.kind].tags, "lora", "unslothrl"]
    found = ModelCardData(
        library_name=library,
        pipeline_tag="text-classification" if run.kind == RM else "text-generation",
        base_model=base if is_hub_id(base) else None,
        datasets=[data] if is_on_hub else None,
        tags=[*tags, learner] if learner.isidentifier() else tags,
    )
    return f"{found.to_yaml()}\n"


def usage(base: str, run: RunHistory, use: Use | None) -> str:
    """How it is loaded with others' libraries, what the model was told, and how it was sampled."""
    if "text_config" in (config_of(base) or {}):
        return OF_TEXT
    if base in BASES:
        text = LOAD.format(imports="", base=f'f"{{folder}}/{BASE_FOLDER}"')
    else:
        name = json.dumps(base if is_hub_id(base) else "the/folder/of/its/base")
        text = LOAD.format(imports=", BitsAndBytesConfig", base=IN_NF4.format(name=name))
    parts = []
    if run.kind == RM and (use is None or use.chat_template is not None):
        parts, text = [OF_JUDGE], text + OF_CONVERSATION + SCORE
    parts.append(f"```python\n{text}```")
    if use is not None and run.kind == RL:
        parts.append(
            f"Evaluated at temperature {use.temperature:g}, top_p {use.top_p:g}, at most "
            f"{use.max_new_tokens:,} new tokens, with the tokenizer's chat template."
        )
    if use is not None and use.system_prompt:
        parts.append(f"Its system prompt:\n\n{fenced(use.system_prompt)}")
    return "\n\n".join(parts)


def evaluations(run: RunHistory) -> str:
    rows = []
    for label, key in EVALUATED:
        for name in run.sets:
            if not (points := run.points(f"eval/{name}/{key}")):
                continue
            (_, first), (step, last) = points[0], points[-1]
            best = (min if key == "loss" else max)(value for _, value in points)
            ends = short(first), f"{short(last)} (step {step})", short(best)
            rows.append([inline(name), label, *ends])
    head = ["set", "figure", "first", "last", "best"]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) if rows else ""


def recipe(run: RunHistory) -> str:
    """The options of the run, without those that say where it was and other paths."""
    known = TABLES[run.kind].options if run.kind in TABLES else OPTIONS
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in run.options.items()
        if name in known and value not in (known[name].default, []) and name not in OF_THE_MACHINE
        if all(map(may_be_shown, value if isinstance(value, list) else [value]))
    ]
    if not lines:
        return ""
    steps = max((row["step"] for row in run.rows), default=0)
    return (
        f"{steps} steps; options that are not listed have their defaults. Usable as a file: "
        f"`unslothrl {run.kind} --recipe FILE.toml`.\n\n" + fenced("\n".join(lines), "toml")
    )


def may_be_shown(value: Any) -> bool:
    """Whether this is a value of an option, and no path of this machine."""
    if not isinstance(value, str):
        return is_number(value)
    return not (value.startswith(("/", "~", ".")) or "=/" in value or "\\" in value)


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

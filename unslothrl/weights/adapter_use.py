"""What it takes to use an adapter besides its weights: unslothrl.json, which lies beside them.

PEFT, vLLM and Unsloth ignore the file. Where it is, an adapter answers the same wherever its folder
is copied to.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unslothrl import __version__
from unslothrl.checkpoints import codec
from unslothrl.config.options import Config
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.files import Unreadable, exists, expanded, read_object
from unslothrl.text import is_utf8, shown

USE_FILE = "unslothrl.json"
MOST = 1 << 20  # bytes
FORMAT = 1  # of the file
MOST_STAGES = 64
MOST_NEW_TOKENS = 1 << 20
POLICY, REWARD_MODEL = "policy", "reward_model"  # kinds of adapters


@dataclass(frozen=True)
class Use:
    """What the run told the model and how it was evaluated."""

    base: str  # hub id, folder, or embedded
    system_prompt: str  # "": none
    chat_template: str | None = None  # None: the base's own
    temperature: float = 0.6
    top_p: float = 0.95
    max_new_tokens: int = 1200
    base_hash: str = ""  # of the 4-bit weights that it was trained over; "": not known
    kind: str = POLICY
    stages: tuple[str, ...] = ()  # that have trained it, the oldest first, a line each
    base_parts: dict[str, str] = field(default_factory=dict)  # see there; {}: not recorded


def of_run(config: Config, system_prompt: str, tokenizer: Any) -> Use:
    """How the adapters of a run are used."""
    return replace(
        of_base(config.model, system_prompt, tokenizer),
        temperature=config.eval_temperature,
        top_p=config.eval_top_p,
        max_new_tokens=config.max_new_tokens,
    )


def of_base(model: str, system_prompt: str, tokenizer: Any) -> Use:
    """How adapters over a base are used where nothing has been drawn from them yet."""
    is_folder = model != EMBEDDED and exists(model)
    template = tokenizer.chat_template  # some models have several, by name
    return Use(
        base=str(expanded(model).resolve()) if is_folder else model,
        system_prompt=system_prompt,
        chat_template=template if isinstance(template, str) else None,
    )


def to_json(use: Use) -> str:
    """The content of unslothrl.json."""
    head = {"format": FORMAT, "unslothrl": __version__}
    return json.dumps({**head, **asdict(use)}, indent=2, ensure_ascii=False) + "\n"


def read(folder: Path) -> Use | None:
    """What lies beside an adapter's weights, None where nothing does. UserError if damaged."""
    path = folder / USE_FILE
    if not exists(str(path)):
        return None
    try:
        values = read_object(path, MOST)
        if values.get("format") != FORMAT:
            found = shown(values.get("format"))
            raise Unreadable(f"its format is {found}, this version reads {FORMAT}")
        if not is_utf8(json.dumps(values, ensure_ascii=False)):
            raise Unreadable("a text in it has half a surrogate pair")
        known = {name: values[name] for name in values if name in Use.__dataclass_fields__}
        return codec.decoded(Use, known)
    except (ValueError, TypeError) as error:  # the latter where something is missing
        raise UserError(
            f"adapter {folder}: {USE_FILE} is damaged ({error}): copy it again, or remove it"
        ) from None


def check_policy(folder: Path) -> None:
    """UserError for an adapter that was not trained to answer."""
    use = read(folder)
    if use is not None and use.kind == REWARD_MODEL:
        raise UserError(f"adapter {folder} is a reward model: use it with --reward rm:{folder}")

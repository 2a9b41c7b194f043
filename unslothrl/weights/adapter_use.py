"""What it takes to use an adapter besides its weights: unslothrl.json, which lies beside them.

PEFT, vLLM and Unsloth ignore the file. Where it is, an adapter answers the same wherever its folder
is copied to.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unslothrl import __version__
from unslothrl.config.options import Config
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded
from unslothrl.untrusted import Unreadable, is_utf8, read_object, shown

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
            raise Unreadable(
                f"its format is {shown(values.get('format'))}, this version reads {FORMAT}"
            )
        return checked(values)
    except Unreadable as error:
        raise UserError(
            f"adapter {folder}: {USE_FILE} is damaged ({error}): copy it again, or remove it"
        ) from None


def check_policy(folder: Path) -> None:
    """UserError for an adapter that was not trained to answer."""
    use = read(folder)
    if use is not None and use.kind == REWARD_MODEL:
        raise UserError(
            f"adapter {folder} is a reward model, which scores answers and gives none: use it with "
            f"--reward rm:{folder}"
        )


def checked(settings: dict[str, Any]) -> Use:
    """Raises Unreadable for a value of the wrong type or outside of its limits."""
    wanted: dict[str, tuple[Any, float, float]] = {
        "temperature": (int | float, 1e-3, 2),
        "top_p": (int | float, 1e-3, 1),
        "max_new_tokens": (int, 1, MOST_NEW_TOKENS),
    }
    for key, (kind, least, most) in wanted.items():
        value = settings.get(key)
        if not isinstance(value, kind) or isinstance(value, bool) or not least <= value <= most:
            raise Unreadable(f"{key} must be from {least} to {most}, got {shown(value)}")
    for key in ("base", "system_prompt", "chat_template"):
        value = settings.get(key)
        if not isinstance(value, str) and not (key == "chat_template" and value is None):
            raise Unreadable(f"{key} must be text, got {shown(value)}")
        if value and not is_utf8(value):
            raise Unreadable(f"{key} has half a surrogate pair")
    if settings.get("kind", POLICY) not in (POLICY, REWARD_MODEL):
        raise Unreadable(f"kind must be {POLICY} or {REWARD_MODEL}, got {shown(settings['kind'])}")
    stages = settings.get("stages", [])
    if not isinstance(stages, list) or len(stages) > MOST_STAGES:
        raise Unreadable(f"stages must be a list of at most {MOST_STAGES}, got {shown(stages)}")
    if not all(isinstance(each, str) and is_utf8(each) for each in stages):
        raise Unreadable(f"stages must be texts, got {shown(stages)}")
    if not isinstance(settings.get("base_hash", ""), str):
        raise Unreadable(f"base_hash must be text, got {shown(settings['base_hash'])}")
    parts = settings.get("base_parts", {})
    if not isinstance(parts, dict) or not all(isinstance(each, str) for each in parts.values()):
        raise Unreadable(f"base_parts must be an object of texts, got {shown(parts)}")
    known = {key: value for key, value in settings.items() if key in Use.__dataclass_fields__}
    return Use(**{**known, "stages": tuple(stages)})

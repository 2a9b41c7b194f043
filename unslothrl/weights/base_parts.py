"""What a base consists of, with a short hash of each part: what was trained over one base is not
used over another.

The parts are those of the checkpoint that the user names, before it is quantised here, which
another kind of card or CPU does a little differently. They do not depend on its folder, on how its
tensors are split into files, or on its README.md.
"""

import functools
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from unslothrl.errors import UserError
from unslothrl.files import read_object
from unslothrl.system.machine import hub_answers, is_offline
from unslothrl.text import one_line

WEIGHTS, EMBEDDINGS, NORMS, HEAD = "weights", "embeddings", "norms", "head"
CONFIG, TOKENIZER, TEMPLATE, STOPS = "config.json", "tokenizer", "chat template", "stop tokens"
OF_TEXTS = (TOKENIZER, TEMPLATE, STOPS)
OF_TENSORS = {  # part -> what the names of its tensors have in them; all others are `WEIGHTS`
    HEAD: ("lm_head", "embed_out"),
    EMBEDDINGS: ("embed", "wte", "wpe"),
    NORMS: ("norm", ".ln_"),
}
TOKENIZER_SUFFIXES = (".json", ".jinja", ".model", ".txt")
TOKENIZER_NAMES = (
    "tokenizer", "special_tokens", "vocab", "merges", "added_tokens",
    "sentencepiece", "spiece", "tekken",
)  # fmt: skip
TEMPLATE_NAME, TEMPLATE_FILE = "chat_template", "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"  # a folder
NOT_COMPARED = ("_name_or_path", "transformers_version")  # of config.json: where it comes from
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def of(base: Path) -> dict[str, str]:
    """The parts of the checkpoint in a folder. UserError where one of its files is damaged."""
    config, generation = read(base, "config.json"), read(base, "generation_config.json")
    of_tokenizer = read(base, "tokenizer_config.json")
    template = of_tokenizer.pop(TEMPLATE_NAME, None)
    if (base / TEMPLATE_FILE).is_file():  # which transformers prefers
        template = (base / TEMPLATE_FILE).read_text("utf-8", "replace")
    if others := sorted((base / MORE_TEMPLATES).glob("*.jinja")):
        template = [template, {path.name: path.read_text("utf-8", "replace") for path in others}]
    files = {
        path.name: xxhash.xxh3_128_hexdigest(path.read_bytes())
        for path in tokenizer_files(base)
        if path.name.startswith(TOKENIZER_NAMES) and path.name != "tokenizer_config.json"
    }
    stops = [each.pop("eos_token_id", None) for each in (config, generation)]
    for name in NOT_COMPARED:
        config.pop(name, None)
    found: dict[str, Any] = {WEIGHTS: {}, **{part: {} for part in OF_TENSORS}}
    for file in weight_files(base):
        with reading_tensors(f"model {base}", file):
            status = file.stat()
            hashes = hashes_of(file, status.st_ino, status.st_size, status.st_ctime_ns)
        for name, value in hashes.items():
            parts = (part for part, some in OF_TENSORS.items() if any(x in name for x in some))
            found[next(parts, WEIGHTS)][name] = value
    found |= {CONFIG: config, TOKENIZER: [of_tokenizer, files], TEMPLATE: template, STOPS: stops}
    return {part: short(value) for part, value in found.items()}


@contextmanager
def reading_tensors(owner: str, file: Path) -> Iterator[None]:
    """Inside it a safetensors file that is damaged is a UserError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(f"{owner}: {file.name} is damaged ({error!s:.200}): get it again") from None


def weight_files(base: Path) -> list[Path]:
    """The files that a checkpoint's weights are read from: those that its index names, or one."""
    index = read(base, INDEX).get("weight_map")
    if isinstance(index, dict):
        return sorted({base / str(name) for name in index.values()})
    return [base / WHOLE] if (base / WHOLE).is_file() else []


@functools.lru_cache(maxsize=256)
def hashes_of(file: Path, inode: int, size: int, changed_ns: int) -> dict[str, str]:
    """Of each tensor, with its type and shape: 7B in NF4 take half a second from memory."""
    import torch
    from safetensors import safe_open

    hashes = {}
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            entry, content = tensors.get_slice(name), tensors.get_tensor(name)
            hashed = xxhash.xxh3_128_hexdigest(content.reshape(-1).view(torch.uint8).numpy())
            hashes[name] = f"{entry.get_dtype()} {tuple(entry.get_shape())} {hashed}"
    return hashes


def short(value: Any) -> str:
    """A hash of a value of JSON's types."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode())[:16]


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The parts of `now` that are not as recorded, "norms, head"; "" where all that were are."""
    return ", ".join(part for part in now if part in before and before[part] != now[part])


def read(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of a base, {} where there is no such file. UserError."""
    file = folder / name
    return read_object(file) if file.is_file() else {}


def tokenizer_files(base: Path) -> list[Path]:
    """The files of a checkpoint's tokenizer, its chat template among them."""
    return [
        path
        for path in sorted(base.iterdir())
        if path.name.startswith((*TOKENIZER_NAMES, TEMPLATE_NAME))
        and path.suffix in TOKENIZER_SUFFIXES
    ]


def config_from_hub(model: str) -> tuple[str | None, str]:
    """-> (the path of the hub's config.json, why there is none), asked for once in a minute."""
    return _config_from_hub(model, int(time.monotonic() / 60))


@functools.lru_cache
def _config_from_hub(model: str, minute: int) -> tuple[str | None, str]:
    from huggingface_hub import hf_hub_download

    if not hub_answers():
        return None, "HF_HUB_OFFLINE is set" if is_offline() else "the hub does not answer"
    try:
        return hf_hub_download(model, "config.json"), ""
    except Exception as error:  # of HTTP, of sockets, of the disk, of the hub's own checks
        return None, one_line(error)

"""The frozen base: one 4-bit checkpoint that actors and learner load bit for bit.

A base that is not quantised yet is quantised once, into a cache keyed by its content, so that no
two processes can ever hold different 4-bit weights.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import xxhash
from filelock import FileLock

from unslothrl.data import sources
from unslothrl.embedded import BASES
from unslothrl.errors import UserError
from unslothrl.files import exists, leads_out, read_object, staged, write_whole
from unslothrl.records import LORA_TARGETS
from unslothrl.text import for_terminal, one_line
from unslothrl.weights import base_parts, shapes
from unslothrl.weights.base_parts import MORE_TEMPLATES, TOKENIZER_SUFFIXES, WHOLE

LARGE_MB = 2_000  # whose content takes seconds to read
QUANTISING = [Path(__file__).parent / name for name in ("quantise.py", "decoder.py")]
CONSOLIDATED = "consolidated"  # the weights once more, in Mistral's own form
MADE = "unslothrl-parts.json"  # in a copy: its parts as it was made
OF_LINEAR = re.compile(r"\.(\d+)\.(?:\w+\.)*?(\w+)(?:\.base_layer)?(?:\.weight)?$")

Stage = Callable[[str], None]


def say(text: str) -> None:
    """What takes long, where nothing else shows it."""
    print(for_terminal(text), file=sys.stderr, flush=True)


def prepare(model: str, stage: Stage = say) -> Path:
    """-> the folder of the 4-bit checkpoint of `model`, made if need be. `stage` is called with
    what takes long, by default a line on stderr. Raises UserError."""
    source = find(model)
    quantised = read_config(source).get("quantization_config") or {}
    method = quantised.get("quant_method")
    is_4_bit = method == "bitsandbytes" and quantised.get("load_in_4bit")
    if is_4_bit and "text_config" not in read_config(source):
        return source
    if method and not is_4_bit:
        raise UserError(
            f"model {model}: quantised by {method}: give a 16-bit or bitsandbytes model"
        )
    return quantise(source, stage)


def find(model: str, weights: bool = True) -> Path:
    """-> the folder of `model`: an embedded base, a local folder, or a copy from the hub. Without
    `weights` only what the tokenizer takes is asked for."""
    if model in BASES:
        return BASES[model]
    folder = Path(os.path.expanduser(model))
    if exists(model) and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise shapes.no_model(model)
        if weights:
            check_files(model, folder)
        for path in sorted(folder.iterdir()):  # those that are copied into adapters and exports
            if path.suffix in TOKENIZER_SUFFIXES and leads_out(path, folder):
                raise UserError(
                    f"model {model}: {path.name} is a link that leads out of the folder: copy the "
                    "file"
                )
        return folder.resolve()
    if exists(model):
        raise UserError(
            f"model {model}: it is a file: give a folder of 16-bit safetensors, or a hub id"
        )
    if (address := sources.ADDRESS.match(model)) is not None:
        raise UserError(f"model {model} is an address: set --model {address[1]}")
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise UserError(f"model {model}: no such folder: give a folder, owner/name or embedded")
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.jinja", "*.model", "*.txt"] + ["*.safetensors"] * weights
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # of HTTP, of sockets, of the disk, of the hub's own checks
        raise UserError(
            f"model {model}: neither a local folder nor to be had from the hub "
            f"({one_line(error)}): check the name, the network, the space in HF_HOME, and your "
            f"access to huggingface.co/{model} (`hf auth login`)"
        ) from None


def check_files(model: str, folder: Path) -> None:
    """UserError where transformers and vLLM would not read the same weights in a folder."""
    known = base_parts.weight_files(folder)
    if not known:
        found = "model.safetensors" if any(folder.glob("*.safetensors")) else ".safetensors file"
        raise UserError(f"model {model}: the folder has no {found}: convert it first")
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"model {model}: transformers would apply the adapter in it: move it to another folder"
        )
    others = (folder / WHOLE,) if known[0].name != WHOLE else folder.glob("*.safetensors")
    for path in others:
        if path.exists() and path not in known and not path.name.startswith(CONSOLIDATED):
            raise UserError(f"model {model}: {path.name} is no part of it: move it elsewhere")


def read_config(folder: Path) -> dict[str, Any]:
    """config.json. Raises UserError where it is not a JSON object."""
    return base_parts.read(folder, "config.json")


def cache_folder() -> Path:
    """Of 4-bit copies."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "unslothrl" / "nf4"


def quantise(source: Path, stage: Stage = say) -> Path:
    """-> a 4-bit copy of a checkpoint's text model, which one of several processes makes."""
    if size_mb(source) > LARGE_MB:
        stage(f"looking for a 4-bit copy of {source.name}")  # all of it is read
    target = cache_folder() / f"{source.name}-{_content_key(source)}"
    if is_as_made(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.parent / ".lock").acquire()
    except OSError as error:
        raise UserError(
            f"model {source}: the cache {target.parent} cannot be written ({error.strerror}): set "
            "the variable XDG_CACHE_HOME to a folder with room for its 4-bit copy"
        ) from None
    with lock:
        if not is_as_made(target):
            shutil.rmtree(target, ignore_errors=True)
            _quantise(source, target, stage)
    return target


def is_as_made(copy: Path) -> bool:
    """Whether a 4-bit copy is there, and nothing in it has changed since."""
    made = base_parts.read(copy, MADE)
    return made != {} and made == base_parts.of(copy)


def _quantise(source: Path, target: Path, stage: Stage) -> None:
    """Writes the copy, whole or not at all."""
    is_4_bit = "quantization_config" in read_config(source)
    what = "taking the text model out of {}" if is_4_bit else "quantising {} to 4 bit"
    stage(f"{what.format(source.name)}, once: it is kept in {target.parent}")
    with staged(target) as temporary:
        done = subprocess.run(
            [sys.executable, "-m", "unslothrl.weights.quantise", str(source), str(temporary)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise UserError(f"model {source}: {reason} (so it cannot be quantised)")
        for path in source.iterdir():  # the tokenizer and what goes with it, as they are
            if path.suffix in TOKENIZER_SUFFIXES and not (temporary / path.name).exists():
                shutil.copyfile(path, temporary / path.name)
        if (templates := source / MORE_TEMPLATES).is_dir():
            shutil.copytree(templates, temporary / MORE_TEMPLATES)
        write_whole(temporary / MADE, json.dumps(base_parts.of(temporary)).encode())


def load_tokenizer(base: Path, needs_template: bool = True):
    """The tokenizer of a checkpoint exactly as it was saved. UserError, also where it has no chat
    template unless it needs none.

    AutoTokenizer replaces a plain tokenizer by the one that is registered for the model's type;
    Qwen2's would fold Unicode and add a token.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    file = base / "tokenizer_config.json"
    try:
        saved = read_object(file).get("tokenizer_class") if file.is_file() else None
        plain = saved in ("TokenizersBackend", "PreTrainedTokenizerFast")
        kind = PreTrainedTokenizerFast if plain else AutoTokenizer
        tokenizer = kind.from_pretrained(base, trust_remote_code=False)
    except Exception as error:  # of any kind: the files are others', and read in several libraries
        raise UserError(
            f"model {base}: no tokenizer can be read ({one_line(error)}): add its files"
        ) from None
    if needs_template and not tokenizer.chat_template:
        raise UserError(f"model {base}: no chat template: choose an instruct model, or add one")
    return tokenizer


def _content_key(source: Path) -> str:
    """Of all that a 4-bit copy is made from, and of what makes it."""
    versions = {each: importlib.metadata.version(each) for each in ("bitsandbytes", "transformers")}
    copied = [path for path in source.iterdir() if path.suffix in TOKENIZER_SUFFIXES]
    files = {
        path.name: xxhash.xxh3_128_hexdigest(path.read_bytes())
        for path in (*QUANTISING, *copied)
        if path.is_file()
    }
    return base_parts.short([versions, files, base_parts.of(source)])


def stop_token_ids(folder: Path) -> list[int]:
    """The ids that end a completion, by generation_config.json, else config.json."""
    for name in ("generation_config.json", "config.json"):
        eos = base_parts.read(folder, name).get("eos_token_id")
        ids: list[Any] = eos if isinstance(eos, list) else [eos]
        if ids and all(type(id) is int for id in ids):
            return ids
    raise UserError(f"model {folder}: no eos_token_id in its configuration: add one")


def fingerprint(names: Iterable[str], packed: Callable[[str], Any]) -> str:
    """A short hash of the packed 4-bit weights of linear layers; "" where there are none.

    `packed` gives the tensor of one of `names`, which may have more around the checkpoint's. Order:
    layer by layer, q k v o gate up down, then those of other names.
    """
    places = [(OF_LINEAR.search(name), name) for name in names]
    ordered = sorted((int(place[1]), *order_of(place[2]), name) for place, name in places if place)
    digest = hashlib.sha256()
    for *_, name in ordered:
        digest.update(packed(name).detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16] if ordered else ""


def order_of(linear: str) -> tuple[int, str]:
    """The place of a linear layer among those of its layer, by its name."""
    usual = LORA_TARGETS.index(linear) if linear in LORA_TARGETS else len(LORA_TARGETS)
    return usual, linear


def in_order(linears: Iterable[str]) -> list[str]:
    """Names of linear layers as PEFT is told them: the usual seven first."""
    return sorted(linears, key=order_of)


def size_mb(base: Path) -> float:
    """Of the checkpoint's weights on disk."""
    return sum(path.stat().st_size for path in base_parts.weight_files(base)) / 2**20

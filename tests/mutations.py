"""Recipes, flags and adapters that are wrong in every way: mutations of valid ones.

A case is a function of its number alone. Each begins with something valid, and one to three times
a name, a value, a type, the nesting, the size, a header or the kind of a file is changed.
"""

import json
import os
import random
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import adapters

from unslothrl.algorithms import objectives
from unslothrl.config.options import OPTIONS, Config
from unslothrl.config.values import choices_of, kind
from unslothrl.config.writing import to_toml
from unslothrl.embedded import BASE
from unslothrl.weights import adapter_use
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE

VALID = {  # flags of a small run that is accepted
    "model": "embedded", "dataset": "embedded", "learner": "grpo", "cluster": "local",
    "engine": "transformers", "number_of_actors": 0, "batch_size": 4, "num_candidates": 4,
    "topk": 4, "max_new_tokens": 16, "max_steps": 2, "eval_problems": 4,
}  # fmt: skip
NUMBERS = (
    "0", "-1", "1", "2", "7", "0.5", "1e-9", "1e9", "1e308", "1e999", "-1e999", "nan", "inf",
    "2147483648", "9007199254740993", "9" * 400, "-" + "9" * 400, "9" * 5000, "0x" + "f" * 8000,
    "1_000", "1e", "0b11", "01", "+5", "٣", "1 ", "",
)  # fmt: skip
TEXTS = (
    "", " ", "x", "~", "~nobody/x", ".", "..", "/", "-", "--", "=", "a=b", "x" * 300, "x" * 5000,
    "x" * 70_000, "/x" * 3000, "a/b/c", "a/b", "é", "\u202e", "\x1b[31m", "a\nb", "a\tb", "%s",
    "{}", "null", "true", "embedded", "embedded@train", "embedded[:5]", "none", "auto", "[" * 5000,
    '{"a": "embedded"}', '{"a":' * 5000, "{", "'", '"', "x=embedded", "accuracy=1e999", "boxed=-",
    "mine.py:f", "x.py", "../../../etc/passwd", "HuggingFaceH4/MATH-500[:" + "9" * 5000 + "]",
    "x.jsonl[5:1]", "x.jsonl@nosuch",
)  # fmt: skip
TOML = (
    "[[[[1]]]]", "{a = {b = 1}}", "[" * 3000 + "]" * 3000, "2026-11-21", "07:32:00", "[1, 'a']",
    "[]", "['']", "true", "'''\n\n'''", "{" * 3000, "nan", "-inf", "0xdeadbeef", "1e400", "9" * 400,
    "0x" + "f" * 8000, "9" * 5000, '"\\u0000"', '"\\uD800"', '"' + "x" * 100_000 + '"',
    "[[], [[]]]",
)  # fmt: skip
JSON = (
    None, True, False, 0, -1, 1, 513, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "x",
    "16", "x" * 10_000, "\0", "\x1b[2J", [], [None], [[]], ["q_proj", 3], ["x" * 9999], {},
    {"a": 1}, [[[[[[]]]]]], ["lm_head"], {"q_proj": 64},
)  # fmt: skip
REWARDS = (  # in an order that is kept: a case is a function of its number
    "accuracy", "format", "tags", "think_answer_tags", "boxed", "code", "countdown", "search",
)  # fmt: skip
DTYPES = ("F32", "F16", "F64", "I8", "I64", "BOOL", "F8_E4M3", "U4", "", None, 7, "BF16 ")


@dataclass(frozen=True)
class Case:
    number: int
    kind: str  # recipe, flags, adapter, ask or other
    arguments: tuple[str, ...]  # of the command


def make(number: int, folder: Path) -> Case:
    """Writes what the case needs into `folder`, which is its own."""
    draw = random.Random(f"mutation {number}")
    kind, build = draw.choice(
        [("recipe", recipe)] * 3
        + [("flags", flags)] * 3
        + [("adapter", adapter)] * 3
        + [("ask", ask), ("other", other)]
    )
    folder.mkdir(parents=True)
    return Case(number, kind, tuple(map(str, build(draw, folder))))


def as_flags(options: dict) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


def times(draw: random.Random) -> range:
    return range(draw.choice((1, 1, 1, 2, 3)))


# Flags


def flags(draw: random.Random, folder: Path) -> list[str]:
    options = {**VALID, "output_dir": folder / "runs"}
    for _ in times(draw):
        name = draw.choice(list(OPTIONS))
        options[name] = some_value(draw, name, folder)
    arguments = as_flags(options)
    if draw.random() < 0.2:
        at = draw.randrange(len(arguments))
        arguments[at : at + 1] = draw.choice(
            (
                arguments[at].split("=")[:1],
                [arguments[at], arguments[at]],
                [arguments[at].replace("_", "-")],
                [arguments[at].upper()],
                [arguments[at][1:]],
                [arguments[at], "--" + draw.choice(TEXTS)],
                [draw.choice(TEXTS), arguments[at]],
                ["--no_" + arguments[at][2:].split("=")[0]],
            )
        )
    return [text.replace("\0", "") for text in arguments]  # no command line can hold it


def some_value(draw: random.Random, name: str, folder: Path) -> object:
    """A value for an option, more often right than wrong in its type."""
    limits, choices = OPTIONS[name].metadata, choices_of(name)
    if draw.random() < 0.2:
        return draw.choice((*NUMBERS, *TEXTS))
    if draw.random() < (0.4 if kind(name) in (str, tuple) and not choices else 0.02):
        return odd_file(draw, folder)
    if choices:
        return draw.choice(choices)
    if name == "reward":
        return draw.choice(REWARDS) + draw.choice(("", "=0.5", "=0", "=-1e9", "=x"))
    if name == "learner":
        return draw.choice(objectives.names())
    if "at_most" in limits:
        least, most = limits.get("at_least", limits.get("over", 0)), limits["at_most"]
        whole = kind(name) is int
        return draw.choice((least, most, draw.randint(0, 40), most + 1, least - 1) if whole else
                           (least, most, most * draw.random(), most * 1.01, -1e-9))  # fmt: skip
    return draw.choice(TEXTS)


def odd_file(draw: random.Random, folder: Path) -> Path:
    """Something that is there and is not what anybody expects."""
    kind = draw.choice(
        (
            "folder",
            "fifo",
            "sparse",
            "empty",
            "noise",
            "loop",
            "device",
            "endless",
            "sealed",
            "text",
        )
    )
    path = folder / (f"odd-{kind}-{draw.randrange(99)}" + draw.choice(("", ".jsonl", ".py", ".toml",
        ".json", ".parquet", ".csv", ".arrow")))  # fmt: skip
    if path.exists() or path.is_symlink():
        return path
    if kind == "folder":
        (path / "config.json").mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 2**30)
    elif kind == "noise":
        path.write_bytes(draw.randbytes(5000))
    elif kind == "loop":
        path.symlink_to(path)
    elif kind in ("device", "endless"):
        path.symlink_to("/dev/full" if kind == "device" else "/dev/zero")
    else:
        path.write_text("" if kind == "empty" else '{"problem": "1 + 1?", "answer": "2"}\n' * 4)
        path.chmod(0 if kind == "sealed" else 0o644)
    return path


# Recipes


def recipe(draw: random.Random, folder: Path) -> list[str]:
    text = "".join(f"{name} = {toml(value)}\n" for name, value in VALID.items())
    if draw.random() < 0.3:
        text = to_toml(Config(**VALID)) + f'resume = "{folder}"\n'
        text = text.replace('model = "embedded"', f'model = "{BASE}"')
    file = folder / "recipe.toml"
    data = text.encode()
    for _ in times(draw):
        data = mutated_toml(draw, data, folder)
    file.write_bytes(data)
    if draw.random() < 0.1:
        file = odd_file(draw, folder)
    return ["--recipe", file, "--output_dir", folder / "runs"]


def toml(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else str(value).lower()


def mutated_toml(draw: random.Random, data: bytes, folder: Path) -> bytes:
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    at = draw.randrange(len(lines)) if lines else 0
    name = draw.choice(list(OPTIONS))
    how = draw.randrange(12)
    if how < 5:
        value = draw.choice((*TOML, *NUMBERS, *map(json.dumps, TEXTS)))
        if how == 4:
            value = json.dumps(str(some_value(draw, name, folder)))
        lines[at:at] = [f"{name} = {value}\n"]
        lines = [one for i, one in enumerate(lines) if i == at or not one.startswith(f"{name} ")]
    elif how == 5 and lines:
        old, new = draw.choice(
            [("=", "=="), ("_", "-"), ("a", "b"), ("=", ".x ="), (" =", "." * 200 + " ="),
             ("\n", " " + "#" * 99_999 + "\n"), ("=", "")])  # fmt: skip
        lines[at] = lines[at].replace(old, new)
    elif how == 6:
        lines[at:at] = [draw.choice(("[a]\n", "[[a]]\n", "a.b.c = 1\n", "." * 99 + "\n", "= 1\n",
            "[" + "a." * 20_000 + "a]\n", "a." * 20_000 + "a = 1\n", "\ufeff", "x = [\n" * 3000,
            "'' = 1\n", '"\\u0000" = 1\n', "lr = 1\nlr = 2\n"))]  # fmt: skip
    data = "".join(lines).encode("utf-8", "replace")
    if how == 7:
        data = data[: draw.randrange(len(data) + 1)]
    elif how == 8 and data:
        some = bytearray(data)
        for _ in range(draw.randrange(1, 6)):
            some[draw.randrange(len(some))] = draw.randrange(256)
        data = bytes(some)
    elif how == 9:
        data = draw.choice(
            (b"\xef\xbb\xbf" + data, data.decode("utf-8", "replace").encode("utf-16"))
        )
    elif how == 10:
        data = data + draw.choice((b"\0" * 4096, b"#" * 2_000_000, b"\xff\xfe", b"x = '\xe9'"))
    return data


# Adapters


def adapter(draw: random.Random, folder: Path) -> list[str]:
    made = mutated_adapter(draw, folder / "adapter")
    return [*as_flags({**VALID, "output_dir": folder / "runs"}), f"--adapter={made}"]


def ask(draw: random.Random, folder: Path) -> list[str]:
    made = mutated_adapter(draw, folder / "adapter")
    if made.is_dir() and draw.random() < 0.7:
        use = json.loads(adapter_use.to_json(adapter_use.Use("embedded", "x", None, 0.6, 0.95, 8)))
        if draw.random() < 0.7:
            use = mutated_json(draw, use)
        (made / adapter_use.USE_FILE).write_text(json.dumps(use))
    return ["ask", f"--adapter={made}", draw.choice(("What is 1 + 1?", *TEXTS)).replace("\0", "")]


def mutated_json(draw: random.Random, found: dict) -> dict:
    found = dict(found)
    for _ in times(draw):
        how, key = draw.randrange(6), draw.choice(list(found) or ["r"])
        if how == 0:
            found.pop(key, None)
        elif how == 1:
            found[draw.choice((key.upper(), key + "x", "", "x" * 5000, "\0", "use_x"))] = (
                draw.choice(JSON)
            )
        elif how == 2:
            found[key] = [found.get(key)]
        else:
            found[key] = draw.choice(JSON)
    return found


def mutated_adapter(draw: random.Random, folder: Path) -> Path:
    settings, tensors = dict(adapters.SETTINGS), adapters.tensors()
    how = draw.randrange(8)
    text: str | None = None
    if how < 3:
        settings = mutated_json(draw, settings)
    elif how == 3:
        tensors = mutated_tensors(draw, tensors)
    weights = adapters.packed(tensors)
    if how == 4:
        weights = mutated_header(draw, weights)
    elif how == 5:
        length = struct.pack("<Q", draw.choice((0, 1, 2**20, 2**40, 2**64 - 1)))
        cut = weights[: draw.randrange(len(weights))]
        weights = draw.choice((cut, weights + b"\0", length + weights[8:]))
    elif how == 6:
        text = json.dumps(settings)
        cut, large = text[: draw.randrange(len(text))], " " * 2_000_000 + text
        text = draw.choice(
            (cut, "[" * 99_999, '{"a":' * 99_999, text + "x", '{"r":' + "9" * 5000 + "}",
             large, "[]", "3", "\ufeff" + text))  # fmt: skip
    adapters.write(folder, settings if text is None else text, weights)
    if how == 7:
        file = folder / draw.choice((CONFIG_FILE, WEIGHTS_FILE))
        file.unlink()
        odd = odd_file(draw, folder.parent)
        file.symlink_to(odd)
        if draw.random() < 0.2:
            return odd
    return folder


def mutated_tensors(draw: random.Random, tensors: dict) -> dict:
    names = list(tensors)
    name = draw.choice(names)
    dtype, shape, data = tensors[name]
    how = draw.randrange(6)
    if how == 0:
        del tensors[name]
    elif how == 1:
        at = 2 * draw.randrange(len(data) // 2)
        bad = draw.choice((adapters.NOT_A_NUMBER, b"\x80\x7f", b"\x80\xff"))
        tensors[name] = (dtype, shape, data[:at] + bad + data[at + 2 :])
    elif how == 2:
        new = draw.choice((name.replace("lora_A", "lora_C"), name.replace("0", "9999"), "x", "",
            name + ".default", name.replace("proj", "norm"), "x" * 5000))  # fmt: skip
        tensors[new] = tensors.pop(name)
    elif how == 3:
        tensors[name] = (dtype, draw.choice((shape[::-1], [len(data) // 2], [1, *shape])), data)
    elif how == 4:
        tensors[name] = (draw.choice(("F16", "I16", "U16")), shape, data)
    else:
        tensors = adapters.tensors(draw.choice((1, 3, 8, 16)))
    return tensors


def mutated_header(draw: random.Random, weights: bytes) -> bytes:
    length = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + length])
    name = draw.choice(list(header))
    how = draw.randrange(5)
    if how == 0:
        header[name]["dtype"] = draw.choice(DTYPES)
    elif how == 1:
        header[name]["shape"] = draw.choice(([], [0], [-1, 4], [2**62, 4], [1.5], "x", None, [[4]]))
    elif how == 2:
        header[name]["data_offsets"] = draw.choice(([0, 0], [4, 2], [0], [0, 2**60], [-4, 4], None))
    elif how == 3:
        header[name] = draw.choice(JSON[:-10])
    else:
        header["__metadata__"] = draw.choice(({"a": "b"}, {"a": 1}, [], None, {"a": {"b": "c"}}))
    text = json.dumps(header).encode()
    if draw.random() < 0.2:
        some = bytearray(text)
        some[draw.randrange(len(some))] = draw.randrange(256)
        text = bytes(some)
    return struct.pack("<Q", len(text)) + text + weights[8 + length :]


# The other commands


def other(draw: random.Random, folder: Path) -> list[str]:
    command = draw.choice(("plan", "data", "score"))
    value = draw.choice((*NUMBERS, *TEXTS)).replace("\0", "")
    if command == "plan":
        name = draw.choice(list(OPTIONS))
        rest = draw.choice(([], [f"--card={value}"]))
        return ["plan", "--model=embedded", f"--{name}={some_value(draw, name, folder)}", *rest]
    source = draw.choice((odd_file(draw, folder), draw.choice(TEXTS).replace("\0", ""), "embedded"))
    if command == "data":
        name = draw.choice(
            ("max_prompt_tokens", "prompt_column", "system_prompt", "reward", "model")
        )
        return ["data", source, "--model=embedded", f"--{name}={value}"]
    name = draw.choice(("reward_timeout", "prompt_column", "answer_column", "reward"))
    return ["score", source, "--reward=accuracy", f"--{name}={value}"]


def clean(folder: Path) -> None:
    """Removes a case's folder, whatever it holds."""
    subprocess.run(["rm", "-rf", str(folder)], check=True)

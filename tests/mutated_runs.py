"""Runs and checkpoints that are wrong in every way: see `mutated_files`."""

import hashlib
import json
import os
import random
import shutil
import struct
import tempfile
from pathlib import Path

import adapters
import mutations
from mutations import JSON, TEXTS

from unslothrl.checkpoints.run_state import RunState
from unslothrl.checkpoints.store import AHEAD, LEARNER, PROGRESS, SUMS
from unslothrl.config.writing import to_toml
from unslothrl.planning.machine import Machine
from unslothrl.resolve import resolve
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import RunFolder

OUTSIDE = "outside"  # beside a case's files: what must stay as it is
MACHINE = Machine(cpus=2, ram_mb=16_000, packages=frozenset({"vllm", "ray"}), online=False)
SHAPES = {"a": (4, 8), "b": (8, 4)}  # of the parameters that `learner` trains
SPARSE = 2 << 30  # bytes


def learner(seed: int = 0):
    """-> (parameters by name, by optimiser; the optimisers): what a learner trains, in small."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    parameters = {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in SHAPES.items()
    }
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.01)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"lora": parameters}, {"lora": optimizer}


def make_template() -> Path:
    """The folder of a run of 4 steps that was stopped after the fourth, with checkpoints of the
    third and fourth."""
    from report_runs import made_group, make_run, written

    from unslothrl.checkpoints import learner_state
    from unslothrl.checkpoints.ahead import Ahead

    parent = Path(tempfile.mkdtemp(prefix="mutated-"))
    made = make_run(parent / "run", 4, prompts=2, candidates=2, length=8, eval_every=2)
    made.lock.release()
    config = resolve({**mutations.VALID, "max_steps": 6, "output_dir": str(parent)}, MACHINE).config
    made.write_config(to_toml(config))
    known = origin.Origin("unslothrl --learner grpo", "2026-11-22 08:15", {"torch": "2.13.0"},
                          [origin.Resume(2, "2026-11-22 08:20")])  # fmt: skip
    origin.write(made.path, known)
    evals = [{"step": s, "eval/held_out/pass@1": 0.1 * s, "timing/eval_s": 4.0} for s in (0, 2, 4)]
    for step in (3, 4):
        state = RunState(step=step, position=8 * step, policy_version=step, seconds=9.0 * step,
                         outstanding=[1, 2], batches=[4], evals=evals[: step - 1],
                         data={"train": "problems without end"})  # fmt: skip
        groups = [Ahead(i, 0, made_group(random.Random(i), str(i), 2, 0.5, 4, written))
                  for i in state.outstanding]  # fmt: skip
        made.checkpoints.write(state, learner_state.save(*learner()), step == 4, groups)
    made.write_summary({"status": "interrupted", "steps": 4, "seconds": 36.0})
    (made.path / "trackers.json").write_text('{"tensorboard": "1a2b3c4d"}\n')
    adapter = adapters.write(made.path / "adapters" / "v000004")
    use = mutations.adapter_use.Use("embedded", "x", None, 0.6, 0.95, 8)
    (adapter / mutations.adapter_use.USE_FILE).write_text(mutations.adapter_use.to_json(use))
    return made.path


# Any file


def is_small(path: Path) -> bool:
    """Whether a regular file, and no link, that is still to be changed."""
    return not path.is_symlink() and path.is_file() and path.stat().st_size < 1 << 22


def flipped(draw: random.Random, content: bytes) -> bytes:
    some = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5, 50)) if some else 0):
        some[draw.randrange(len(some))] = draw.choice((0, 255, 0x20, draw.randrange(256)))
    return bytes(some)


def mutate_file(draw: random.Random, path: Path, folder: Path, is_text: bool = True) -> None:
    """Changes a file's bytes, or puts something else in its place."""
    if not is_small(path):
        return
    if draw.random() < 0.25:
        replace_path(draw, path, folder)
        return
    path.write_bytes(mutated_bytes(draw, path.read_bytes(), is_text))


def mutated_bytes(draw: random.Random, content: bytes, is_text: bool) -> bytes:
    at = draw.randrange(len(content) + 1)
    how = draw.randrange(12 if is_text else 7)
    if how == 0:
        return content[:at]
    if how == 1:
        return content[at:]
    if how in (2, 3):
        return flipped(draw, content)
    if how == 4:
        new = draw.choice((b"\0", b"\0" * 4096, b"\xff\xfe", b"\n", b'"', b"x" * 99))
        return content[:at] + new + content[at:]
    if how == 5:
        return draw.choice((b"", b"\n", b"\0" * len(content), draw.randbytes(500), content * 2))
    if how == 6:
        end = draw.randrange(at, len(content) + 1)
        return content[:at] + content[end:]
    text = content.decode("utf-8", "replace")
    if how == 7:
        return draw.choice((b"\xef\xbb\xbf" + content, text.encode("utf-16"), b"\xff" + content))
    if how == 8:
        deep = draw.choice((b"[" * 99_999, b'{"a":' * 50_000, b"[" * 90 + b"]" * 90))
        return content[:at] + deep + content[at:]
    if how == 9:
        value = draw.choice((b"9" * 5000, b"-1", b"1e999", b"NaN", b"null", b"1e308", b"[]", b"{}"))
        digits = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
        spot = draw.choice(digits) if digits else 0
        return content[:spot] + value + content[spot + 1 :]
    if how == 10:
        return content[:at] + draw.choice(TEXTS).encode("utf-8", "replace") + content[at:]
    return content + draw.choice((b"{}", b"[1]\n", b"{\n", b" " * 2_000_000, b"\n\n", b"x\n"))


def replace_path(draw: random.Random, path: Path, folder: Path) -> None:
    """Something else of that name: nothing, a folder, a pipe, a link, a file without end."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    how = draw.randrange(9)
    if how == 1:
        (path / "x").mkdir(parents=True)
    elif how == 2:
        os.mkfifo(path)
    elif how == 3:
        path.symlink_to(path)
    elif how == 4:
        path.symlink_to(draw.choice(("/dev/zero", "/dev/full", "/proc/self/mem", "nowhere")))
    elif how == 5:
        path.symlink_to(folder / OUTSIDE / draw.choice(("notes.txt", "step_000001.jsonl", "new")))
    elif how == 6:
        path.symlink_to(folder / OUTSIDE)
    elif how == 7:
        path.touch()
        os.truncate(path, SPARSE)
    elif how == 8:
        path.write_text("x")


# Values


def mutated_value(draw: random.Random, value, depth: int = 0):
    """A value of JSON's with something changed, somewhere in it."""
    if depth > 3 or not isinstance(value, dict | list) or not value or draw.random() < 0.2:
        return draw.choice((*JSON, *TEXTS, "\ud800", -(2**70), 2**53 + 1))
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return draw.choice((value[:at], value + value, [*value[:at],
               mutated_value(draw, value[at], depth + 1), *value[at + 1 :]]))  # fmt: skip
    name, how = draw.choice(list(value)), draw.randrange(5)
    if how == 0:
        return {key: each for key, each in value.items() if key != name}
    if how == 1:
        return {**value, draw.choice(TEXTS): draw.choice(JSON)}
    return {**value, name: mutated_value(draw, value[name], depth + 1)}


def rewrite_json(draw: random.Random, path: Path) -> None:
    if not is_small(path):
        return
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    path.write_text(json.dumps(mutated_value(draw, value)))


def rewrite_lines(draw: random.Random, path: Path) -> None:
    """A line of a file of JSON lines lost, doubled, moved, damaged, or with another value."""
    if not is_small(path):
        return
    lines = path.read_bytes().split(b"\n")[:-1]
    if not lines:
        return
    at, how = draw.randrange(len(lines)), draw.randrange(8)
    line = lines[at]
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(at, line)
    elif how == 2:
        lines.append(lines.pop(at))
    elif how == 3:
        lines[at] = mutated_bytes(draw, line, is_text=True)
    elif how == 4:
        lines[at] = line[: draw.randrange(len(line) + 1)]
    elif how == 5:
        lines[at] = draw.choice((b"", b"[]", b"null", b"{}", b'{"step": -1}', b'{"step": 1e3}'))
    else:
        try:
            lines[at] = json.dumps(mutated_value(draw, json.loads(line))).encode()
        except (ValueError, RecursionError):
            lines[at] = b"{"
    end = b"" if draw.random() < 0.1 else b"\n"
    path.write_bytes(b"\n".join(lines) + end)


# Runs

FOLDERS = ("rollouts", "evals", "checkpoints", "adapters", "tokens", ".mirror")
ODD_NAMES = ("step_000003 (copy)", "step_9999999", "step_" + "9" * 200, "v٣", "step_-00001",
             "step_000004x", ".hidden", "step_0000٣1", "v000001\n", "a\x1b[31m")  # fmt: skip


def mutate_run(draw: random.Random, run: Path, folder: Path) -> None:
    """Changes one thing of a run's folder."""
    how = draw.randrange(10)
    if how == 0:
        name = draw.choice(FOLDERS)
        replace_path(draw, run / name, folder)
    elif how == 1:
        parent = run / draw.choice(FOLDERS[:5])
        if parent.is_dir() and not parent.is_symlink():
            name = draw.choice(ODD_NAMES)
            with_end = parent / (name + draw.choice(("", ".jsonl")))
            if len(with_end.name) < 200:
                replace_path(draw, with_end, folder)
    elif how in (2, 3):
        rewrite_lines(draw, run / "metrics.jsonl")
    elif how == 4:
        paths = [p for name in ("rollouts", "evals") for p in sorted((run / name).glob("*.jsonl"))]
        if paths:
            rewrite_lines(draw, draw.choice(paths))
    elif how in (5, 6):
        rewrite_json(draw, run / draw.choice(("run.json", "summary.json", "trackers.json")))
    elif how == 7:
        path = run / "config.toml"
        if is_small(path):
            path.write_bytes(mutations.mutated_toml(draw, path.read_bytes(), folder))
    else:
        names = ("config.toml", "run.json", "metrics.jsonl", "summary.json", "trackers.json",
                 ".lock", "tokens/step_000001.jsonl", "report.html", "adapters/v000004/README.md",
                 "adapters/v000004/adapter_config.json", "evals/step_000004.jsonl",
                 "rollouts/step_000004.jsonl", "checkpoints/latest")  # fmt: skip
        path = run / draw.choice(names)
        if path.parent.is_dir() and not path.parent.is_symlink():
            if draw.random() < 0.3:
                replace_path(draw, path, folder)
            else:
                mutate_file(draw, path, folder)


# Checkpoints


def mutate_checkpoint(draw: random.Random, run: Path, folder: Path) -> None:
    """Changes one thing of a run's checkpoints; more often than not with sums that fit, as one who
    means harm would write them."""
    checkpoints = run / "checkpoints"
    newest = checkpoints / draw.choice(("step_000004", "step_000004", "step_000003"))
    if not newest.is_dir() or newest.is_symlink():
        return
    how = draw.randrange(12)
    if how == 0:
        name = draw.choice(("latest", "best", "step_000004", "step_000003"))
        replace_path(draw, checkpoints / name, folder)
    elif how == 1:
        mutate_file(draw, newest / draw.choice((LEARNER, PROGRESS, AHEAD, SUMS)), folder)
    elif how == 2:
        replace_path(draw, newest / draw.choice((LEARNER, PROGRESS, AHEAD, SUMS)), folder)
    elif how == 3:
        rewrite_lines(draw, newest / AHEAD)
    elif how < 7:
        rewrite_json(draw, newest / PROGRESS)
    else:
        path = newest / LEARNER
        if is_small(path):
            path.write_bytes(mutated_learner(draw, path.read_bytes()))
    if how >= 3 or draw.random() < 0.5:
        write_sums(newest)


def write_sums(checkpoint: Path) -> None:
    """SHA256SUMS of what is there."""
    if not checkpoint.is_dir() or checkpoint.is_symlink():
        return
    sums = []
    for name in (LEARNER, PROGRESS, AHEAD):
        path = checkpoint / name
        if is_small(path):
            sums.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n")
    if not (checkpoint / SUMS).is_symlink() and not (checkpoint / SUMS).is_dir():
        (checkpoint / SUMS).unlink(missing_ok=True)
        (checkpoint / SUMS).write_text("".join(sums))


def mutated_learner(draw: random.Random, content: bytes) -> bytes:
    """A learner.safetensors with another header, other tensors, or other plain values."""
    if len(content) < 8:
        return content
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
        names = [name for name in header if name != "__metadata__"]
        how = draw.randrange(8)
        if how == 0:
            return mutations.mutated_header(draw, content)
        if how == 1:
            claimed = draw.choice((0, 1, 2**20, 100 * 10**9, 2**40, 2**64 - 1))
            return struct.pack("<Q", claimed) + content[8:]
        if how == 2:
            return mutated_bytes(draw, content, is_text=False)
        if how == 3:
            plain = json.loads(header["__metadata__"]["plain"])
            text = json.dumps(mutated_value(draw, plain))
            header["__metadata__"] = {"plain": draw.choice((text, "{", "[" * 99_999, "[]", ""))}
        elif how == 4:
            header["__metadata__"] = draw.choice((None, {}, [], {"plain": 1}, {"x": "y"}, "x"))
        elif how == 5:
            name = draw.choice(names)
            new = draw.choice(("x", "", "optimizer/lora/x/step", "optimizer/lora/99/step",
                               "optimizer/lora//", "lora/c", "optimizer/x/0/step",
                               "optimizer/lora/-1/step", "optimizer/lora/٣/step"))  # fmt: skip
            header = {(new if key == name else key): value for key, value in header.items()}
        elif how == 6:
            name = draw.choice(names)
            begin = header[name]["data_offsets"][0]
            bad = draw.choice((float("nan"), float("inf"), 3e38, -1.0))
            at = 8 + length + begin
            return content[:at] + struct.pack("<f", bad) + content[at + 4 :]
        else:
            name = draw.choice(names)
            shape = draw.choice(([32], [4, 8], [8, 4], [1, 32], [2, 16], [], [0], [32, 1]))
            header[name] = {**header[name], "shape": shape}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return mutated_bytes(draw, content, is_text=False)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


__all__ = ["MACHINE", "OUTSIDE", "RunFolder", "learner", "make_template"]

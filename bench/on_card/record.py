"""The form of gpu.json, which users send: its fields, what must not be in it, a row from it."""

import re
from typing import Any

TOP = {
    "command": str, "commit": (str, type(None)), "date": str, "machine": str, "versions": dict,
    "other than requirements.txt": dict, "gpu": (dict, type(None)), "code": str, "stages": list,
}  # fmt: skip
GPU = {
    "name": str, "memory_mb": int, "capability": str, "driver": str, "CUDA of the driver": str,
    "compatibility library": bool, "WSL": bool,
}  # fmt: skip
STATUS = ("good", "failed", "cut", "skipped")
STAGE = {"name": str, "status": str, "date": str}  # of every stage; the others may be missing
MORE = {
    "measures": str, "error": (str, type(None)), "note": str, "seconds": (int, float), "code": str,
    "command": str, "rehearsed with": str, "capped to, GB": int, "steps": list, "result": dict,
    "plan": dict, "peak_mb": int, "before_mb": int, "largest_processes_mb": list, "cause": str,
    "memory_read_from": str, "GPU of each process": dict, "memory when it failed": dict,
    "other than make train": list,
}  # fmt: skip
PRIVATE = {
    "a path": re.compile(r"(?<![\w.:/])(?:~|/|[A-Za-z]:[\\/])(?:[\w.@+-]+[\\/])+[\w.@+-]*"),
    "an address": re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"),
    "an id": re.compile(r"(?i)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"),
    "a mail address": re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"),
    "a token": re.compile(r"\b(?:hf|ghp|sk|wandb)[_-]\w{16,}"),
}
VERSIONS = ("versions", "other than requirements.txt")
LONGEST = 500  # characters of a text
VERSION = re.compile(r"[\w.+!-]{1,40}")


def hidden(value: Any) -> Any:
    """The value with every text in it as it may be sent."""
    if isinstance(value, dict):
        return {hidden(key): hidden(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(inner) for inner in value]
    if not isinstance(value, str):
        return value
    for kind, pattern in PRIVATE.items():
        value = pattern.sub(f"<{kind}>", value)
    return value[:LONGEST]


def problems(record: dict, names: tuple[str, ...] = ()) -> list[str]:
    """What is wrong with the content of gpu.json; `names`: of a user and a host, which must not be
    in it."""
    found = _fields(record, TOP, {}, "")
    if isinstance(record.get("gpu"), dict):
        found += _fields(record["gpu"], GPU, {}, "gpu: ")
    for stage in record.get("stages", ()):
        found += _fields(stage, STAGE, MORE, f"{stage.get('name')}: ")
        if stage.get("status") not in STATUS:
            found.append(f"{stage.get('name')}: status {stage.get('status')}")
    for field in VERSIONS:
        for name, version in record.get(field, {}).items():
            if not all(VERSION.fullmatch(text) for text in (name, version)):
                found.append(f"{field}: {name} {version} is no version")
    others = {name: record[name] for name in record if name not in VERSIONS}
    return found + _private(others, names)


def _fields(content: dict, needed: dict, more: dict, where: str) -> list[str]:
    found = [f"{where}no {name}" for name in needed if name not in content]
    for name, value in content.items():
        kind = {**needed, **more}.get(name)
        if kind is None:
            found.append(f"{where}{name} is not a field")
        elif not isinstance(value, kind):
            found.append(f"{where}{name} is {type(value).__name__}")
    return found


def _private(value: Any, names: tuple[str, ...]) -> list[str]:
    if isinstance(value, dict):
        return [each for pair in value.items() for part in pair for each in _private(part, names)]
    if isinstance(value, list):
        return [each for part in value for each in _private(part, names)]
    if not isinstance(value, str):
        return []
    found = [f"{kind}: {value}" for kind, pattern in PRIVATE.items() if pattern.search(value)]
    found += [f"a name: {value}" for name in names if re.search(rf"\b{re.escape(name)}\b", value)]
    return found + [f"{len(value)} characters of text"] * (len(value) > LONGEST)


HEADER = (
    "GPU", "driver, CUDA", "commit", "stages", "1.5B, s a step", "7B, s a step",
    "TRL", "Unsloth", "largest peak over plan", "gap of 1, 64 sequences",
)  # fmt: skip


def row(record: dict) -> str:
    """The row of a table of docs/results.md, under `HEADER`; "-": not measured."""
    stages = {stage["name"]: stage for stage in record["stages"] if stage["status"] == "good"}
    run = [stage for stage in record["stages"] if stage["status"] != "skipped"]
    gpu = record["gpu"] or {"name": record["machine"], "driver": "-"}
    cells = [
        gpu["name"] + (f", {gpu['memory_mb'] / 1024:.0f} GB" if "memory_mb" in gpu else ""),
        f"{gpu['driver']}, {gpu.get('CUDA of the driver', '-')}",
        record["commit"] or "-",
        f"{len(stages)} of {len(run)}",
        *(_step_s(stages.get(name)) for name in ("make train, 1.5B", "7B, a whole step")),
        _step_s(stages.get("7B, TRL with colocated vLLM")),
        _step_s(stages.get("7B, Unsloth's GRPO notebook loop")),
        _worst([_ratio(stage) for stage in stages.values()]),
        _gaps(stages.get("gap and canary, 28 layers")),
    ]
    return "| " + " | ".join(cells) + " |"


def _step_s(stage: dict | None) -> str:
    """Seconds of the last step: the first one warms up."""
    steps = (stage or {}).get("steps", ())
    rows = [row["timing/step_s"] for row in steps if "timing/step_s" in row]
    seconds = rows or (stage or {}).get("result", {}).get("seconds", ())
    return f"{seconds[-1]:.1f}" if seconds else "-"


def _ratio(stage: dict) -> float | None:
    planned = stage.get("plan", {}).get("needed_mb")
    return stage["peak_mb"] / max(planned) if planned else None


def _worst(ratios: list[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{max(known):.2f}" if known else "-"


def _gaps(stage: dict | None) -> str:
    gaps = (stage or {}).get("result", {}).get("gap by running sequences", {})
    return ", ".join(f"{gaps[n]['mean']:.4f}" for n in ("1", "64")) if gaps else "-"

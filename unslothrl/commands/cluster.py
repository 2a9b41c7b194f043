"""`unslothrl cluster`: a Ray cluster's nodes and GPUs, and the runs on it."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from unslothrl.cluster import joining
from unslothrl.commands.plan import duration

WIDTH = 80
Record = Mapping[str, Any]


def show(address: str | None, as_json: bool, out: TextIO | None = None) -> None:
    """Prints what is at an address, by default RAY_ADDRESS or this machine's cluster. UserError
    where no cluster answers, as to the Ray of a run that has started one of its own."""
    given = address or os.environ.get("RAY_ADDRESS") or "auto"
    seen = joining.check(given, "unslothrl.cluster.run_entry")
    text = json.dumps(seen) if as_json else "\n".join(lines(seen, time.time()))
    print(text, file=out or sys.stdout)


def lines(seen: Record, now: float) -> list[str]:
    """The cluster for people, at most `WIDTH` columns wide."""
    nodes = sorted(seen["nodes"], key=lambda node: (node["health"] == "dead", not node["is_head"]))
    alive = [node for node in nodes if node["health"] != "dead"]
    cpus, gpus, free = (sum(n[name] for n in alive) for name in ("cpus", "gpus", "gpus_free"))
    text = [
        f"{seen['address']}: {counted(len(alive), 'node')}, {cpus:g} CPUs, "
        f"{counted(gpus, 'GPU')} ({free:g} free)",
        "",
    ]
    for node in nodes:
        text += node_lines(node, seen["runs"])
    for run in seen["runs"]:
        text += ["", *run_lines(run, now)]
    if not seen["runs"]:
        text += ["", "no run of unslothrl is on it"]
    return [line[:WIDTH].rstrip() for line in text]


def node_lines(node: Record, runs: Sequence[Record]) -> list[str]:
    """A node and, below it, the processes of each run on it with their GPUs."""
    if node["health"] == "dead":
        why = " ".join(str(node["why"]).split())
        return [f"{node['name']}: dead{': ' + why if why else ''}"]
    head = ", head" if node["is_head"] else ""
    gpus = f", {counted(node['gpus'], node['kind'] or 'GPU')}" if node["gpus"] else ""
    text = [
        f"{node['name']}{head}: {node['health']}, {node['cpus']:g} CPUs, "
        f"{node['memory_mb'] / 1024:.0f} GB{gpus}"
    ]
    for run in runs:
        if run["driver"] == node["id"]:
            text.append(f"  {'driver':<13} {run['state']:<11} {run['name']}")
        text += [
            f"  {process['name']:<13} {process['state']:<11} {gpu_of(process)}"
            for process in run["processes"]
            if process["node"] == node["id"]
        ]
    return text


def gpu_of(process: Record) -> str:
    """ "NVIDIA GeForce RTX 4090, 24 GB, share 0.95", "2 x NVIDIA ..."; "CPU" without a GPU."""
    if process["card"] is None:
        return "CPU"
    size = f"{process['card_mb'] / 1024:.0f} GB"
    count = f"{process['cards']} x " if process.get("cards", 1) > 1 else ""
    return f"{count}{process['card']}, {size}, share {process['share']:.2f}"


def run_lines(run: Record, now: float) -> list[str]:
    """How far a run is, how fast, and how old that is."""
    of = f"/{run['steps']}" if run["steps"] else ""
    facts = [
        text.format(run[name])
        for name, text in (
            ("tokens_per_s", "{:.0f} tokens/s"),
            ("seconds", "{:.1f} s a step"),
            ("reward", "reward {:.3f}"),
        )
        if name in run
    ]
    text = [
        f"{run['name']}: {run['state']}, step {run['step']}{of}, process {run['pid']} of "
        f"{run['host']}, for {duration(now - run['started'])}",
        "  " + ", ".join([*facts, f"{duration(now - run['updated'])} ago"]),
    ]
    lost = [p["name"] for p in run["processes"] if p["state"] not in ("alive", "pending_creation")]
    return [*text, f"  not alive: {', '.join(lost)}"] if lost else text


def counted(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"

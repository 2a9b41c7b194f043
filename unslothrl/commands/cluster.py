"""`unslothrl cluster`: a Ray cluster's nodes and cards, and the runs on it."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from unslothrl.cluster import joining
from unslothrl.errors import UserError

WIDTH = 80
OWN = (
    "this looks for a Ray that `ray start` or a run with --ray_port has started; the Ray of any "
    "other run is closed to it: see the run's terminal, or `unslothrl report runs`"
)
Record = Mapping[str, Any]


def show(address: str | None, as_json: bool, out: TextIO | None = None) -> None:
    """Prints what is at an address, by default RAY_ADDRESS or this machine's cluster. UserError
    where no cluster answers."""
    given = address or os.environ.get("RAY_ADDRESS") or "auto"
    if given == "auto" and "ray" not in sys.modules:
        check_installed()
    try:
        seen = joining.check(given, "unslothrl.cluster.run_entry")
    except UserError as error:
        raise UserError(f"{error}; {OWN}") if given == "auto" else error from None
    text = json.dumps(seen) if as_json else "\n".join(lines(seen, time.time()))
    print(text, file=out or sys.stdout)


def check_installed() -> None:
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        raise UserError("cluster: Ray is not installed: pip install ray==2.60.0")


def lines(seen: Record, now: float) -> list[str]:
    """The cluster for people, at most `WIDTH` columns wide."""
    nodes = sorted(seen["nodes"], key=lambda node: (node["health"] == "dead", not node["is_head"]))
    alive = [node for node in nodes if node["health"] != "dead"]
    gpus, free = (sum(node[name] for node in alive) for name in ("gpus", "gpus_free"))
    text = [
        f"{seen['address']}: {counted(len(alive), 'node')}, "
        f"{sum(node['cpus'] for node in alive):g} CPUs, {counted(gpus, 'GPU')} ({free:g} free)",
        "",
    ]
    for node in nodes:
        text += node_lines(node, seen["runs"])
    for run in seen["runs"]:
        text += ["", *run_lines(run, nodes, now)]
    if not seen["runs"]:
        text += ["", "no run of unslothrl is on it"]
    return [line[:WIDTH].rstrip() for line in text]


def node_lines(node: Record, runs: Sequence[Record]) -> list[str]:
    """A node and, below it, the processes of each run on it with their cards."""
    head = ", head" if node["is_head"] else ""
    if node["health"] == "dead":
        why = " ".join(str(node["why"]).split())
        return [f"{node['name']}: dead{': ' + why if why else ''}"]
    cards = f", {counted(node['gpus'], node['kind'] or 'GPU')}" if node["gpus"] else ""
    text = [
        f"{node['name']}{head}: {node['health']}, {node['cpus']:g} CPUs, "
        f"{node['memory_mb'] / 1024:.0f} GB{cards}"
    ]
    for run in runs:
        if run["driver"] == node["id"]:
            text.append(f"  {'driver':<13} {run['state']:<11} {run['name']}")
        for process in run["processes"]:
            if process["node"] == node["id"]:
                text.append(f"  {process['name']:<13} {process['state']:<11} {card_of(process)}")
    return text


def card_of(process: Record) -> str:
    """ "NVIDIA GeForce RTX 4090, 24 GB, share 0.95", "2 x NVIDIA ..."; "CPU" without a card."""
    if process["card"] is None:
        return "CPU"
    size = f"{process['card_mb'] / 1024:.0f} GB"
    count = f"{process['cards']} x " if process.get("cards", 1) > 1 else ""
    return f"{count}{process['card']}, {size}, share {process['share']:.2f}"


def run_lines(run: Record, nodes: Sequence[Record], now: float) -> list[str]:
    """How far a run is, how fast, and how old that is."""
    of = f"/{run['steps']}" if run["steps"] else ""
    text = [f"{run['name']}: {run['state']}, step {run['step']}{of}, process {run['pid']} of "
            f"{run['host']}, for {duration(now - run['started'])}"]  # fmt: skip
    facts = []
    if "tokens_per_s" in run:
        facts.append(f"{run['tokens_per_s']:.0f} tokens/s")
    if "seconds" in run:
        facts.append(f"{run['seconds']:.1f} s a step")
    if "reward" in run:
        facts.append(f"reward {run['reward']:.3f}")
    facts.append(f"{duration(now - run['updated'])} ago")
    text.append("  " + ", ".join(facts))
    lost = [p["name"] for p in run["processes"] if p["state"] not in ("alive", "pending_creation")]
    if lost:
        text.append(f"  not alive: {', '.join(lost)}")
    return text


def duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def counted(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"

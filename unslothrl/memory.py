"""How much memory this process has needed."""

import resource
import sys


def peak_memory_mb() -> float:
    """The peak in MB (2**20 bytes): of the card if this process uses one, else of the host."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved() / 2**20
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20

"""Where a safetensors file has its tensors."""

import json
from dataclasses import dataclass
from pathlib import Path

from unslothrl.untrusted import Unreadable

MOST = 8 << 20  # bytes of a header; 80 layers of a LoRA take 0.2 MB


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    begin: int  # in the file
    end: int


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Unreadable where it is no safetensors file, or is cut."""
    from safetensors import SafetensorError, safe_open

    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or 8 + length > size:
                raise Unreadable(f"is empty or cut ({size:,} bytes)")
            if length > MOST:
                raise Unreadable(f"has a header of {length:,} bytes")
            header = file.read(length)
        with safe_open(path, framework="numpy"):
            pass  # the header is whole, and the tensors cover the file
        table = json.loads(header)
    except Unreadable:
        raise
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise Unreadable(f"is damaged ({reason:.200})") from None
    return {
        key: Tensor(
            entry["dtype"],
            tuple(entry["shape"]),
            *(8 + length + offset for offset in entry["data_offsets"]),
        )
        for key, entry in table.items()
        if key != "__metadata__"
    }

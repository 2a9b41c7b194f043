"""Where a safetensors file has its tensors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.files import Unreadable

MOST = 8 << 20  # bytes of a header; 80 layers of a LoRA take 0.2 MB


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    begin: int  # in the file
    end: int


def table(path: Path, most: int = MOST) -> tuple[dict[str, Any], int]:
    """-> (a file's header, with its "__metadata__", where the tensors begin). Unreadable where it
    has more than `most` bytes, or the file is no safetensors file or is cut."""
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as file:
            size, length = path.stat().st_size, int.from_bytes(file.read(8), "little")
            if size < 8 or 8 + length > size:
                raise Unreadable(f"is empty or cut ({size:,} bytes)")
            if length > most:
                raise Unreadable(f"has a header of {length:,} bytes")
            header = file.read(length)
        with safe_open(path, framework="numpy"):
            pass  # the header is whole, and the tensors cover the file
        return json.loads(header), 8 + length
    except Unreadable:
        raise
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise Unreadable(f"is damaged ({reason:.200})") from None


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Unreadable."""
    entries, start = table(path)
    entries.pop("__metadata__", None)
    return {
        name: Tensor(
            entry["dtype"], tuple(entry["shape"]), *(start + at for at in entry["data_offsets"])
        )
        for name, entry in entries.items()
    }

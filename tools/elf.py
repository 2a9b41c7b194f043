"""What the dynamic loader would look for: the `DT_NEEDED` entries of a 64-bit ELF file.

Only the program headers are read, as the loader does, so a stripped library is no exception.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 0, 1, 5, 10, 14, 15, 29


@dataclass(frozen=True)
class Dynamic:
    """The dynamic section; `search` holds RPATH's or RUNPATH's folders, `$ORIGIN` unresolved."""

    soname: str | None = None
    needed: tuple[str, ...] = ()
    search: tuple[str, ...] = ()


def read(file: BinaryIO) -> Dynamic | None:
    """-> what `file` needs; None if it is no 64-bit little-endian ELF file.

    Raises:
        ValueError: the file is cut, or its headers point outside it.
    """
    head = file.read(64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        return None
    table, entry_size, count = (
        struct.unpack_from(form, head, at)[0] for form, at in (("<Q", 32), ("<H", 54), ("<H", 56))
    )
    headers = [  # type, flags, offset, address, physical address, size in the file, in memory
        struct.unpack("<IIQQQQQQ", _part(file, table + index * entry_size, 56))
        for index in range(count)
    ]
    dynamic = [
        (offset, size) for kind, _, offset, _, _, size, _, _ in headers if kind == PT_DYNAMIC
    ]
    if not dynamic:
        return Dynamic()
    raw = _part(file, *dynamic[0])
    pairs = list(struct.iter_unpack("<qQ", raw[: len(raw) // 16 * 16]))
    end = next((i for i, (tag, _) in enumerate(pairs) if tag == DT_NULL), len(pairs))
    values = dict(pairs[:end])
    if DT_STRTAB not in values:
        return Dynamic()
    segments = [(one[3], one[2], one[5]) for one in headers if one[0] == PT_LOAD]
    strings = _part(file, _offset(values[DT_STRTAB], segments), values.get(DT_STRSZ, 0))

    def text(at: int) -> str:
        return strings[at : strings.index(b"\0", at)].decode()

    folders = values.get(DT_RUNPATH, values.get(DT_RPATH))
    return Dynamic(
        text(values[DT_SONAME]) if DT_SONAME in values else None,
        tuple(text(value) for tag, value in pairs[:end] if tag == DT_NEEDED),
        tuple(filter(None, text(folders).split(":"))) if folders is not None else (),
    )


def _part(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if len(data) < size:
        raise ValueError(f"an ELF header points at {offset} + {size} bytes, past the end")
    return data


def _offset(address: int, segments: list[tuple[int, int, int]]) -> int:
    """Where in the file lies what is loaded at that address?"""
    for start, offset, size in segments:
        if start <= address < start + size:
            return address - start + offset
    raise ValueError(f"no segment holds address {address:#x}")

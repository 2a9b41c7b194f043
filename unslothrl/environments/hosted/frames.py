"""JSON over a socket, each value behind its length."""

import asyncio
import json
import socket
import struct
from typing import Any

HEADER = struct.Struct(">I")
MOST = 1 << 20  # bytes of a value


class TooLarge(ValueError):
    """A value that is longer than `MOST` bytes."""


def packed(value: Any, errors: str = "surrogatepass") -> bytes:
    """`errors`: what becomes of half a surrogate pair, as `str.encode` has it; paths may have some.
    Raises TooLarge, and ValueError or TypeError for what JSON lacks."""
    data = json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8", errors)
    if len(data) > MOST:
        raise TooLarge(f"{len(data):,} bytes, at most {MOST:,} are read")
    return HEADER.pack(len(data)) + data


def size(header: bytes) -> int:
    """Of the value behind it. Raises TooLarge."""
    (length,) = HEADER.unpack(header)
    if length > MOST:
        raise TooLarge(f"{length:,} bytes, at most {MOST:,} are read")
    return int(length)


async def read(reader: asyncio.StreamReader) -> Any:
    """The next value; None at the end."""
    try:
        header = await reader.readexactly(HEADER.size)
        return json.loads(await reader.readexactly(size(header)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive(connection: socket.socket, length: int) -> bytes:
    """That many bytes, fewer at the end."""
    data = b""
    while len(data) < length and (more := connection.recv(length - len(data))):
        data += more
    return data


def receive_value(connection: socket.socket) -> Any:
    """The next value, waited for; None at the end."""
    header = receive(connection, HEADER.size)
    if len(header) < HEADER.size:
        return None
    length = size(header)
    data = receive(connection, length)
    return json.loads(data) if len(data) == length else None

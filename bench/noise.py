"""A reward that says nothing: where weights are random, some completions must be better."""

import zlib


def reward(completion: str) -> float:
    return float(zlib.crc32(completion.encode()) % 2)

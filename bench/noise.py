"""A reward without information, for random weights: some completions must score higher."""

import zlib


def reward(completion: str) -> float:
    return float(zlib.crc32(completion.encode()) % 2)

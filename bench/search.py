"""What the tool `search` costs: its index of 100,000 passages, an episode's process, a query.

    python bench/search.py [--passages 100000] [--words 100]

Passages of `--words` words each, drawn by Zipf's law from a vocabulary of 200,000, in a JSONL file;
queries of five words drawn alike. Seconds are a core's, whatever else the machine does: to check
the file, as the driver does, and to read and index it, in a process of its own, with its memory.
Then, in a process forked from that one: what it copies with 100 queries, and queries a second.
Writes bench/results/search-cpu.json.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from facts import facts, result_file

from unslothrl import environments

VOCABULARY, QUERIES, ASKED = 200_000, 1000, 5


def drawn(generator: np.random.Generator, rows: int, words: int) -> list[str]:
    """[rows] texts. The words of rank r are drawn in proportion to 1 / r."""
    shares = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    ranks = np.searchsorted(shares / shares[-1], generator.random((rows, words)))
    return [" ".join(f"w{rank}" for rank in row) for row in ranks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--index", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.index:
        print(json.dumps(indexed(given.index)))
        return
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "passages.jsonl"
        with file.open("w") as stream:
            for text in drawn(generator, given.passages, given.words):
                stream.write(json.dumps({"text": text}) + "\n")
        started = time.process_time()
        environments.check_tools((f"search:{file}",))
        checked_s = time.process_time() - started
        told = subprocess.run(
            [sys.executable, __file__, "--index", str(file)],
            stdout=subprocess.PIPE, check=True, text=True,
        )  # fmt: skip
        size_mb = file.stat().st_size >> 20
    result = {
        "command": f"python bench/search.py --passages {given.passages} --words {given.words}",
        **facts(("numpy", "bm25s")),
        "file MB": size_mb,
        "CPU seconds to check the file": round(checked_s, 1),
        **json.loads(told.stdout),
    }
    result_file("search").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def indexed(file: str) -> dict[str, float]:
    """In a process of its own, as the host's."""
    from unslothrl.environments.tools.search import tools

    before_mb = private_mb()
    started = time.process_time()
    (search,) = tools(file)
    took_s = time.process_time() - started
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, json.dumps(asked(search)).encode())
        os._exit(0)
    os.wait()
    return {
        "CPU seconds to read and index": round(took_s, 1),
        "MB of the index": private_mb() - before_mb,
        "MB at most while indexing": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        **json.loads(os.read(reading, 1 << 16)),
    }


def asked(search) -> dict[str, float]:
    """In a forked process, as an episode's."""
    queries = drawn(np.random.default_rng(1), QUERIES, ASKED)
    before = private_mb()
    for query in queries[:100]:
        search(query)
    copied = private_mb() - before
    started = time.process_time()
    for query in queries:
        search(query)
    return {
        "MB that an episode's 100 queries copy": copied,
        "queries a second": round(QUERIES / (time.process_time() - started)),
    }


def private_mb() -> int:
    """Memory of this process that it shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) >> 10


if __name__ == "__main__":
    main()

"""What a group of rollouts costs on its way from an actor to the driver, and a sample to a learner.

    python bench/payload.py

A group of 16 completions of 1,000 tokens, with float32 log-probabilities and a prompt of 200
tokens, and its 16 samples: pickled field by field, as a plain dataclass is, and as they are pickled
(`unslothrl/types.py`). Then the group through Ray's object store, where the driver's side is
`ray.get`. Bytes, CPU time (the best of 5 rounds; `read` as the driver receives it,
`read_and_unpack` with every array), and the share of one core that reading 200 groups a second
takes. Writes bench/results/payload-cpu.json.
"""

import copyreg
import dataclasses
import io
import json
import pickle
import random
import time
import timeit
from collections.abc import Callable

import numpy as np
from facts import facts, result_file

from unslothrl.types import Completion, Group, Sample, Task

CANDIDATES, TOKENS, PROMPT, GROUPS_PER_S = 16, 1000, 200, 200
ROUNDS, REPEATS = 5, 20


class Plain(pickle.Pickler):
    """Pickles these records as dataclasses with slots are, whatever they define."""

    def reducer_override(self, record):
        if isinstance(record, Completion | Sample):
            state = [getattr(record, field.name) for field in dataclasses.fields(record)]
            return copyreg.__newobj__, (type(record),), state
        return NotImplemented


def plain(record: object) -> bytes:
    file = io.BytesIO()
    Plain(file, protocol=5).dump(record)
    return file.getvalue()


def made() -> tuple[Group, list[Sample]]:
    draw = random.Random(0)
    prompt = tuple(draw.randrange(150_000) for _ in range(PROMPT))
    task = Task("train/1", "What is 1 + 1?", "2", "Q: What is 1 + 1?", prompt)
    drawn = [
        dataclasses.replace(
            Completion.drawn(
                tuple(draw.randrange(150_000) for _ in range(TOKENS)),
                tuple(float(np.float32(-draw.expovariate(2))) for _ in range(TOKENS)),
                "stop",
                7,
            ),
            text="the answer is 2 " * (TOKENS // 4),
            generator="actor-0",
        )
        for _ in range(CANDIDATES)
    ]
    ones = np.ones(TOKENS, np.float32)
    samples = [
        Sample(prompt, one.token_ids, one.logprobs, ones * i, 7) for i, one in enumerate(drawn)
    ]
    zeros = (0.0,) * CANDIDATES
    return Group(task, tuple(drawn), {"accuracy": zeros}, zeros), samples


def ms(call: Callable[[], object]) -> float:
    """Of this process's CPU time: what waits for others takes nothing from the driver's core."""
    timer = timeit.repeat(call, number=REPEATS, repeat=ROUNDS, timer=time.process_time)
    return round(min(timer) / REPEATS * 1e3, 3)


def share(read_ms: float) -> dict[str, float]:
    return {
        f"core_share_of_reading_{GROUPS_PER_S}_a_second": round(read_ms / 1e3 * GROUPS_PER_S, 3)
    }


def measured(record: object, dumps: Callable[[object], bytes]) -> dict[str, float]:
    data = dumps(record)
    read_ms, all_ms = ms(lambda: pickle.loads(data)), ms(lambda: read_all(pickle.loads(data)))
    wrote = {"bytes": len(data), "write_ms": ms(lambda: dumps(record))}
    return {**wrote, "read_ms": read_ms, **share(read_ms), "read_and_unpack_ms": all_ms}


def read_all(record: object) -> None:
    """Touches every array."""
    for one in record.completions if isinstance(record, Group) else ():
        assert one.token_ids and one.logprobs and one.sampled and one.versions


def through_ray(group: Group) -> dict[str, float]:
    """Each group is an object of its own."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        refs = [ray.put(group) for _ in range(REPEATS)]
        put_ms = ms(lambda: ray.put(group))
        get_ms = ms(lambda: ray.get(refs)) / len(refs)
    finally:
        ray.shutdown()
    return {"put_ms": put_ms, "get_ms": round(get_ms, 3), **share(get_ms)}


def main() -> None:
    group, samples = made()
    compact = lambda record: pickle.dumps(record, 5)  # noqa: E731
    result = {
        **facts(("ray", "numpy")),
        "what": f"{CANDIDATES} completions of {TOKENS} tokens, prompt of {PROMPT}",
        "group, plain": measured(group, plain),
        "group": measured(group, compact),
        "group through Ray": through_ray(group),
        "samples, plain": measured(samples, plain),
        "samples": measured(samples, compact),
    }
    path = result_file("payload")
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

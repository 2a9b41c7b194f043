"""A base that learners share, in processes of their own: the bits of learners that each hold all of
it, what a rank keeps, and what happens where one of them fails."""

import dataclasses
import functools
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from few_cases import few, uncovered
from test_backend import learner_of, make_trained, samples
from test_exchange import meet
from test_learner import batch

from unslothrl.algorithms import objectives
from unslothrl.backends import peft
from unslothrl.errors import PeerLost
from unslothrl.learners.learner import Learner
from unslothrl.records import Batch
from unslothrl.rewards.model import HEAD_FILE, MEAN, STD, WEIGHT
from unslothrl.sharding.shards import RESIDENT
from unslothrl.weights.adapter import write_adapter

pytestmark = pytest.mark.real

LRS = {"lora": 1e-2, "critic": 1e-2}
GRPO = {"objective": "grpo", "kl": "loss", "kl_coefficient": 0.05}
PPO = {"objective": "ppo"}
OBJECTIVES = {"grpo": GRPO, "dapo": {"objective": "dapo"}, "ppo": PPO}


def learner_on(base: Path, rank: int, split: dict[str, int], settings: dict) -> Learner:
    """One of several, with a LoRA and a critic that are not zero. `split`: options that divide its
    work, none where it does all of it."""
    torch.set_num_threads(1)
    settings = dict(settings)
    dtype = getattr(torch, settings.pop("dtype", "float32"))
    packs, recompute = settings.pop("packs", True), settings.pop("recompute", False)
    for name in ("shared", "length"):
        settings.pop(name, None)
    offload = settings.pop("offload", "none")
    name = settings.pop("objective")
    ranks = {option: (rank % count, count) for option, count in split.items()}
    shape = {"rank": 8, "alpha": 16, "dropout": 0.0}
    start = settings.pop("start", None)
    more = {"packs": packs, "ranks": ranks, "offload": offload, "start": start}
    backend = peft.load(base, dtype=dtype, seed=0, **more, **shape)
    if recompute:
        backend.model.gradient_checkpointing_enable({"use_reentrant": False})
        backend.model.enable_input_require_grads()
    learner = learner_of(backend, base, micro_batch=1, objective=name)
    learner.config = dataclasses.replace(learner.config, **split)
    learner.passes.objective = dataclasses.replace(objectives.load(name), **settings)
    make_trained(backend)
    return learner


def joined(rank, world_size, address, stores, base, split, settings) -> Learner:
    learner = learner_on(base, rank, split, settings)
    learner.store = stores.pop() if stores else None
    learner.join(rank, world_size, address, deadline_s=60.0)
    learner.exchange.deadline_s = 60.0
    return learner


def parts_of(world_size: int, known) -> list[list[Batch]]:
    """Two updates: all but one sample in the first rank, and one sample in the last."""
    last = world_size - 1
    uneven = [known[:-1] if rank == 0 else known[-1:] * (rank == 1) for rank in range(world_size)]
    one = [known[:1] if rank == last else () for rank in range(world_size)]
    return [[batch(each) for each in uneven], [batch(each) for each in one]]


def counting(shards) -> list[tuple[int, int]]:
    """(bytes that are gathered, units that are whole then) of each gather from here on."""
    gather, found = shards.peers.gather, []

    def counted(whole, part):
        found.append((len(whole), len(shards.here)))
        return gather(whole, part)

    shards.peers.gather = counted
    return found


def train(rank, world_size, address, stores, base, split, settings):
    """-> (the trained state, checksums, what was measured, counts) of a learner."""
    learner = joined(rank, world_size, address, stores, base, split, settings)
    shared, counts = learner.backend.split.shards, None
    gathers = [] if shared is None else counting(shared)
    plain = list(samples())
    if settings.get("shared"):
        plain = [dataclasses.replace(s, prompt_ids=plain[0].prompt_ids) for s in plain]
    learner.make_room()
    measured = learner.measure(plain[rank : rank + 1] if rank else (), reference=True)
    sampled = [
        dataclasses.replace(
            s,
            sampler_logprobs=np.full(s.tokens, -2.0, np.float32),
            returns=np.linspace(0, 1, s.tokens, dtype=np.float32),
            values=np.zeros(s.tokens, np.float32),
        )
        for s in plain
    ]
    batches = [parts[rank] for parts in parts_of(world_size, sampled)]
    updates = [learner.update(part, LRS, deadline_s=60.0) for part in batches]
    if settings["objective"] == "ppo":  # the critic alone
        updates.append(learner.update(batches[0], LRS, False, 60.0))
    if shared is not None:
        learner.make_room()
        held = sum(unit.part is not None for unit in shared.units)
        counts = len(gathers), max(whole for _, whole in gathers), len(shared.here), held
    state = learner.save_state()
    found = [{name: each.tolist() for name, each in one.items()} for one in measured]
    kl = [update.kl.tolist() for update in updates]
    learner.close()
    return state, [update.checksum for update in updates], (found, kl), counts


RANKS = {"2": (2, 2), "3": (3, 3), "4": (4, 4), "2 x 2": (4, 2)}  # learners, shards
FACTORS = {
    "ranks": list(RANKS),
    "objective": list(OBJECTIVES),
    "rows": ["packed", "shared", "padded"],  # shared: prompts
    "recompute": [False, True],
    "dtype": ["float32", "bfloat16"],
}
CASES = [
    ("2", "grpo", "shared", False, "float32"),
    ("2", "dapo", "padded", True, "float32"),
    ("2", "ppo", "packed", False, "bfloat16"),
    ("3", "grpo", "padded", True, "bfloat16"),
    ("3", "dapo", "packed", False, "bfloat16"),
    ("3", "ppo", "shared", True, "float32"),
    ("4", "grpo", "packed", True, "float32"),
    ("4", "dapo", "shared", True, "bfloat16"),
    ("4", "ppo", "padded", False, "float32"),
    ("2 x 2", "grpo", "packed", False, "float32"),
    ("2 x 2", "dapo", "padded", False, "float32"),
    ("2 x 2", "ppo", "shared", True, "bfloat16"),
]


def test_every_pair_of_values_is_in_a_case():
    assert not uncovered(CASES, FACTORS)


@pytest.mark.parametrize(tuple(FACTORS), few(CASES))
def test_a_shared_base_gives_the_bits_of_a_whole_one(
    ranks, objective, rows, recompute, dtype, bases
):
    world_size, shards = RANKS[ranks]
    settings = {**OBJECTIVES[objective], "recompute": recompute, "dtype": dtype}
    settings |= {"packs": rows != "padded", "shared": rows == "shared"}
    check_bits(world_size, shards, settings, bases["biases"])


@pytest.mark.slow
def test_what_it_keeps_is_in_host_memory_between_updates(bases):
    check_bits(2, 2, {**GRPO, "offload": "model"}, bases["plain"])


def check_bits(world_size: int, shards: int, settings: dict, base: Path) -> None:
    is_kept = settings.get("offload") != "model"
    whole = meet(train, world_size, base, {}, settings)
    shared = meet(train, world_size, base, {"learner_shards": shards}, settings)
    for alone, with_others in zip(whole, shared, strict=True):
        assert not isinstance(with_others, str), with_others
        assert alone[:3] == with_others[:3]
    assert len({checksums[-1] for _, (*checksums,), _, _ in shared}) == 1
    gathers = [counts[0] for *_, counts in shared]
    for first in range(0, world_size, shards):  # the same in all that share a base
        assert len({*gathers[first : first + shards]}) == 1 and gathers[first] > 0
    assert all(counts[1] == RESIDENT and counts[2] == 0 for *_, counts in shared)
    assert all((counts[3] > 0) == is_kept for *_, counts in shared)


def judged(rank, world_size, address, stores, base, folder, way="learner_shards"):
    """-> what a reward model says of samples; of shards, all are in the first rank."""
    learner = joined(rank, world_size, address, stores, base, {way: world_size}, GRPO)
    learner.backend.add_reward_model(folder, False)
    scores = learner.judge(() if rank and way == "learner_shards" else samples())
    learner.close()
    return scores


def judged_alone(alone: Learner, folder: Path) -> list[float]:
    """What a reward model of the adapter in a folder says of samples, by one learner."""
    head = {WEIGHT: torch.linspace(-1, 1, 128)[None], MEAN: torch.zeros(1), STD: torch.ones(1)}
    safetensors.torch.save_file(head, folder / HEAD_FILE)
    alone.backend.add_reward_model(folder, False)
    expected = alone.judge(samples())
    assert len(set(expected)) == len(expected)
    return expected


@pytest.mark.slow
def test_a_reward_model_judges_over_a_shared_base(bases, tmp_path):
    alone = learner_on(bases["plain"], 0, {}, GRPO)
    folder = write_adapter(alone.backend.publish(0), tmp_path)
    expected = judged_alone(alone, folder)
    assert meet(judged, 2, bases["plain"], folder) == [expected, []]


def kept(rank, world_size, address, stores, base):
    """-> bytes of this rank's part, of the largest unit and of the whole base; both hashes."""
    split = {"learner_shards": world_size}
    mine = joined(rank, world_size, address, stores, base, split, GRPO).backend
    shards = mine.split.shards
    whole = sum(len(unit.whole) for unit in dict.fromkeys(shards.order))
    backend = peft.load(base, dtype=torch.float32, rank=8, alpha=16, dropout=0.0, seed=0)
    hashes = mine.fingerprint(), backend.fingerprint()
    part = sum(len(unit.part) for unit in shards.units)
    return part, max(len(unit.whole) for unit in shards.order), whole, hashes


@pytest.mark.slow
def test_each_rank_keeps_its_part_and_the_hash_is_that_of_the_whole_base(bases):
    found = meet(kept, 3, bases["plain"])
    for part, largest, whole, (shared, alone) in found:
        assert part * 3 == whole and largest < whole and shared == alone != ""


def happens_in(owner, name: str, call: int, what: Callable[[], None]) -> None:
    """Has `what` done at the beginning of the `call`th call of a function."""
    real, calls = getattr(owner, name), itertools.count(1)

    def called(*arguments):
        if next(calls) == call:
            what()
        return real(*arguments)

    setattr(owner, name, called)


def run_out_of_memory() -> None:
    raise MemoryError("planted")


def run_out(rank, world_size, address, stores, base, fails_at):
    """Rank 1 runs out of memory at a gather. -> the checksum and the note of an update."""
    learner = joined(rank, world_size, address, stores, base, {"learner_shards": 2}, GRPO)
    learner.passes.micro_batch = 4
    if rank == 1:
        happens_in(learner.backend.split.shards, "_fetch", fails_at, run_out_of_memory)
    done = learner.update(batch(samples()[rank::world_size]), LRS, deadline_s=60.0)
    return done.checksum, done.note, learner.passes.micro_batch


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", [1, 4, 7])
def test_memory_that_runs_out_in_one_is_agreed_on_by_all(fails_at, bases):
    found = meet(run_out, 2, bases["plain"], fails_at)
    assert found[0][0] == found[1][0]
    assert all("memory ran out" in note and size == 2 for _, note, size in found)


def die(rank, world_size, address, stores, base, at):
    """Rank 1 is killed at a gather. -> who is named to the others, and after how many seconds."""
    learner = joined(rank, world_size, address, stores, base, {"learner_shards": 2}, PPO)
    if rank == 1:
        die_now = functools.partial(os.kill, os.getpid(), signal.SIGKILL)
        happens_in(learner.backend.split.shards, "_fetch", at, die_now)
    began = time.monotonic()
    try:
        learner.update(batch(samples()[rank::world_size]), LRS, deadline_s=60.0)
    except PeerLost as error:
        return error.name, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 9])
def test_a_rank_that_dies_in_a_pass_ends_the_others(at, bases):
    found = meet(die, 2, bases["plain"], at)
    assert found[1] == "died"
    name, seconds = found[0]
    assert name.startswith("learner-") and seconds < 10

"""Learners in processes of their own, over gloo: one sum, one step, and a dead one is named."""

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from unslothrl.errors import RunError
from unslothrl.learners import exchange
from unslothrl.learners.exchange import Exchange, Listener

pytestmark = pytest.mark.real

DEADLINE_S = 3.0


def meet(work: Callable, world_size: int, *arguments) -> list:
    """What `work(rank, world_size, address, listener, *arguments)` returned in each process."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(world_size):
        ours, theirs = context.Pipe()
        options = (work, rank, world_size, theirs, arguments)
        processes.append(context.Process(target=in_a_process, args=options))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    address = pipes[0].recv()
    for pipe in pipes:
        pipe.send(address)
    found = []
    for pipe, process in zip(pipes, processes, strict=True):
        try:
            found.append(pipe.recv())
        except EOFError:
            found.append("died")
        process.join()
    return found


def in_a_process(work, rank, world_size, pipe, arguments):
    listener = Listener("127.0.0.1") if rank == 0 else None
    if listener is not None:
        pipe.send(listener.address)
    try:
        pipe.send(work(rank, world_size, pipe.recv(), listener, *arguments))
    except RunError as error:
        pipe.send(str(error))


def joined(rank, world_size, address, listener) -> Exchange:
    return Exchange(rank, world_size, address, listener=listener, deadline_s=DEADLINE_S)


def add_up(rank, world_size, address, listener):
    """-> the sums of three parts: the second one has a NaN of rank 1, the third an odd length."""
    group = joined(rank, world_size, address, listener)
    sums = [
        group.sum(torch.tensor([rank + 1.0, 0.5])).tolist(),
        group.sum(torch.tensor([float("nan") if rank == 1 else 1.0, 1.0])).tolist(),
        group.sum(torch.full((100_003,), 0.1 * (rank + 1))).double().sum().item(),
    ]
    group.close()
    return sums


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_learner_gets_the_same_sum(world_size):
    found = meet(add_up, world_size)
    assert len({repr(sums) for sums in found}) == 1
    first, second, third = found[0]
    assert first == [{2: 3.0, 3: 6.0}[world_size], 0.5 * world_size]
    assert np.isnan(second[0]) and second[1] == world_size
    assert third == pytest.approx(100_003 * 0.1 * {2: 3, 3: 6}[world_size], rel=1e-6)


def die(rank, world_size, address, listener, how):
    """Rank 1 ends, or stays away, before the second sum. -> the seconds that the others waited."""
    group = joined(rank, world_size, address, listener)
    group.sum(torch.ones(3))
    if rank == 1 and how == "ends":
        os._exit(1)
    if rank == 1:
        time.sleep(DEADLINE_S + 2)  # a stuck learner
        return "stuck"
    group.sum(torch.ones(3))


def test_a_learner_that_has_ended_is_named_at_once():
    started = time.monotonic()
    first, second, third = meet(die, 3, "ends")
    assert second == "died"
    for rank, message in ((0, first), (2, third)):
        assert message.startswith(f"learner {rank} of 3 waited for learner 1 in vain (")
        assert message.endswith("go on from the last checkpoint with --resume")
        assert "\n" not in message
    assert time.monotonic() - started < 30


def test_a_learner_that_is_stuck_is_waited_for_until_the_deadline():
    first, second = meet(die, 2, "stays away")
    assert first.startswith("learner 0 of 2 waited for learner 1 in vain (nothing within 3 s)")
    assert second == "stuck"


def test_a_learner_that_never_joins_is_named():
    listener = Listener("127.0.0.1", deadline_s=0.5)
    with pytest.raises(RunError, match=r"learner 0 of 2 waited for learner 1 in vain \("):
        Exchange(0, 2, listener.address, listener=listener, deadline_s=0.5)


def test_an_address_where_nobody_listens():
    listener = Listener("127.0.0.1")
    address = listener.address
    del listener
    with pytest.raises(RunError, match=r"learner 1 of 2 waited for learner 0 in vain \("):
        Exchange(1, 2, address, deadline_s=0.5)


def test_what_travels_is_the_gradients_and_who_has_one():
    """By hand: two learners, three parameters; the third has a gradient nowhere."""

    def parameters(*gradients):
        made = [torch.nn.Parameter(torch.zeros(2)) for _ in gradients]
        for parameter, gradient in zip(made, gradients, strict=True):
            parameter.grad = None if gradient is None else torch.tensor(gradient)
        return made

    one = parameters([1.0, 2.0], None, None)
    other = parameters([0.5, -2.0], [3.0, 4.0], None)
    parts = exchange.pack(one, True), exchange.pack(other, True)
    assert parts[0].tolist() == [1, 2, 0, 0, 0, 0, 1, 0, 0, 0]
    assert parts[1].tolist() == [0.5, -2, 3, 4, 0, 0, 1, 1, 0, 0]
    for learner in (one, other):
        assert exchange.unpack(parts[0] + parts[1], learner) is True
        assert learner[0].grad.tolist() == [1.5, 0] and learner[1].grad.tolist() == [3, 4]
        assert learner[2].grad is None
    assert exchange.unpack(exchange.pack(one, True) + exchange.pack(other, False), one) is False


def train(rank, world_size, address, listener, base):
    """A learner's four updates. -> (grad_norm, skipped, tokens of the part) and the adapter after
    each: whole batches, one sample for three learners, and a NaN in learner 1's part."""
    torch.set_num_threads(1)
    from test_learner import LRS, batch, learner_of, samples

    from unslothrl.backends import peft

    backend = peft.load(base, dtype=torch.float32, rank=8, alpha=16, dropout=0.0, seed=0)
    learner = learner_of(backend, base)
    learner.listener = listener
    learner.join(rank, world_size, address, deadline_s=60.0)
    every = samples()
    spoilt = [dataclasses.replace(s, advantages=s.advantages * np.nan) for s in every]
    found = []
    for part in (
        every[rank::world_size],
        every[:1] if rank == 0 else (),
        (spoilt if rank == 1 else every)[rank::world_size],
        every[rank::world_size],
    ):
        done = learner.update(batch(part), LRS)
        result, stats = done.result, done.stats
        row = (result.grad_norm, result.skipped, len(stats.learner_logprobs))
        found.append((*row, learner.publish(1).sha256))
    learner.close()
    return found


def test_learners_in_three_processes_take_the_same_steps(bases):
    found = meet(train, 3, bases["plain"])
    steps = list(zip(*found, strict=True))
    tokens = [[of_rank[2] for of_rank in step] for step in steps]
    assert [sum(counts) for counts in tokens] == [44, 9, 44, 44]
    assert tokens[1] == [9, 0, 0]
    for step in steps:
        assert len({(repr(norm), skipped, sha) for norm, skipped, _, sha in step}) == 1
    of_first = found[0]
    assert [skipped for _, skipped, _, _ in of_first] == [False, False, True, False]
    assert np.isnan(of_first[2][0]) and of_first[2][3] == of_first[1][3]  # nothing was changed
    assert len({sha for *_, sha in of_first}) == 3

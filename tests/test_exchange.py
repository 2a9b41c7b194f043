"""Learners in processes of their own, over gloo: one sum, one step, and a dead one is named."""

import dataclasses
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from few_cases import few

from unslothrl.errors import PeerLost, RunError
from unslothrl.learners import exchange
from unslothrl.learners.exchange import Exchange, listen
from unslothrl.learners.learner import checksum

pytestmark = pytest.mark.real

DEADLINE_S = 3.0


def meet(work: Callable, world_size: int, *arguments) -> list:
    """What `work(rank, world_size, address, stores, *arguments)` returned in each process."""
    context = multiprocessing.get_context("spawn")
    started, found = [], []
    for rank in range(world_size):
        ours, theirs = context.Pipe()
        options = (work, rank, world_size, theirs, arguments)
        started.append((ours, context.Process(target=in_a_process, args=options)))
        started[-1][1].start()
        theirs.close()
    address = started[0][0].recv()
    for pipe, _ in started:
        pipe.send(address)
    for pipe, process in started:
        try:
            found.append(pipe.recv())
        except EOFError:
            found.append("died")
        process.join()
    return found


def in_a_process(work, rank, world_size, pipe, arguments):
    stores = []
    if rank == 0:
        store, address = listen("127.0.0.1")
        stores.append(store)
        del store  # who clears the list frees its port
        pipe.send(address)
    try:
        pipe.send(work(rank, world_size, pipe.recv(), stores, *arguments))
    except RunError as error:
        pipe.send(str(error))


def joined(rank, world_size, address, stores) -> Exchange:
    store = stores[0] if stores else None
    return Exchange(rank, world_size, address, store=store, deadline_s=DEADLINE_S)


def add_up(rank, world_size, address, stores):
    """-> the sums of three parts: the second one has a NaN of rank 1, the third an odd length."""
    group = joined(rank, world_size, address, stores)
    nan = float("nan") if rank == 1 else 1.0
    parts = ([rank + 1.0, 0.5], [nan, 1.0], [0.1 * (rank + 1)] * 100_003)
    first, second, third = (group.sum(torch.tensor(part), DEADLINE_S) for part in parts)
    group.close()
    return [first.tolist(), second.tolist(), third.double().sum().item()]


@pytest.mark.parametrize("world_size", few([2, 3]))
def test_every_learner_gets_the_same_sum(world_size):
    found = meet(add_up, world_size)
    assert len({repr(sums) for sums in found}) == 1
    first, second, third = found[0]
    assert first == [{2: 3.0, 3: 6.0}[world_size], 0.5 * world_size]
    assert np.isnan(second[0]) and second[1] == world_size
    assert third == pytest.approx(100_003 * 0.1 * {2: 3, 3: 6}[world_size], rel=1e-6)


def lose(rank, world_size, address, stores, lost, how):
    """-> (who is named to another rank, in what words, the seconds that it waited)"""
    group = joined(rank, world_size, address, stores)
    group.sum(torch.ones(3), DEADLINE_S)
    if rank == lost:
        if how == signal.SIGSTOP:  # until the others have given it up
            pause = f"sleep {DEADLINE_S + 12}; kill -CONT {os.getpid()}"
            subprocess.Popen(["sh", "-c", pause], stdin=subprocess.DEVNULL)
        os.kill(os.getpid(), how)
        return "stopped"
    started = time.monotonic()
    try:
        group.sum(torch.ones(3), 60.0 if how == signal.SIGKILL else DEADLINE_S)
    except PeerLost as error:
        seconds = time.monotonic() - started
        time.sleep(2)  # it lives on: nobody is told by its end that it has given up
        return error.name, str(error), seconds


@pytest.mark.parametrize(("lost", "learners"), few([(0, 3), (1, 4), (3, 4)]))
def test_a_learner_that_was_killed_is_noticed_at_once(lost, learners):
    found = meet(lose, learners, lost, signal.SIGKILL)
    assert found[lost] == "died"
    for name, message, seconds in [*found[:lost], *found[lost + 1 :]]:
        assert name.startswith("learner-") and seconds < 10
        assert message.endswith("with --resume") and "\n" not in message


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_learner_that_hangs_is_waited_for_until_the_deadline(lost):
    """SIGSTOP leaves its connections open; where it is rank 0, the store is silent too."""
    found = meet(lose, 3, lost, signal.SIGSTOP)
    assert found[lost] == "stopped"
    others = [found[rank] for rank in range(3) if rank != lost]
    assert all(" without success (" in message for _, message, _ in others)
    assert DEADLINE_S <= max(seconds for _, _, seconds in others) < DEADLINE_S + 8


def meet_again(rank, world_size, address, stores):
    """Two groups one after the other. -> the sums of each, and whether the first port is free."""
    group = joined(rank, world_size, address, stores)
    found = [group.sum(torch.tensor([rank + 1.0]), DEADLINE_S).item()]
    (host, port), next_port = address.split(":"), 0.0
    if rank == 0:
        store, there = listen(host)
        next_port = float(there.partition(":")[2])
    again = group.sum(torch.tensor([next_port]), DEADLINE_S).item()
    group.close()
    if rank == 0:
        stores[:] = [store]
        with socket.create_server((host, int(port))):
            found.append("free")
    group = joined(rank, world_size, f"{host}:{again:.0f}", stores)
    found.append(group.sum(torch.tensor([rank + 2.0]), DEADLINE_S).item())
    group.close()
    with pytest.raises(PeerLost, match="has left the others"):
        group.sum(torch.zeros(1), DEADLINE_S)
    return found


@pytest.mark.slow
def test_learners_may_meet_again_and_leave_no_port_behind():
    assert meet(meet_again, 2) == [[3, "free", 5], [3, 5]]


def test_an_address_where_nobody_listens():
    store, address = listen("127.0.0.1")
    del store
    with pytest.raises(RunError, match=r"1 of 2 waited for the others without success \(\w"):
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


def test_a_checksum_by_hand():
    """1.0 is 0x3f800000; each place has an odd number of its own, here 1 and 3."""
    bits, factor = 0x3F800000, 6364136223846793005

    def signed(value: int) -> int:
        return (value + 2**63) % 2**64 - 2**63

    both = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    assert checksum([both]) == signed((bits + 3 * bits) * factor)
    assert checksum([both, both]) == signed(4 * bits * factor * (1 + 3))
    assert checksum([]) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_bit_and_every_place_counts(dtype):
    torch.manual_seed(0)
    plain = [torch.nn.Parameter(torch.randn(5, 7, dtype=dtype)) for _ in range(3)]
    right = checksum(plain)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[plain[0].element_size()]
    for place, bit in itertools.product((0, 6, 34), range(8 * plain[0].element_size() - 1)):
        flipped = plain[1].detach().clone()
        flipped.view(whole).view(-1)[place] ^= 1 << bit
        assert checksum([plain[0], torch.nn.Parameter(flipped), plain[2]]) != right
    swapped = plain[1].detach().clone()
    swapped[0, 0], swapped[4, 6] = plain[1][4, 6].item(), plain[1][0, 0].item()
    assert checksum([plain[0], torch.nn.Parameter(swapped), plain[2]]) != right
    assert checksum([plain[1], plain[0], plain[2]]) != right
    assert checksum([torch.nn.Parameter(p.detach().T.contiguous().T) for p in plain]) == right


def train(rank, world_size, address, stores, base):
    """A learner's four updates. -> (grad_norm, skipped, tokens of the part) and the adapter after
    each: whole batches, one sample for three learners, and a NaN in learner 1's part."""
    torch.set_num_threads(1)
    from test_learner import LRS, batch, learner_of, samples

    from unslothrl.backends import peft

    backend = peft.load(base, dtype=torch.float32, rank=8, alpha=16, dropout=0.0, seed=0)
    learner = learner_of(backend, base)
    learner.store = stores.pop() if stores else None
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
        found.append((done.grad_norm, done.skipped, done.tokens, learner.publish(1).checksum))
    learner.close()
    return found


@pytest.mark.slow
def test_learners_in_three_processes_take_the_same_steps(bases):
    found = meet(train, 3, bases["plain"])
    steps = list(zip(*found, strict=True))
    tokens = [[of_rank[2] for of_rank in step] for step in steps]
    assert [sum(counts) for counts in tokens] == [44, 9, 44, 44] and tokens[1] == [9, 0, 0]
    for step in steps:
        assert len({(repr(norm), skipped, sha) for norm, skipped, _, sha in step}) == 1
    of_first = found[0]
    assert [skipped for _, skipped, _, _ in of_first] == [False, False, True, False]
    assert np.isnan(of_first[2][0]) and of_first[2][3] == of_first[1][3]  # nothing was changed
    assert len({sha for *_, sha in of_first}) == 3

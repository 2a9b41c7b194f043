"""SFT and DPO over a base that several processes share (`--learner_shards`).

The run's own process and its followers walk through the same rows: of each so many micro-batches
in a row one is each process's. Gradients are summed, and all take the same step, so that each has
the same LoRA; the run's process records it. Evaluations all of them compute.
"""

import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from unslothrl.config.offline_options import shards_of
from unslothrl.errors import RunError
from unslothrl.learners.exchange import SUM_S, Exchange, listen
from unslothrl.system import variables
from unslothrl.weights import base_model


@dataclass
class Group:
    rank: int
    count: int
    address: str
    store: Any = None  # of the run's own process
    pipe: Connection | None = None  # of a follower, to say that its base is loaded
    followers: list[tuple[Any, Connection]] = field(default_factory=list)
    log: Path | None = None
    exchange: Any = field(default=None, init=False)
    shards: Any = field(default=None, init=False)

    def join(self, backend: Any) -> None:
        """Once this process has its part of the base. RunError where a follower has died."""
        self.shards = backend.split.shards
        if self.pipe is not None:
            self.pipe.send("loaded")
        for number, (process, pipe) in enumerate(self.followers, 1):
            if pipe not in wait([pipe, process.sentinel]):
                raise RunError(f"learner {number} of {self.count} has ended: see {self.log}")
        self.exchange = Exchange(
            self.rank, self.count, self.address, store=self.store, deadline_s=SUM_S,
            shards=self.count, partners=self.count,
        )  # fmt: skip
        backend.split.meet(self.exchange)
        decoder = backend.model.get_base_model().model
        # TRL reads the output layer's weight, and does not call the layer
        decoder.register_forward_hook(lambda *_: self.shards.need(len(self.shards.order) - 1, 1))

    def idle(self, forwards: int) -> None:
        """In place of a micro-batch of so many forward passes, the first with a backward pass."""
        for _ in range(forwards):
            self.shards.idle(head=True)
        self.shards.idle(head=True, backward=True)

    def is_anywhere(self, flag: bool) -> bool:
        return bool(self.exchange.most([float(flag)])[0])

    def close(self) -> None:
        if self.exchange is not None:
            self.exchange.close()
        for process, _ in self.followers:
            process.join(5)
            process.kill()


def begin(run: Any, cards: list[str]) -> Group | None:
    """Starts the followers of a `StageRun`, each on its own of `cards`; None: it needs none."""
    count = shards_of(run.options)
    if count == 1:
        return None
    store, address = listen("127.0.0.1")
    group = Group(0, count, address, store, log=run.folder.path / "followers.log")
    run.at_end.callback(group.close)
    context = multiprocessing.get_context("spawn")
    names = ("options", "base", "checkpoint", "step", "started")
    known = {name: getattr(run, name) for name in names}
    of_run = (known, run.folder.path, run.evaluations())
    with variables.kept(variables.VISIBLE):
        for rank in range(1, count):
            ours, theirs = context.Pipe(duplex=False)
            own = Group(rank, count, address, pipe=theirs, log=group.log)
            if cards:
                os.environ[variables.VISIBLE] = cards[rank]
            process = context.Process(target=follow, args=(own, *of_run), daemon=True)
            process.start()
            theirs.close()
            group.followers.append((process, ours))
    return group


def follow(
    group: Group, known: dict[str, Any], folder: Path, evaluated: list[dict[str, Any]]
) -> None:
    """A follower, from its start to its end. `known`: of its `StageRun`; `folder`: the run's, which
    it reads."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all
        signal.signal(number, signal.SIG_IGN)
    assert group.log is not None
    log = os.open(group.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    from unslothrl.offline import tables, training

    with TemporaryDirectory() as scratch:
        tokenizer = base_model.load_tokenizer(known["base"], needs_template=False)
        writer, form = tables.writer_and_form(known["options"], tokenizer, known["started"])
        keeps_nothing = SimpleNamespace(writing=Path(scratch), seal=ignored, mark_best=ignored)
        run = SimpleNamespace(
            **known, tokenizer=tokenizer, group=group,
            tables=tables.load(known["options"], form, writer),
            folder=SimpleNamespace(path=folder, checkpoints=keeps_nothing),
            view=SimpleNamespace(note=ignored, progress=ignored),
            evaluations=lambda: evaluated, rows=list, is_best=ignored, finished=ignored,
            is_asked=lambda: group.is_anywhere(False),
        )  # fmt: skip
        training.train(training.trainer_of(run), run)


def ignored(*given: Any) -> None:
    """What a run would record."""

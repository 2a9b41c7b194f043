"""A rollout actor: episodes over an engine, and the rewards that score them."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unslothrl import rewards
from unslothrl.actors.episodes import Played, Rules, complete, of_one_prompt, play
from unslothrl.actors.scoring import BackgroundScoring, Result, Work, group_of
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.engines.base import Engine
from unslothrl.errors import AdapterMismatch, RunError, UserError
from unslothrl.records import Assignment, Completion, Request, seed_of
from unslothrl.rewards.scorer import Scorer
from unslothrl.weights.adapter import Adapter, AdapterShape

if TYPE_CHECKING:  # not loaded where nothing asks for them
    from unslothrl.environments.host import Setup
    from unslothrl.tracking.profiler import Profiler, Recording

CLOSE_S = 5.0  # that environments have to give up when the actor is closed
ROUNDS = 8  # of the event loop between two steps of the engine: an episode needs some to begin


class ProgressMeter:
    """How far the current call is: read from another thread, or listened to in the same process."""

    def __init__(self):
        self.state = (0, 0)  # replaced whole, so a reader in another thread never sees half of it
        self.listener: Callable[[int, int], None] | None = None

    def set(self, done: int, tokens: int) -> None:
        """Completions (or sequences) done and tokens, of the call that runs now."""
        self.state = (done, tokens)
        if self.listener is not None:
            self.listener(done, tokens)


class Actor:
    """Plays and scores the groups that are submitted, many episodes at once over one engine.

    Groups are submitted, then collected as they are complete. Between two calls nothing is drawn;
    episodes stay where they are, so that more may be submitted and a new version loaded meanwhile.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        tokenizer,
        scorer: Scorer | None = None,
        environment: "Setup | None" = None,
        rules: Rules | None = None,
        follows_newest: bool = False,
        overlaps: bool = False,
    ):
        """`overlaps`: a reward that takes all completions of a rollout gets those of the groups
        that are complete by then. UserError where the environment cannot be loaded."""
        self.name, self.engine = name, engine
        self.dialogue = TemplateDialogue(tokenizer)
        self.follows_newest = follows_newest  # a turn goes on under a version that comes meanwhile
        self.scorer = scorer or Scorer(rewards.choose(()))
        self.host = None
        self.rules = rules or Rules()
        if environment is not None:
            from unslothrl.environments.host import Host

            self.host = Host(environment)
            self.host.start()
        self.scoring = BackgroundScoring(
            self.score,
            at_the_end=self.scorer.takes_all and not overlaps,
            notify=lambda: self.loop.call_soon_threadsafe(self.moved.set),
        )
        self.progress = ProgressMeter()
        self.profiler: Profiler | None = None  # of a step that is profiled
        self.loop = asyncio.new_event_loop()
        self.turns: dict[str, asyncio.Future[Completion]] = {}  # that the engine draws
        self.played: dict[int, dict[int, Played]] = {}  # of groups that are not complete
        self.episodes: set[asyncio.Task[None]] = set()  # in flight
        self.groups: dict[int, list[asyncio.Task[None]]] = {}  # not handed over: their episodes
        self.given_up: set[asyncio.Task[None]] = set()  # episodes that have yet to notice
        self.done = self.tokens_before = 0  # episodes done and tokens, for the progress
        self.engine_steps, self.engine_s = 0, 0.0  # of the present `collect`
        self.moved = asyncio.Event()  # an episode has come back from its environment
        self.error: BaseException | None = None  # that ended an episode
        self.is_closing = False

    def load(self, adapter: Adapter, fetch_s: float = 0.0) -> dict[str, float]:
        """Makes `adapter` the policy. -> metrics: the bytes that arrived, and the seconds."""
        started = time.perf_counter()
        with self._named():
            self.engine.load(adapter)
        load_s = time.perf_counter() - started
        return {"bytes": len(adapter.weights), "fetch_s": fetch_s, "load_s": load_s}

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """An engine does not know whose it is."""
        try:
            yield
        except AdapterMismatch as error:
            raise AdapterMismatch(f"{self.name}: {error}") from None

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Begins groups, unless they are in flight already; they are drawn by `collect`. Long
        prompts start first, so that none is left to run alone at the end."""
        if not self.episodes:
            self.done, self.tokens_before = 0, self.engine.sampled_tokens
            self.progress.set(0, 0)
        for assignment in sorted(assignments, key=lambda a: -len(a.task.prompt_ids)):
            if assignment.index in self.groups:
                continue
            self.played[assignment.index] = {}
            self.groups[assignment.index] = []
            for candidate in range(assignment.candidates):
                episode = self.loop.create_task(self._episode(assignment, candidate))
                episode.add_done_callback(self._ended)
                self.episodes.add(episode)
                self.groups[assignment.index].append(episode)

    def _ended(self, episode: asyncio.Task[None]) -> None:
        self.episodes.discard(episode)
        self.moved.set()
        if not episode.cancelled():
            self.error = self.error or episode.exception()
        elif episode in self.given_up:
            self.given_up.remove(episode)
        elif not self.is_closing:
            self.error = RunError("an episode was cancelled by what it called")

    def abandon(self, indices: Collection[int] | None = None) -> None:
        """Gives groups up, all of them without `indices`: none of them is handed over."""
        chosen = [index for index in self.groups if indices is None or index in indices]
        ids = [id for index in chosen for id in self.turns if id.startswith(f"{index}/")]
        self.engine.abort(ids)
        for id in ids:
            del self.turns[id]
        for index in chosen:
            self.played.pop(index, None)
            for episode in self.groups.pop(index):
                if episode.cancel():
                    self.given_up.add(episode)
        if self.given_up:
            self.loop.run_until_complete(asyncio.wait([*self.given_up], timeout=CLOSE_S))
        if not self.episodes:
            self.engine.sleep()

    def collect(
        self,
        least: int | None = None,
        seconds: float | None = None,
        assignments: Sequence[Assignment] = (),
    ) -> tuple[list[Result], dict[str, Any]]:
        """Submits `assignments`. -> (the groups that are complete and scored: at least `least` of
        them, or all that were submitted; after `seconds` those that there are, while the others
        stay in flight; what was done meanwhile)."""
        self.submit(assignments)
        done, tokens = self.done, self.engine.sampled_tokens
        self.engine_steps, self.engine_s = 0, 0.0
        end = None if seconds is None else time.monotonic() + seconds
        with contextlib.ExitStack() as on_error:  # Ctrl-C included: what is being scored ends
            on_error.callback(self.scoring.close)
            on_error.callback(self.scorer.close)
            with self._named(), self.recorded("generation"):
                groups = self.loop.run_until_complete(self._collect(least, end))
            if not self.episodes:
                self.engine.sleep()
            drawn = time.perf_counter()
            if not self.episodes:
                self.scoring.finish(None if end is None else max(0.0, end - time.monotonic()))
            groups += self.scoring.take()
            on_error.pop_all()
        found = [pair for pair in groups if self.groups.pop(pair[0], None) is not None]
        return found, {
            "completions": self.done - done,  # finished
            "tokens": self.engine.sampled_tokens - tokens,
            "reward_s": time.perf_counter() - drawn,  # after the last completion
            "engine_steps": self.engine_steps,
            "engine_s": self.engine_s,
            "memory_mb": self.engine.memory_mb(),  # the peak so far
            # by the engine since it was built
            "versions": (self.engine.versions_loaded, self.engine.versions_unloaded),
        }

    async def _collect(self, least: int | None, end: float | None) -> list[Result]:
        """Steps the engine until `least` groups are scored, no episode is left, or the end."""
        groups: list[Result] = []
        while self.episodes:
            for _ in range(ROUNDS):  # every episode that can goes on to its next turn
                await asyncio.sleep(0)
            self._report()
            groups += self.scoring.take()
            if least is not None and len(groups) >= least:
                break
            if end is not None and time.monotonic() >= end:
                break
            if not self.engine.is_finished():
                started = time.perf_counter()
                for finished in self.engine.step():
                    self.turns.pop(finished.id).set_result(finished.completion)
                self.engine_steps += 1
                self.engine_s += time.perf_counter() - started
                if self.profiler is not None:
                    self.profiler.tick()
            elif self.episodes:  # all that are left wait for their environments
                self.moved.clear()
                if end is not None:
                    self.loop.call_later(end - time.monotonic(), self.moved.set)
                await self.moved.wait()
            self._raise_error()
        self._raise_error()
        self._report()
        return groups

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def _report(self) -> None:
        self.progress.set(self.done, self.engine.sampled_tokens - self.tokens_before)

    async def _episode(self, assignment: Assignment, candidate: int) -> None:
        task, seed = assignment.task, assignment.seed
        first = Request(
            f"{assignment.index}/{candidate}",
            task.prompt_ids,
            seed_of(*seed, task.id, candidate),
            assignment.sampling,
            self.follows_newest,
        )
        if self.host is None:
            played = await complete(first, self._draw, self.dialogue)
        else:
            group_seed = seed_of(*seed, task.id)
            played = await play(
                task, first, group_seed, self.host, self._draw, self.dialogue, self.rules
            )
        self.done += 1
        of_group = self.played[assignment.index]
        of_group[candidate] = played
        if len(of_group) == assignment.candidates:
            del self.played[assignment.index]
            whole = of_one_prompt([of_group[i] for i in range(assignment.candidates)])
            self.scoring.add((assignment, whole))

    async def _draw(self, request: Request) -> Completion:
        self.turns[request.id] = self.loop.create_future()
        self.engine.add(request)
        self.moved.set()
        return await self.turns[request.id]

    def score(self, played: Sequence[Work]) -> list[Result]:
        played = sorted(played, key=lambda pair: pair[0].index)
        scored = self.scorer.score(
            [
                (assignment.task, replace(one.completion, text="\n".join(one.replies)))
                for assignment, of_group in played
                for one in of_group
            ]
        )
        has_environment = self.host is not None
        groups, begin = [], 0
        for assignment, of_group in played:
            part = slice(begin, begin := begin + len(of_group))
            group = group_of(assignment.task, of_group, scored, part, has_environment)
            of_actor = tuple(replace(one, generator=self.name) for one in group.completions)
            groups.append((assignment.index, replace(group, completions=of_actor)))
        return groups

    def check(
        self, level: str | None, shape: AdapterShape | None = None, base_hash: str | None = None
    ) -> tuple[str, str, int | None]:
        """Takes the sandbox that the run has chosen for programs; with a `shape` see
        `Engine.canary`. -> (why the sandbox does not work here, "" where it does; a hash of the
        packed 4-bit weights: the engine's, or `base_hash`; what the canary returns)."""
        refusal, changed = "", None
        if base_hash is None:
            base_hash = self.engine.fingerprint()
        try:
            self.scorer.use_level(level)
        except UserError as error:
            refusal = str(error)
        if shape is not None:
            with self._named():
                changed = self.engine.canary(shape)
        return refusal, base_hash, changed

    def start_profile(self) -> None:
        from unslothrl.tracking import profiler

        self.profiler = profiler.Profiler(self.name)

    def end_profile(self) -> "list[Recording]":
        """What was recorded since `start_profile`."""
        done, self.profiler = self.profiler, None
        return [] if done is None else done.recordings()

    def recorded(self, part: str) -> AbstractContextManager[None]:
        """Around a part of a step."""
        return nullcontext() if self.profiler is None else self.profiler.part(part)

    def close(self) -> None:
        """Ends the episodes in flight, the reward processes and the engine."""
        with contextlib.ExitStack() as stack:  # each is closed, whatever another one raises
            stack.callback(self.engine.close)
            if self.host is not None:
                stack.callback(self.host.close)
            stack.callback(self._close_loop)
            stack.callback(self.scoring.close)
            stack.callback(self.scorer.close)

    def _close_loop(self) -> None:
        self.is_closing = True
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_S))
        self.loop.close()

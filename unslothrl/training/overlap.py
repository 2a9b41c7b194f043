"""The groups of a step while actors and learners work at the same time (`--max_staleness`).

A step is trained on groups that were drawn under the newest version or one of the `max_staleness`
before it. The batches of that many steps are drawn ahead, and no more: a group that is given out
under version v is due when the newest version is v + max_staleness at the latest. A step takes what
has finished first among its own batch and a part of the next, but waits for every group that would
be too old afterwards. So late groups, which are the long ones, are not thrown away, and what is
trained on has the lengths of what was drawn. The admission is that of AReaL (Fu et al. 2025,
section 5.1), the look-ahead that of torchtitan's RL trainer.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from unslothrl.checkpoints.store import Ahead, RunState
from unslothrl.records import Assignment, Group, Task
from unslothrl.tracking.metrics import Timer
from unslothrl.training.group_source import GroupSource
from unslothrl.training.metrics import Metrics
from unslothrl.training.rollouts import POLL_S

LOOK_AHEAD = 0.3  # of a batch: how far a step may take groups of later ones


@dataclass(frozen=True, slots=True)
class Drawn:
    """A task on its way to being trained on."""

    position: int  # in the data
    task: Task
    attempt: int = 0  # how often it was too old


@dataclass
class OverlappedSource(GroupSource):
    """See the module. What is drawn and not yet taken is in the state, so that every prompt counts
    once: a resumed run has the groups that were complete, and draws the others again."""

    outstanding: dict[int, Drawn] = field(default_factory=dict)  # by index, oldest first
    drawn_under: dict[int, int] = field(default_factory=dict)  # of finished groups: oldest versions
    again: list[Drawn] = field(default_factory=list)  # of before a restart, to be drawn again
    batches: deque[int] = field(default_factory=deque)  # sizes of the batches drawn ahead
    batches_drawn: int = 0  # the step whose batch was drawn last
    dropped: int = 0  # groups, in the whole run
    step_began: float = field(default_factory=time.perf_counter)

    def refill(self, state: RunState) -> None:
        """Draws the batches that may be drawn under the newest version."""
        self.batches_drawn = max(self.batches_drawn, state.step + len(self.batches))
        if self.again:
            self._send(self.again)
            self.again = []
        last = min(self.total_steps, state.step + 1 + self.config.max_staleness)
        while self.batches_drawn < last:
            drawn = self._draw(state, self.config.batch_size)
            self.batches.append(len(drawn))
            self.batches_drawn += 1
        self._note_outstanding(state)

    def _draw(self, state: RunState, count: int) -> list[Drawn]:
        end = state.position
        tasks, state.position = self.tasks.draw(end, count)
        has_gaps = state.position - end > len(tasks)  # rows that cannot be used
        drawn = []
        for task in tasks:
            end = self.tasks.draw(end, 1)[1] if has_gaps else end + 1
            drawn.append(Drawn(end - 1, task))
        self._send(drawn)
        return drawn

    def _send(self, drawn: list[Drawn]) -> None:
        config, first = self.config, self.stream.sent
        assignments = [
            Assignment(
                first + i,
                each.task,
                config.num_candidates,
                self.sampling,
                (config.seed, "position", each.position, each.attempt),
            )
            for i, each in enumerate(drawn)
        ]
        self.outstanding |= dict(enumerate(drawn, first))
        self.stream.send_assignments(assignments)

    def _roll_out(self, state: RunState, count: int, draw: int, timer: Timer) -> list[Group]:
        if draw == 0:
            self.refill(state)
            count = self.batches.popleft()
        else:  # for groups that are filtered out, as many more
            count = len(self._draw(state, count))
        with timer("generation"):
            groups = self._take(count, state.policy_version)
        self._note_outstanding(state)
        return groups

    def _take(self, count: int, version: int) -> list[Group]:
        """`count` groups, as soon as they and all that will be too old are there."""
        while True:
            self._drop_too_old(version)
            chosen = self.choose(count, version)
            if chosen is not None:
                break
            self.stream.pump(POLL_S)
            self.stream.raise_failure()
            finished = sum(index in self.stream.finished for index in self.outstanding)
            self.view.progress("generation", min(finished, count), count, self.stream.tokens)
        groups = []
        for index in chosen:
            del self.outstanding[index], self.drawn_under[index]
            groups.append(self.stream.finished.pop(index))
        return groups

    def choose(self, count: int, version: int) -> list[int] | None:
        """The indices to train on, None while they are not all there."""
        order = list(self.outstanding)
        finished = self.stream.finished
        oldest = version - self.config.max_staleness  # which is too old after one more update
        due = [index for index in order if self._version(index) <= oldest]
        if any(index not in finished for index in due[:count]):
            return None
        window = order[: max(count, math.ceil(count * (1 + LOOK_AHEAD)))]
        is_due = set(due)
        rest = [index for index in window if index in finished and index not in is_due]
        chosen = (due + rest)[:count]
        return sorted(chosen) if len(chosen) == count else None

    def _version(self, index: int) -> int:
        """The oldest version that a group has tokens of, as far as is known."""
        group = self.stream.finished.get(index)
        if group is None:
            return self.stream.in_flight[index].policy_version
        if index not in self.drawn_under:
            self.drawn_under[index] = group.policy_version
        return self.drawn_under[index]

    def _drop_too_old(self, version: int) -> None:
        """What came too late is drawn again. Only a process that was started again, or a filter
        that has taken groups from later batches, can make it so."""
        oldest, finished = version - self.config.max_staleness, self.stream.finished
        late = [i for i in self.outstanding if i in finished and 0 <= self._version(i) < oldest]
        again = [self.outstanding.pop(index) for index in late]
        for index in late:
            del finished[index], self.drawn_under[index]
        self.dropped += len(late)
        self._send([Drawn(each.position, each.task, each.attempt + 1) for each in again])

    def _seconds(self, timer: Timer) -> float:
        now = time.perf_counter()
        seconds, self.step_began = now - self.step_began, now
        return seconds

    def _more_metrics(self) -> Metrics:
        loaded, unloaded, held = self.stream.version_counts()
        return {
            "rollout/outstanding_groups": len(self.outstanding),
            "rollout/finished_groups": sum(i in self.stream.finished for i in self.outstanding),
            "rollout/dropped_groups": self.dropped,
            "rollout/replaced_actors": self.stream.pool.replaced,
            "rollout/versions_loaded": loaded,
            "rollout/versions_unloaded": unloaded,
            "rollout/versions_held": held,
        }

    def _note_outstanding(self, state: RunState) -> None:
        state.outstanding = sorted(each.position for each in self.outstanding.values())
        state.batches = list(self.batches)

    def ahead(self) -> Sequence[Ahead]:
        return [
            Ahead(each.position, each.attempt, self.stream.finished[index])
            for index, each in self.outstanding.items()
            if index in self.stream.finished
        ]

    def restore(self, state: RunState, ahead: Sequence[Ahead] = ()) -> None:
        """Goes on from a checkpoint, with the next `draw`: the actors need its version first."""
        self.outstanding, self.drawn_under, self.again = {}, {}, []
        self.batches, self.batches_drawn = deque(state.batches), state.step + len(state.batches)
        complete = {each.position: each for each in ahead}
        for position in state.outstanding:
            task, found = self._task_at(position), complete.get(position)
            if found is None:
                self.again.append(Drawn(position, task))
            else:
                index = self.stream.put(replace(found.group, task=task))
                self.outstanding[index] = Drawn(position, task, found.attempt)

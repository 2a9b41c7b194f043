"""Processes that are killed before the first step, in a Ray of the test's own: while they are
built, and while they are checked."""

import os
import signal
import time

import fake_processes
import pytest

from unslothrl import cluster, embedded
from unslothrl.cluster.handles import Checks
from unslothrl.cluster.ray_calls import FORGET_S
from unslothrl.errors import ProcessLost
from unslothrl.planning.placement import ACTOR, LEARNER
from unslothrl.system.machine import Machine

pytestmark = pytest.mark.real


@pytest.fixture
def started(monkeypatch, tmp_path):
    """-> (two actors and a learner, what was said while they started): the first actor is killed
    while it is built, the learner while it is checked."""
    monkeypatch.setenv("PYTHONPATH", fake_processes.PATH)

    def perhaps_die(name, where):
        mark = tmp_path / f"{name}.{where}"
        if (name, where) in (("actor-0", "build"), ("learner-0", "check")) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def build(builder, config, base, plan):
        perhaps_die(plan.name, "build")
        built = builder(config, base, plan)
        check = built.check

        def dying_check(*arguments):
            perhaps_die(plan.name, "check")
            return check(*arguments)

        built.check = dying_check
        return built

    said: list[str] = []
    builders = {
        ACTOR: lambda *arguments: build(fake_processes.build_actor, *arguments),
        LEARNER: lambda *arguments: build(fake_processes.build_learner, *arguments),
    }
    config = fake_processes.config_of({"number_of_actors": 2})
    processes = cluster.start(config, embedded.BASE, Machine.detect(), said.append, builders)
    yield processes, said
    processes.close()


@pytest.mark.slow
def test_what_is_killed_before_the_first_step_is_started_again(started):
    processes, said = started
    assert [line.split()[0] for line in said if line.endswith("started again")] == ["actor-0"]
    notes: list[str] = []
    Checks().check_started(processes, notes.append)
    (note,) = notes
    assert note.startswith("learner-0 ") and "SIGKILL" in note and note.endswith("started again")
    handles = [*processes.learners, *processes.actors]
    assert {handle.name for handle in handles} == {"actor-0", "actor-1", "learner-0"}
    found = processes.gather([handle.check(None) for handle in handles])
    assert {each[:2] for each in found} == {("", "base")}

    learner = processes.learners[0]  # and one that dies later, while nothing is asked of it
    for _ in range(3):
        processes.check_learners()
    os.kill(processes.ray.get(learner.transport.host.pid.remote()), signal.SIGKILL)
    end = time.monotonic() + 60
    with pytest.raises(ProcessLost, match=r"learner-0 .*SIGKILL") as lost:
        while time.monotonic() < end:
            processes.check_learners()
    assert lost.value.name == "learner-0"
    processes.restart_learners()
    processes.check_learners()

    actor = processes.actors[0]  # and one that is stopped for a while, which its silence shows
    host = processes.hosts[actor.name]
    pid = processes.ray.get(host.pid.remote())
    processes.silence_s(actor)
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + 60
    while (silent := processes.silence_s(actor)) < 2.0 and time.monotonic() < end:
        processes.check_learners()
    os.kill(pid, signal.SIGCONT)
    while processes.silence_s(actor) > 0 and time.monotonic() < end:
        pass
    assert silent >= 2.0 and time.monotonic() < end
    watch = processes.watches[host]
    seconds, when = watch.longest
    assert seconds >= 1.5
    assert watch.answer_s(when + FORGET_S) == pytest.approx(seconds / 2)
    assert processes.answer_s() < seconds  # the learner's, beside it

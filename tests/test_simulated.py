"""The simulated engine and learner take the time that is set. That the engine keeps the contract
of the real ones: tests/test_engines_without_a_model.py."""

import pytest
from simulated.builders import Simulation
from simulated.engine import Delay, EngineDelays, Lengths, SimulatedEngine
from simulated.learner import LearnerDelays, SimulatedLearner

from unslothrl.engines.base import generate
from unslothrl.records import Batch, Request, Sample, Sampling

NO_TIME = EngineDelays(step_s=0.0)


class Clock:
    """Time that passes by sleeping alone; each sleep takes `late` seconds more than asked for."""

    def __init__(self, late: float = 0.0):
        self.now, self.late = 0.0, late

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late

    def delay(self) -> Delay:
        return Delay(self.sleep, lambda: self.now)


def timed(lengths: Lengths, late: float = 0.0, max_running: int = 256, slowdown: float = 1.0):
    """-> (the clock, completions) of 40 requests; a step is 10 ms and 1 ms a running request."""
    clock = Clock(late)
    delays = EngineDelays(0.01, 0.001, slowdown=slowdown)
    engine = SimulatedEngine(delays, lengths, max_running, wait=clock.delay())
    sampling = Sampling(1.0, 1.0, 0, 500)
    requests = [Request(str(i), (1, 2), i, sampling) for i in range(40)]
    return clock, generate(engine, requests)


def test_steps_take_what_is_set():
    clock, drawn = timed(Lengths(100))
    assert {len(one.token_ids) for one in drawn} == {100}
    assert clock.now == pytest.approx(100 * (0.01 + 40 * 0.001))
    slow, _ = timed(Lengths(100), slowdown=10)
    assert slow.now == pytest.approx(10 * clock.now)
    halves, _ = timed(Lengths(100), max_running=20)
    assert halves.now == pytest.approx(2 * 100 * (0.01 + 20 * 0.001))


def test_sleeps_that_take_too_long_do_not_add_up():
    clock, _ = timed(Lengths(100), late=0.02)
    assert clock.now == pytest.approx(100 * (0.01 + 40 * 0.001), abs=0.03)


def test_time_between_two_calls_is_not_made_up_for():
    clock = Clock()
    wait = clock.delay()
    wait(1.0)
    clock.now += 5
    wait(1.0)
    assert clock.now == 7
    wait(1.0, began=clock.now - 0.25)  # what the caller has spent is part of it
    assert clock.now == 7.75


def test_lengths_have_a_long_tail_and_are_the_seeds():
    lengths = Lengths(100, 1.0)
    drawn = sorted(lengths.of(seed, 10_000) for seed in range(4_000))
    assert 95 < drawn[2_000] < 105  # the median
    assert 2.4 < drawn[int(4_000 * 0.8413)] / 100 < 3.05  # e, one sigma above it
    assert max(drawn) > 1_500 and lengths.of(7, 20) <= 20
    assert lengths.of(7, 10_000) == lengths.of(7, 10_000)


def test_a_learner_takes_what_is_set_and_goes_on_from_its_state():
    clock, actor = Clock(), Simulation(NO_TIME, LearnerDelays(0.0), Lengths(5)).actor("learner-0")
    learner = SimulatedLearner(actor, LearnerDelays(1.0, 0.01), 1000, clock.delay())
    sample = Sample((1, 2), (3, 4, 5, 6), (-0.5,) * 4, None, 0)
    update = learner.update(Batch((sample,) * 5, 5, 20), {"lora": 1.0})
    assert clock.now == pytest.approx(1.2) and update.stats.agreement.tokens == 20
    other = SimulatedLearner(actor, LearnerDelays(1.0, 0.01), 1000, clock.delay())
    other.load_state(learner.save_state())
    other.update(Batch((), 5, 20), {"lora": 1.0})
    assert (other.trained.steps, other.trained.samples, other.trained.tokens) == (2, 5, 20)
    first, second = learner.publish(1), learner.publish(2)
    assert len(first.weights) == 1000 and first.weights != second.weights
    first.verify()
    learner.load(first)
    assert actor.engine.version == 1
    learner.close()

"""Episodes over a real engine, learner and environment's processes: what the sampler said of every
token is what the learner says of the sequence that it is trained on; and episodes that go on across
an update (`--max_staleness 1 --partial_rollouts`). vLLM's turns are in test_engines.py, which has
started it."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from environment_files import tokenizer, written
from fakes import draw_groups
from few_cases import few
from real_episodes import (
    ASK,
    MOST_GAP,
    Draws,
    config_of,
    dropping,
    gaps,
    learner_of,
    of_several_turns,
    sampling_of,
    tasks,
)

from unslothrl.actors import actor as actor_module
from unslothrl.cluster.build import build_actor, rules_of
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.embedded import EMBEDDED
from unslothrl.records import Assignment, Batch, Group, Sample, Sampling
from unslothrl.weights import base_model

pytestmark = pytest.mark.real

CANDIDATES = 4
GONE_S = 30.0  # in which a process must have ended


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = written(tmp_path_factory.mktemp("ask"), ASK)
    return config_of(environment=f"{file}:Ask", max_episode_tokens=240)


@pytest.fixture(scope="module")
def made(config):
    """-> (a learner, what it began with)"""
    learner = learner_of(config)
    yield learner, learner.publish(0)
    learner.actor.close()


@pytest.fixture
def learner(made, config):
    """As it was at the beginning."""
    learner, start = made
    learner.backend.restore_adapter(start)
    actor = learner.actor
    actor.load(start)
    actor.rules, dialogue = rules_of(config), actor.dialogue
    yield learner
    actor.dialogue = dialogue
    actor.__dict__.pop("_draw", None)  # of `Draws`


@pytest.fixture
def actor(config):
    """With a base of its own, whose episodes go on under what is loaded meanwhile."""
    ahead = replace(config, max_staleness=1, partial_rollouts=True, number_of_actors=1)
    made = build_actor(ahead, base_model.prepare(EMBEDDED))
    yield made
    if not made.loop.is_closed():
        made.close()


@pytest.mark.parametrize("rewrites", few([True, False]))
def test_the_learner_agrees_with_the_sampler_on_every_turn(rewrites, learner, config):
    """Turns of one sequence, and of several: their template drops the reasoning before them."""
    learner.actor.dialogue = TemplateDialogue(dropping(tokenizer()) if rewrites else tokenizer())
    draws = Draws(learner.actor)
    groups = draw_groups(learner.actor, tasks(4), CANDIDATES, sampling_of(config), (0,))
    samples = draws.check(groups)
    several = of_several_turns(groups)
    assert len(several) >= 8
    for one in several:
        assert len(one.transcript.earlier) == (len(one.transcript.turns) - 1) * rewrites
        assert all(one.sampled) == rewrites
    measured = learner.measure(samples, reference=False)
    found = gaps([each["logprobs"] for each in measured], samples)
    assert found.mean() < MOST_GAP and len(found) > 100


class Deadline:
    """A clock that passes every deadline once an engine has finished so many turns and is in the
    middle of another: how many are drawn at once is the timing of the environments."""

    def __init__(self, engine, turns: int):
        self.now, self.left = 0.0, turns
        self.engine, self.step = engine, engine.step
        engine.step = self.watched

    def watched(self):
        finished = self.step()
        self.left -= len(finished)
        if self.left <= 0 and any(map(self.engine.drawn, self.engine.in_flight)):
            self.now, self.engine.step = 1000.0, self.step
        return finished


def stop_after(
    turns: int, actor, sampling: Sampling, seed: int, monkeypatch
) -> list[tuple[int, Group]]:
    """What is collected of 4 groups when so many turns are written: none, or the quickest."""
    deadline = Deadline(actor.engine, turns)
    clock = SimpleNamespace(monotonic=lambda: deadline.now, perf_counter=time.perf_counter)
    given = [Assignment(i, one, CANDIDATES, sampling, (seed,)) for i, one in enumerate(tasks(4))]
    with monkeypatch.context() as patch:
        patch.setattr(actor_module, "time", clock)
        early = actor.collect(seconds=1.0, assignments=given)[0]
    assert len(early) <= 1
    return list(early)


def train(learner, samples: list[Sample]) -> None:
    """A step that changes what the policy says by far more than rounding does."""
    batch = [
        replace(sample, advantages=np.full(sample.tokens, (-1.0) ** i, np.float32))
        for i, sample in enumerate(samples)
    ]
    tokens = sum(sample.tokens for sample in batch)
    update = learner.update(Batch(tuple(batch), len(batch), tokens), {"lora": 3e-3})
    assert update.tokens == tokens and not update.skipped


def processes(actor) -> list[psutil.Process]:
    """Of the environments of episodes that are open."""
    return psutil.Process(actor.host.process.pid).children()


def test_an_episode_goes_on_under_the_next_version(learner, actor, config, monkeypatch):
    sampling, draws = sampling_of(config), Draws(actor)
    first = learner.publish(0)
    actor.load(first)
    early = stop_after(20, actor, sampling, 1, monkeypatch)
    own = Draws(learner.actor)
    train(learner, own.check(draw_groups(learner.actor, tasks(2), CANDIDATES, sampling, (2,))))
    second = learner.publish(1)
    before = processes(actor)
    actor.load(second)
    assert before and processes(actor) == before
    groups = [group for _, group in sorted([*early, *actor.collect()[0]])]
    assert len(groups) == 4 and psutil.wait_procs(before, GONE_S)[1] == []

    samples = draws.check(groups)  # as drawn, token by token: nothing is tokenised again
    episodes = [one for group in groups for one in group.completions]
    crossed = [one for one in episodes if set(one.version_counts) == {0, 1}]
    ids = [f"{index}/{candidate}" for index in range(4) for candidate in range(CANDIDATES)]
    turns = [[set(drawn.versions) for _, drawn in draws.of_episode(id)] for id in ids]
    assert any({0} in of_episode and {1} in of_episode for of_episode in turns)  # between turns
    assert any({0, 1} in of_episode for of_episode in turns)  # in the middle of one
    for one in crossed:  # its environment counts on
        said = [turn.observation for turn in one.transcript.turns if turn.observation]
        assert said == [f"What is {i}7 * 21?" for i in range(1, len(said) + 1)]
        assert one.policy_version == 0 and sum(one.version_counts.values()) == sum(one.sampled)

    versions = np.concatenate([np.array(one.versions)[list(one.sampled)] for one in episodes])
    under = {}
    for adapter in (second, first):
        learner.backend.restore_adapter(adapter)
        measured = learner.measure(samples, reference=False)
        under[adapter.version] = gaps([each["logprobs"] for each in measured], samples)
    for version, other in ((0, 1), (1, 0)):
        was_drawn = versions == version
        own_gap, other_gap = (under[v][was_drawn].mean() for v in (version, other))
        assert was_drawn.sum() > 50
        # The versions are told apart. How many tokens are of which is the environments' timing: few
        # have a larger mean, and the policy is sharper after such a step.
        assert own_gap < 3 * MOST_GAP and other_gap > 30 * MOST_GAP
    train(learner, samples)


@pytest.mark.parametrize("stop", few(["close", "abandon"]))
def test_a_stop_in_the_middle_ends_the_environments(stop, learner, actor, config, monkeypatch):
    actor.load(learner.publish(0))
    stop_after(20, actor, sampling_of(config), 3, monkeypatch)
    those = processes(actor)
    assert len(those) > 4
    getattr(actor, stop)()
    assert psutil.wait_procs(those, GONE_S)[1] == []
    assert not actor.episodes


@pytest.mark.parametrize("budget", few([40, 96]))
@pytest.mark.parametrize("rewrites", few([False, True]))
def test_no_sequence_of_a_run_is_longer_than_its_plan(budget, rewrites, learner):
    """Nor is a micro-batch of them, whose activations the plan counts."""
    config = config_of(max_episode_tokens=budget)
    learner.actor.dialogue = TemplateDialogue(dropping(tokenizer()) if rewrites else tokenizer())
    learner.actor.rules = rules_of(config)
    draws = Draws(learner.actor)
    groups = draw_groups(learner.actor, tasks(6), 4, sampling_of(config), (0,))
    samples = draws.check(groups)
    assert max(len(sample.prompt_ids) + sample.length for sample in samples) <= config.context
    assert all(len(request.prompt_ids) < config.context for request, _ in draws.drawn.values())
    lasts = [len(one.token_ids) for group in groups for one in group.completions]
    assert max(lasts) <= budget
    if budget == 40 and not rewrites:
        assert budget in lasts  # an observation is cut off
    else:
        assert of_several_turns(groups)
    for part in learner.backend.micro_batches(samples, config.train_batch_size, config.context):
        prompts = {samples[i].prompt_ids for i in part}
        tokens_of_part = sum(map(len, prompts)) + sum(samples[i].length for i in part)
        assert tokens_of_part <= config.train_batch_size * config.context

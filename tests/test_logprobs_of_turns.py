"""What the sampler said of every token of an episode is what the learner says of the sequence that
it is trained on. vLLM's are in test_engines.py, which has started it."""

import pytest
from environment_files import tokenizer, written
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

from unslothrl.actors.talk import Talking
from unslothrl.dialogue.template import TemplateDialogue

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    file = written(tmp_path_factory.mktemp("ask"), ASK)
    config = config_of(environment=f"{file}:Ask", max_episode_tokens=240)
    made = learner_of(config)
    yield made, sampling_of(config)
    made.actor.close()


@pytest.mark.parametrize("rewrites", [False, True])
def test_the_learner_agrees_with_the_sampler_on_every_turn(rewrites, learner):
    """Turns that are one sequence; and turns that each begin one, since their template drops the
    reasoning before them."""
    made, sampling = learner
    tokens = dropping(tokenizer()) if rewrites else tokenizer()
    made.actor.talking = Talking(tokens, lambda: TemplateDialogue(tokens))
    draws = Draws(made.actor)
    groups = made.actor.generate(tasks(4), 4, sampling, (0,))
    samples = draws.check(groups)
    several = of_several_turns(groups)
    assert len(several) >= 8
    for one in several:
        assert len(one.transcript.earlier) == (len(one.transcript.turns) - 1) * rewrites
        assert all(one.sampled) == rewrites
    measured = made.measure(samples, reference=False)
    found = gaps([each.logprobs for each in measured], samples)
    assert found.mean() < MOST_GAP and len(found) > 100

"""An actor whose log-probabilities are far from the learner's is named; one far off is stopped."""

import pickle

import numpy as np
import pytest
from fakes import group, samples_of

from unslothrl.records import Update
from unslothrl.training.actor_health import GROSS_MARGIN, MARGIN, SamplerGapWatch, gaps_of


def stats(*sources: tuple[str, int, np.ndarray]) -> Update:
    """(generator, version, its |sampler - learner| of each token) of each sample."""
    gaps = np.concatenate([gap for *_, gap in sources])
    described = [(name, version, len(gap)) for name, version, gap in sources]
    return Update(difference=-gaps, sources=described)


class Watched(SamplerGapWatch):
    def __init__(self):
        self.notes: list[str] = []
        self.stops: list[str] = []
        super().__init__(self.notes.append, lambda name, why: self.stops.append(name))


def noise(size: int, mean: float, seed: int) -> np.ndarray:
    """Like those that were measured: most are tiny, a few large (log-normal)."""
    return np.random.default_rng(seed).lognormal(np.log(mean) - 0.72, 1.2, size)


def test_gaps_by_hand():
    parts = [
        stats(("actor-0", 7, np.array([0.1, 0.3])), ("actor-1", 6, np.array([-0.5]))),
        stats(("actor-0", 7, np.array([0.2]))),
    ]
    gaps = gaps_of(parts, 7)
    assert gaps.keys() == {0, 1}
    assert gaps[0]["actor-0"].mean == pytest.approx(0.2) and gaps[0]["actor-0"].tokens == 3
    assert gaps[0]["actor-0"].error == pytest.approx(np.std([0.1, 0.2, 0.3]) / 3**0.5)
    assert gaps[1]["actor-1"].mean == 0.5


def test_a_sample_knows_its_generator_and_keeps_it_on_its_way():
    ((first,), _) = samples_of(group("0", [1.0, 0.0]))
    assert first.generator == pickle.loads(pickle.dumps(first)).generator == "actor-0"


def test_metrics_of_several_generators_alone():
    watch = Watched()
    assert watch.saw([stats(("actor-0", 0, np.full(200, 0.01)))], 0) == {}
    both = stats(("actor-0", 1, np.full(200, 0.01)), ("learner-0", 1, np.full(200, 0.002)))
    assert watch.saw([both], 1) == pytest.approx(
        {"train/sampler_gap/actor-0": 0.01, "train/sampler_gap/learner-0": 0.002}
    )


def test_one_that_stands_out_twice_is_named_once():
    watch = Watched()
    for version in range(5):
        means = enumerate((0.005, 0.006, 0.08))
        gaps = ((f"actor-{i}", version, noise(400, m, version + 100 * i)) for i, m in means)
        watch.saw([stats(*gaps)], version)
        assert len(watch.notes) == (version >= 1)
    assert watch.notes[0].startswith("actor-2: ") and watch.stops == []


def test_one_that_is_far_off_is_stopped_and_its_late_samples_do_not_stop_its_successor():
    watch = Watched()

    def step(version: int, drawn_under: int, gap: float) -> None:
        parts = stats(
            ("actor-0", version, noise(400, 0.005, version)),
            ("actor-0", version - 1, noise(400, 0.02, version)),
            ("actor-1", drawn_under, noise(400, gap, version)),
        )
        watch.saw([parts], version)

    step(10, 10, 1.0)
    assert watch.stops == ["actor-1"]
    step(11, 10, 1.0)  # of the process that has been stopped
    assert len(watch.stops) == 1
    step(12, 12, 0.005)
    step(13, 13, 1.0)
    assert len(watch.stops) == 2


def test_few_tokens_say_nothing():
    watch = Watched()
    for version in range(6):
        parts = stats(("actor-0", version, np.full(400, 0.01)), ("actor-1", version, np.ones(50)))
        watch.saw([parts], version)
    assert watch.notes == watch.stops == []


@pytest.mark.slow
@pytest.mark.real
def test_no_false_alarm_in_a_thousand_steps():
    """Heavy tails, unequal shares, three stalenesses, a gap that drifts by a factor of ten, one
    actor on a card whose kernels make twice the gap."""
    watch, draw = Watched(), np.random.default_rng(0)
    for version in range(1000):
        level = 0.003 * 10 ** (version / 1000)
        sources = []
        for actor in range(4):
            for staleness in range(3):
                mean = level * (1 + staleness) * (2 if actor == 3 else 1)
                tokens = int(draw.integers(1, 2000))
                own = draw.lognormal(np.log(mean) - 1.1, 1.5, tokens)
                sources.append((f"actor-{actor}", version - staleness, own))
        watch.saw([stats(*sources)], version)
    assert watch.notes == watch.stops == []


@pytest.mark.parametrize("seed", range(20))
def test_no_false_alarm_of_chance_but_one_where_there_is_cause(seed):
    """The same number of tokens, with and without a shift of all."""
    for shift, alarms in ((0.0, 0), (MARGIN * 2, 1), (GROSS_MARGIN * 2, 1)):
        watch = Watched()
        for version in range(2):
            parts = stats(
                ("actor-0", version, noise(300, 0.01, seed + version)),
                ("actor-1", version, noise(300, 0.01, seed + version + 50) + shift),
            )
            watch.saw([parts], version)
        assert bool(watch.notes or watch.stops) == alarms

"""The guess at a step's time, by hand."""

from dataclasses import replace

import pytest
from test_plan import MAIN, cards

from unslothrl.commands.plan import duration
from unslothrl.config.options import Config
from unslothrl.planning import speed
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.weights.shapes import KNOWN

SEVEN = KNOWN["qwen2.5-7b"]


def seconds(config: Config, *sizes: float):
    return speed.step_seconds(
        config, SEVEN, place(config, Resources.of_machine(config, cards(*sizes)), shape=SEVEN)
    )


def test_a_step_by_hand():
    config = replace(MAIN, batch_size=8, num_candidates=16, topk=16, max_num_seqs=64)
    found = sum(speed.parts(config, SEVEN, speed=(0.5e12, 0.5e14), engine_s=0.01, share=1.0))
    parameters, tokens = 7_615_616_512, 1200
    moving = (SEVEN.engine_bytes() + 64 * 1550 * 57_344 / 2) / 0.5e12
    computing = 2 * parameters * 64 / 0.5e14
    updating = 8 * parameters * 128 * 1550 / 0.5e14
    assert found == pytest.approx(2 * tokens * (max(moving, computing) + 0.01) + updating)
    slow = sum(speed.parts(config, SEVEN, speed=(0.5e11, 0.5e14), engine_s=0.01, share=1.0))
    assert slow == pytest.approx(2 * tokens * (10 * moving + 0.01) + updating)


def test_the_range_goes_up_and_is_shorter_on_larger_cards():
    config = replace(MAIN, max_num_seqs=16)
    by_size = [seconds(config, gb) for gb in (12, 24, 80)]
    assert all(low < high for low, high in by_size)
    assert [low for low, _ in by_size] == sorted((low for low, _ in by_size), reverse=True)
    longer = seconds(replace(config, max_new_tokens=2400), 24)
    assert longer[0] > by_size[1][0] and longer[1] > by_size[1][1]
    assert seconds(replace(config, engine="transformers", backend="peft"), 24)[1] > by_size[1][1]
    assert seconds(config) is None


@pytest.mark.parametrize(
    ("of", "shown"), [(0.2, "1 s"), (89, "89 s"), (91, "2 min"), (5400, "2 h"), (36_000, "10 h")]
)
def test_durations_are_short(of, shown):
    assert duration(of) == shown

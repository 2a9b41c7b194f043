"""Options of overlap: what is refused, what follows from them, and what a run says of it."""

import dataclasses

import pytest

from unslothrl.config.options import Config
from unslothrl.data.tasks import Data
from unslothrl.errors import UserError
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Gpu, Machine
from unslothrl.training.trial import header

CPU = Machine(cpus=4, ram_mb=16_000, packages=frozenset({"vllm", "ray"}), online=False)
DATA = Data(train=None, evals={})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "max_staleness 1, cluster local",
            "max_staleness 1: with --cluster local actors and learners take turns in one process: "
            "set --cluster ray, or --max_staleness 0",
        ),
        (
            "max_staleness 2, number_of_actors 0",
            "max_staleness 2: there are no actors to generate while the learner updates: "
            "set --number_of_actors 1, or --max_staleness 0",
        ),
        (
            "min_actors 3, number_of_actors 2",
            "min_actors 3 is over number_of_actors 2: set --min_actors 2, or --number_of_actors 3",
        ),
        (
            "min_actors 0, learner_chunk_size 0",
            "min_actors 0: learners generate nothing (learner_chunk_size 0), so a run without "
            "actors would wait forever: set --min_actors 1",
        ),
        (
            "min_actors 0, max_staleness 1",
            "min_actors 0: learners generate nothing (max_staleness 1), so a run without actors "
            "would wait forever: set --min_actors 1",
        ),
    ],
)
def test_overlap_that_cannot_be_is_refused_with_the_reason(flags, message):
    given = dict(pair.split() for pair in flags.split(", "))
    with pytest.raises(UserError) as caught:
        resolve(given, CPU)
    assert str(caught.value) == message


@pytest.mark.parametrize("actors", [None, 0, 1, 2])
def test_overlap_on_one_card_is_refused_however_many_actors(actors):
    """Without it they take turns there."""
    gpu = Gpu("a card", 24_576, 24_576, (8, 6))
    packages = frozenset({"vllm", "ray", "unsloth"})
    given = {"learner": "grpo", "model": "Qwen/Qwen3-4B", "dataset": "embedded"}
    given |= {} if actors is None else {"number_of_actors": str(actors)}
    one = Machine(cpus=8, ram_mb=64_000, gpus=(gpu,), packages=packages, online=False)
    assert resolve(given, one).config.max_staleness == 0
    message = (
        "max_staleness 2: on 1 GPU actors and learner take turns, so nothing is generated while it "
        "updates: set --max_staleness 0, or add a GPU"
    )
    given |= {"max_staleness": "2"}
    with pytest.raises(UserError) as caught:
        resolve(given, one)
    assert str(caught.value) == message
    with pytest.raises(UserError) as caught:  # a cluster that was joined, by its count of cards
        place(Config(max_staleness=2, number_of_actors=1), Resources((None,), 64_000))
    assert str(caught.value) == message
    two = dataclasses.replace(one, gpus=(gpu, gpu))
    if actors != 0:
        assert resolve(given, two).config.max_staleness == 2


def test_learners_generate_nothing_while_actors_go_on():
    def resolved(**flags) -> tuple[Config, list[str]]:
        found = resolve({"learner": "grpo", **flags}, CPU)
        return found.config, [note for note in found.notes if "learner_chunk_size" in note]

    assert resolved()[0].learner_chunk_size == 8
    config, notes = resolved(max_staleness="1")
    assert config.learner_chunk_size == 0 and not config.learner_generates and notes == []
    config, notes = resolved(max_staleness="1", learner_chunk_size="4")
    assert config.learner_chunk_size == 0 and notes == [
        "learner_chunk_size 4 -> 0: with max_staleness 1 learners generate nothing"
    ]
    assert resolved(max_staleness="1", learner_chunk_size="0")[1] == []


def test_rollouts_of_older_versions_are_corrected_for(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from unslothrl.algorithms.objective import Objective\n"
        "OBJECTIVE = Objective(correction='none')\n"
    )

    def resolved(**flags) -> tuple[str | None, list[str]]:
        found = resolve({"learner": f"{mine}", **flags}, CPU)
        return found.config.correction, [note for note in found.notes if "correction" in note]

    assert resolved() == ("none", [])
    assert resolved(max_staleness="1") == (
        "truncated",
        ["correction none -> truncated: rollouts may be older than the policy (max_staleness 1)"],
    )
    assert resolved(max_staleness="1", correction="none") == (
        "none",
        [
            "warning: correction none, and rollouts may be older than the policy (max_staleness "
            "1): the gradient is biased"
        ],
    )
    assert resolved(max_staleness="1", correction="masked") == ("masked", [])


@pytest.mark.parametrize("partial", [False, True])
def test_the_header_says_how_old_rollouts_may_be(partial):
    config = resolve(
        {"learner": "grpo", "max_staleness": "2", "partial_rollouts": partial}, CPU
    ).config
    (line,) = [line for line in header(config, DATA, 1, []) if "rollouts may be" in line]
    assert line == (
        "rollouts may be 2 versions old: correction truncated; learners generate nothing"
        + (", completions go on under new versions" if partial else "")
    )
    config = resolve({"learner": "grpo"}, CPU).config
    assert not any("rollouts may be" in line for line in header(config, DATA, 1, []))

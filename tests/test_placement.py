"""Who runs where, and who generates how much, by hand-computed numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unslothrl.errors import UserError
from unslothrl.planning.placement import Cluster, Placement, place, shares

ASKED = {"learners": 1, "actors": 2, "learner_share": 0.35, "actor_share": 0.91, "base_mb": 5_000}


def test_whole_gpus_where_there_are_enough():
    assert place(Cluster(3, 64_000), **ASKED) == Placement(1.0, 1.0)


def test_actors_share_what_the_learner_leaves():
    assert place(Cluster(2, 64_000), **ASKED) == Placement(1.0, 0.5)
    assert place(Cluster(3, 64_000), **{**ASKED, "actors": 5}) == Placement(1.0, 0.3333)


def test_one_gpu_is_shared_when_the_shares_fit():
    asked = {**ASKED, "actors": 1, "actor_share": 0.6}
    assert place(Cluster(1, 64_000), **asked) == Placement(0.5, 0.5)
    assert place(Cluster(1, 64_000), **{**ASKED, "actors": 0}) == Placement(1.0, 1.0)


def test_one_gpu_that_cannot_hold_the_shares_says_so():
    with pytest.raises(UserError) as error:
        place(Cluster(1, 64_000), **{**ASKED, "actors": 1})
    assert "actor_gpu_usage 0.91" in str(error.value)
    assert "--actor_gpu_usage 0.65" in str(error.value)  # 1 - 0.35


def test_more_learners_than_gpus_says_so():
    with pytest.raises(UserError, match="number_of_learners 2: the cluster has 1 GPUs"):
        place(Cluster(1, 64_000), **{**ASKED, "learners": 2})


def test_cpu_processes_reserve_nothing_but_must_fit_in_memory():
    where = place(Cluster(0, 24_000), **ASKED)  # 3 x (1500 + 5000) = 19500
    assert where.bundles(1, 2) == []
    with pytest.raises(UserError, match=r"19\.0 GB of memory, the cluster has 11\.7 GB"):
        place(Cluster(0, 12_000), **ASKED)


@given(st.integers(1, 16), st.integers(1, 16), st.integers(0, 40))
def test_fractions_never_add_up_to_more_than_the_gpus(gpus, learners, actors):
    asked = {**ASKED, "learners": learners, "actors": actors, "actor_share": 0.01}
    try:
        where = place(Cluster(gpus, 64_000), **asked)
    except UserError:
        return
    bundles = [bundle["GPU"] for bundle in where.bundles(learners, actors)]
    assert sum(bundles) <= gpus + 1e-9
    assert len(bundles) == learners + actors


def test_shares_by_hand():
    # 30 prompts, learner takes 8, two actors share 22
    assert list(shares(30, 2, 1, 8)) == [11, 11, 8]
    # the remainder goes to the first
    assert list(shares(32, 3, 1, 8)) == [8, 8, 8, 8]
    assert list(shares(33, 3, 1, 8)) == [9, 8, 8, 8]
    # 0: the learner only trains
    assert list(shares(30, 2, 1, 0)) == [15, 15, 0]
    # fewer prompts than generators: actors first
    assert list(shares(2, 3, 1, 8)) == [1, 1, 0, 0]
    assert list(shares(4, 3, 1, 8)) == [1, 1, 1, 1]
    # no actors: learners take everything
    assert list(shares(31, 0, 2, 8)) == [16, 15]


@given(st.integers(1, 99), st.integers(0, 9), st.integers(1, 4), st.integers(0, 40))
def test_shares_lose_nothing(total, actors, learners, chunk):
    counts = shares(total, actors, learners, chunk)
    assert sum(counts) == total
    assert len(counts) == actors + learners
    assert min(counts) >= 0
